"""Copies of tensors as they are when seen, with what DTensor says of their placement.

A copy shares no memory with the model and keeps none of its autograd graph alive. On CUDA it goes to
pinned memory in stream order: the device is not waited for until the values are needed.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

import torch

from .formats_hdf5 import is_storable
from .records import Mesh, Placement

__all__ = ["HostCopy", "Layout", "copy_tensor", "layout_of", "local_part"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Shape of a rank's part, and where it lies in the DTensor that it belongs to, if any.

    Attributes:
        starts: where it begins in that along each dim, where it is one box of it; needed for samples alone.
        one_in: one of so many elements is kept, 0 for none; None for all.
    """

    shape: tuple[int, ...]
    global_shape: tuple[int, ...] | None = None
    placements: tuple[Placement, ...] | None = None
    mesh: Mesh | None = None
    starts: tuple[int, ...] | None = None
    one_in: int | None = None

    def to_json(self) -> str:
        """Return the one text that stands for this layout."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCopy:
    """A tensor's values on their way to the CPU."""

    data: torch.Tensor
    layout: Layout
    ready: torch.cuda.Event | None = None

    @property
    def size_bytes(self) -> int:
        """Size of the values."""
        return self.data.numel() * self.data.element_size()

    def wait(self) -> torch.Tensor:
        """Return the contiguous CPU tensor, once the device has delivered it."""
        if self.ready is not None:
            self.ready.synchronize()
        return self.data


def copy_tensor(tensor: torch.Tensor) -> HostCopy | None:
    """Copy this rank's part of a tensor, in the order of the current stream.

    Returns:
        None for a tensor without dense values of its own: on the meta device, sparse, nested,
        quantised, or a subclass that wraps others (DTensor and asynchronous results are unwrapped).
    """
    with torch.no_grad():
        local = local_part(tensor)
        if local is None:
            return None
        layout = layout_of(tensor, local)
        source = _copyable(local)
        if source.device.type != "cuda":
            copied = source.to("cpu", copy=True, memory_format=torch.contiguous_format)
            return HostCopy(data=_like(copied, local), layout=layout)
        copied = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
        copied.copy_(source, non_blocking=True)
        ready = torch.cuda.Event()
        ready.record(torch.cuda.current_stream(source.device))
        return HostCopy(data=_like(copied, local), layout=layout, ready=ready)


def local_part(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return this rank's part as a plain dense tensor that shares the memory, or None if it has none."""
    from torch.distributed._functional_collectives import AsyncCollectiveTensor
    from torch.distributed.tensor import DTensor
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    local = tensor.detach()
    if isinstance(local, DTensor):
        local = local.to_local()
    if isinstance(local, AsyncCollectiveTensor):
        local = local.trigger_wait()
    dense = local.layout == torch.strided and not local.is_quantized and not local.is_nested
    if not dense or local.is_meta or is_traceable_wrapper_subclass(local) or not is_storable(local.dtype):
        return None
    return local.resolve_conj().resolve_neg()


def layout_of(tensor: torch.Tensor, local: torch.Tensor) -> Layout:
    """Return the layout of a tensor whose part on this rank is `local`."""
    from torch.distributed.tensor import DTensor

    shape = tuple(local.shape)
    if not isinstance(tensor, DTensor):
        return Layout(shape=shape)
    mesh = tensor.device_mesh
    return Layout(
        shape=shape,
        global_shape=tuple(tensor.shape),
        placements=tuple(_placement(p) for p in tensor.placements),
        mesh=Mesh(
            axes=tuple(mesh.mesh_dim_names or (f"dim_{i}" for i in range(mesh.ndim))),
            shape=tuple(mesh.shape),
            ranks=tuple(mesh.mesh.flatten().tolist()),
        ),
        starts=_starts(tensor),
    )


def _starts(tensor: Any) -> tuple[int, ...] | None:
    """Return where this rank's part begins in a DTensor, or None where it is no single box of it."""
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None or any(isinstance(p, _StridedShard) for p in tensor.placements):
        return None
    starts, sizes = [0] * tensor.ndim, list(tensor.shape)
    for place, count, placement in zip(coordinate, mesh.shape, tensor.placements, strict=True):
        if isinstance(placement, Shard):
            # As torch.chunk cuts: equal sizes rounded up, the last ones shorter or empty.
            chunk = -(-sizes[placement.dim] // count)
            first = min(chunk * place, sizes[placement.dim])
            starts[placement.dim] += first
            sizes[placement.dim] = min(chunk, sizes[placement.dim] - first)
    return tuple(starts)


def _placement(placement: object) -> Placement:
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    if isinstance(placement, _StridedShard):
        return Placement(kind="shard", dim=placement.dim, stride=int(placement.split_factor))
    if isinstance(placement, Shard):
        return Placement(kind="shard", dim=placement.dim)
    if isinstance(placement, Partial):
        return Placement(kind="partial", reduce=str(placement.reduce_op))
    if isinstance(placement, Replicate):
        return Placement(kind="replicate")
    raise TypeError(f"unknown DTensor placement {placement!r}")


def _copyable(local: torch.Tensor) -> torch.Tensor:
    # Packed dtypes have no copy kernel of their own, bytes do.
    if local.is_contiguous() and local.element_size() == 1 and local.numel():
        return local.reshape(-1).view(torch.uint8)
    return local


def _like(copied: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    return copied.view(local.dtype).reshape(local.shape)
