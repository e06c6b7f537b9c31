"""What the reference's own run tells beforehand: modules in execution order, and what capturing them takes.

The reference runs once with hooks that store nothing but the size of each tensor.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from validator.capturing.copies import local_part
from validator.capturing.digest import checksum
from validator.capturing.formats_hdf5 import element_bytes
from validator.capturing.outline import classes_of, is_below, outline
from validator.capturing.watch import Place, Watch

__all__ = ["Extent", "Survey", "survey"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """What a module's calls and parameters hold.

    Attributes:
        activations: elements at its edges that no module before has, floating ones.
        parameters: elements of its own parameters and buffers, floating ones.
        others: bytes of all that is not floating.
    """

    activations: int = 0
    parameters: int = 0
    others: int = 0

    def size_bytes(self, itemsize: int) -> int:
        """Return the bytes of a capture of it by a candidate of a dtype of this size."""
        return (self.activations + self.parameters) * itemsize + self.others


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The reference's run, without its values.

    Attributes:
        modules: fqns of those that fired, in the order of their first calls, with what each takes.
        starts, ends: when a call began and ended, by module and number.
        blocks: the repeated layers among them, in that order.
        frame: those that lie in no block.
        elements: of all edges together, equal ones as often as they occur.
    """

    modules: Mapping[str, Extent]
    starts: Mapping[tuple[str, int], int]
    ends: Mapping[tuple[str, int], int]
    blocks: tuple[str, ...]
    frame: tuple[str, ...]
    elements: int

    def inside(self, blocks: Iterable[str]) -> tuple[str, ...]:
        """Return the modules that fired in some blocks, the blocks included."""
        wanted = tuple(blocks)
        return tuple(fqn for fqn in self.modules if any(is_below(fqn, block) for block in wanted))

    def size_bytes(self, modules: Iterable[str], itemsize: int) -> int:
        """Estimate the bytes of a capture of some modules by a candidate of a dtype of this size."""
        return sum(self.modules[fqn].size_bytes(itemsize) for fqn in modules)


def survey(model: nn.Module, run: Callable[[], Any]) -> Survey:
    """Run the reference and measure it.

    Args:
        model: the reference.
        run: feeds it.
    """
    shape = outline(classes_of(model))
    seen: set[str] = set()
    activations: dict[str, list[int]] = {}
    starts: dict[tuple[str, int], int] = {}
    ends: dict[tuple[str, int], int] = {}
    elements = 0
    moment = 0

    def note(place: Place, leaf: Tensor) -> None:
        nonlocal elements, moment
        moment += 1
        key = (place.module, place.call)
        starts.setdefault(key, moment)
        ends[key] = moment
        counts = activations.setdefault(place.module, [0, 0])
        elements += leaf.numel()
        local = local_part(leaf)
        if local is None:
            return
        digest = f"{local.dtype} {checksum(element_bytes(local.detach().cpu().contiguous()))}"
        if digest not in seen:
            seen.add(digest)
            if leaf.is_floating_point():
                counts[0] += leaf.numel()
            else:
                counts[1] += leaf.numel() * leaf.element_size()

    with torch.no_grad(), Watch(model, note):
        run()
    extents = {}
    known: set[int] = set()
    for fqn, (floating, others) in activations.items():
        module = model.get_submodule(fqn)
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        fresh = [tensor for tensor in own if id(tensor) not in known]
        known.update(id(tensor) for tensor in fresh)
        extents[fqn] = Extent(
            activations=floating,
            parameters=sum(tensor.numel() for tensor in fresh if tensor.is_floating_point()),
            others=others + sum(t.numel() * t.element_size() for t in fresh if not t.is_floating_point()),
        )
    return Survey(
        modules=extents,
        starts=starts,
        ends=ends,
        blocks=tuple(fqn for fqn in extents if fqn in set(shape.blocks)),
        frame=tuple(fqn for fqn in extents if fqn in set(shape.frame)),
        elements=elements,
    )
