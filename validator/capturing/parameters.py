"""A model's parameters and buffers, non-persistent ones included, as they are when a capture begins."""

from collections.abc import Iterator

import torch
from torch import nn

from .compiled import find_regions
from .copies import layout_of, local_part
from .digest import row_hashes
from .formats_hdf5 import dtype_name
from .hooks import Recorder
from .schema import parameter_path
from .selection import Selection
from .values import escape_part
from .writer import CaptureWriter

__all__ = ["write_parameters"]

_WAITING_BYTES = 32 << 20
"""No run waits for the parameters: more of them in memory would only be copies of the model."""


def write_parameters(
    model: nn.Module, recorder: Recorder, writer: CaptureWriter, selection: Selection, *, limit_bytes: int
) -> None:
    """Write the parameters and buffers of the modules that are kept, under each of their names.

    Args:
        model: owner of the parameters.
        recorder: copies them.
        writer: where they go.
        selection: a parameter is kept if the module that owns it is. A compiled region is one function of all
            parameters in it: they are kept with it, but for those of modules that are left out by name.
        limit_bytes: of those larger on this rank a hash per row is written instead of values.
    """
    row = 0
    region_of = {fqn: one.fqn for one in find_regions(dict(model.named_modules())) for fqn in one.inside}
    for name, kind, tensor in _parameters(model):
        owner = name.rpartition(".")[0]
        if not selection.keeps_parameters(owner, region=region_of.get(owner)):
            continue
        path = parameter_path(name)
        local = local_part(tensor)
        if local is not None and local.numel() * local.element_size() > limit_bytes:
            hashes, digest = row_hashes(local)
            layout = layout_of(tensor, local)
            writer.put_hashes(path, row, dtype_name(local.dtype), layout, digest, hashes)
        elif not recorder.put(path, row, tensor):
            continue
        else:
            writer.wait_for_room(_WAITING_BYTES)
        writer.append("parameters", escape_part(name), kind)
        row += 1


def _parameters(model: nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    for name, parameter in model.named_parameters(remove_duplicate=False):
        yield name, "parameter", parameter
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            kind = "non_persistent_buffer" if name in module._non_persistent_buffers_set else "buffer"
            yield f"{prefix}.{name}" if prefix else name, kind, buffer
