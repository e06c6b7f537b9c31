"""Controls: faults that are planted in a healthy candidate to prove that a level would show them."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from validator.capturing.copies import local_part

__all__ = ["JUDGED", "Control", "planted", "site_of"]


class Control(StrEnum):
    """What is planted at one module of the candidate.

    `order`: some elements of the output are one step off, others each time, as additions in the order of
    their arrival make them. `neighbour`: a sequence's output has a part of its neighbour's in the batch.
    `later`: every call but the first is off, as a chunk at a wrong position is. `card`: all ranks but the
    first are off. `read`: memory is read that nothing was written to.
    """

    ORDER = "order"
    NEIGHBOUR = "neighbour"
    LATER = "later"
    CARD = "card"
    READ = "read"


JUDGED = (Control.NEIGHBOUR, Control.CARD)
"""Controls that the oracle must see: of their runs the guilty module alone is captured."""

_OFF = 1 + 2**-4


def site_of(model: nn.Module, run: Callable[[], Any]) -> str | None:
    """Run a model and return a module for controls: a matrix in the middle of the run, or None.

    Args:
        model: a rank's candidate; modules are the same on all ranks.
        run: feeds it.
    """
    called: list[str] = []
    handles = []
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        is_leaf = next(module.children(), None) is None
        if is_leaf and isinstance(weight, Tensor) and weight.dim() == 2 and not _is_table(module):
            handles.append(module.register_forward_hook(_noting(called, name)))
    try:
        with torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    once = [name for name in called if called.count(name) == 1]
    return once[len(once) // 2] if once else None


@contextmanager
def planted(model: nn.Module, site: str, control: Control, *, rank: int) -> Iterator[None]:
    """Plant a control inside of the block.

    Args:
        model: a rank's candidate.
        site: fqn of a module that returns one floating tensor.
        control: what to plant.
        rank: of this process.
    """
    calls = 0

    def after(module: nn.Module, args: Any, output: Any) -> Any:
        nonlocal calls
        calls += 1
        local = local_part(output)
        if local is not None:
            with torch.no_grad():
                local.copy_(_spoiled(local.detach().clone(), control, rank=rank, call=calls - 1))
        return output

    handle = model.get_submodule(site).register_forward_hook(after, prepend=True)
    try:
        yield
    finally:
        handle.remove()


def _spoiled(output: Tensor, control: Control, *, rank: int, call: int) -> Tensor:
    match control:
        case Control.ORDER:
            seed = secrets.randbits(32)
            generator = torch.Generator().manual_seed(seed)
            where = torch.rand(output.shape, generator=generator).to(output.device) < 0.01
            return torch.where(where, output * (1 + 2 * torch.finfo(output.dtype).eps), output)
        case Control.NEIGHBOUR:
            if len(output) > 1:
                output[..., 0] += output.roll(1, 0)[..., 0]
            return output
        case Control.LATER:
            return output * _OFF if call else output
        case Control.CARD:
            return output * _OFF if rank else output
        case Control.READ:
            return output + 0 * torch.empty_like(output)


def _is_table(module: nn.Module) -> bool:
    return isinstance(module, nn.Embedding) or "Embedding" in type(module).__name__


def _noting(called: list[str], name: str) -> Callable[[nn.Module, Any, Any], None]:
    def note(module: nn.Module, args: Any, output: Any) -> None:
        local = local_part(output) if isinstance(output, Tensor) else None
        if local is not None and local.is_floating_point() and local.dim() == 3:
            called.append(name)

    return note
