"""How much memory the tensors of this process take, beside a model's cache, and who keeps them.

What Python code keeps is counted exactly, on any device: each storage behind a tensor that the garbage
collector knows, and that was made while the meter ran. What an accelerator's allocator has given out is read
as well.

Shape legend: * = any shape.
"""

import gc
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from validator.long_context.storages import sizes_of, tensors_in

__all__ = ["Memory", "Meter", "hoards"]

_DEPTH = 3
Kind = tuple[str, tuple[int, ...]]
"""Dtype and shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory of a process at one moment.

    Attributes:
        cache_bytes: of the tensors of the cache.
        other_bytes: of all other tensors that Python code made while the meter ran, and keeps.
        device_bytes: what the accelerator's allocator has given out; None without one.
        kinds: how many tensors there are beside the cache, by dtype and shape.
    """

    cache_bytes: int
    other_bytes: int
    device_bytes: int | None
    kinds: Mapping[Kind, int]


class Meter:
    """Counts the tensors that are made while it is entered, and still alive.

    What there was before is set aside for as long, so that looking takes no time in a large process.
    """

    def __enter__(self) -> Self:
        gc.collect()
        gc.freeze()
        return self

    def __exit__(self, *exc: object) -> None:
        gc.unfreeze()

    def read(self, cache: list[Tensor], device: torch.device) -> Memory:
        """Count the tensors that are alive.

        Args:
            cache: the tensors of the cache, counted apart.
            device: where the model is.
        """
        gc.collect()
        # The type is asked, and not the object: some objects do something when their class is looked at.
        tensors = [item for item in gc.get_objects() if issubclass(type(item), Tensor)]
        cached, sizes = sizes_of(cache), sizes_of(tensors)
        kinds = Counter(
            (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
            for tensor in tensors
            if not sizes_of([tensor]).keys() & cached.keys()
        )
        return Memory(
            cache_bytes=sum(cached.values()),
            other_bytes=sum(size for address, size in sizes.items() if address not in cached),
            device_bytes=_allocated(device),
            kinds=kinds,
        )


def hoards(model: nn.Module) -> dict[str, int]:
    """Return the bytes of tensors that modules keep beside parameters, by `module.attribute`."""
    found = {}
    for fqn, module in model.named_modules():
        kept = {**{k: v for k, v in vars(module).items() if k not in _OWN}, **module._buffers}
        for name, value in kept.items():
            size = sum(sizes_of(list(tensors_in(value, depth=_DEPTH))).values())
            if size:
                found[".".join(part for part in (fqn, name) if part)] = size
    return found


_OWN = ("_parameters", "_buffers", "_modules")


def _allocated(device: torch.device) -> int | None:
    if device.type == "cpu":
        return None
    allocated = getattr(torch.get_device_module(device), "memory_allocated", None)
    return None if allocated is None else int(allocated(device))
