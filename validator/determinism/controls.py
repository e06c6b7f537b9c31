"""Controls: faults that are planted in a healthy candidate to prove that a level would show them.

Shape legend: * = any further dims.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from validator.capturing.copies import local_part

__all__ = ["JUDGED", "Control", "planted", "site_of"]


class Control(StrEnum):
    """What is planted at one module of the candidate.

    `last_bit`: the last bit of one element of the output is another. No sum in another order makes a smaller
    difference, so that a level which sees this one sees them all. `neighbour`: a sequence's output has a part
    of its neighbour's in the batch. `later`: every run of the model but the first is off, as a chunk at a
    wrong position is. `card`: all ranks but the first are off. `read`: memory is read that nothing was
    written to.
    """

    LAST_BIT = "last_bit"
    NEIGHBOUR = "neighbour"
    LATER = "later"
    CARD = "card"
    READ = "read"


JUDGED = (Control.NEIGHBOUR, Control.CARD)
"""Controls that the oracle must see: of their runs the guilty module alone is captured."""

_OFF = 1 + 2**-4


def site_of(model: nn.Module, run: Callable[[], Any]) -> str | None:
    """Run a model and return a module for controls, or None.

    It has a matrix of its own and is no table; of such modules those are preferred that are called once, and
    then those that return `[B, s, *]`, which every sequence has a part of. It is in the middle of the run.

    Args:
        model: a rank's candidate.
        run: feeds it.
    """
    dims: dict[str, int] = {}
    counts: Counter[str] = Counter()

    def noting(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def note(module: nn.Module, args: Any, output: Any) -> None:
            made = _values(output)
            if made is not None:
                dims.setdefault(name, made.dim())
                counts[name] += 1

        return note

    handles = [
        module.register_forward_hook(noting(name))
        for name, module in model.named_modules()
        if _has_matrix(module)
    ]
    try:
        with torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    ranks = {name: (counts[name] > 1, dim < 3) for name, dim in dims.items()}
    best = [name for name, rank in ranks.items() if rank == min(ranks.values())]
    return best[len(best) // 2] if best else None


@contextmanager
def planted(model: nn.Module, site: str, control: Control, *, rank: int, sequences: int) -> Iterator[None]:
    """Plant a control inside of the block; where the model lacks the module, nothing.

    Args:
        model: a rank's candidate.
        site: fqn of a module, as `site_of` returns it on some rank.
        control: what to plant.
        rank: of this process.
        sequences: B of the batch.
    """
    runs = 0

    def before(module: nn.Module, args: Any) -> None:
        nonlocal runs
        runs += 1

    def after(module: nn.Module, args: Any, output: Any) -> None:
        made = _values(output)
        if made is not None:
            with torch.no_grad():
                fresh = made.clone(memory_format=torch.contiguous_format)
                made.copy_(_spoiled(fresh, control, rank=rank, run=runs - 1, sequences=sequences))

    module = dict(model.named_modules()).get(site)
    handles = [] if module is None else [module.register_forward_hook(after, prepend=True)]
    handles.append(model.register_forward_pre_hook(before))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _spoiled(output: Tensor, control: Control, *, rank: int, run: int, sequences: int) -> Tensor:
    match control:
        case Control.LAST_BIT:
            output.view(torch.uint8).reshape(-1)[:1] ^= 1  # little-endian: the first byte has the last bit
            return output
        case Control.NEIGHBOUR:
            rows = max(len(output) // sequences, 1)  # of a sequence, also where all tokens are one dim
            output[..., 0] += output.roll(rows, 0)[..., 0]
            return output
        case Control.LATER:
            return output * _OFF if run else output
        case Control.CARD:
            return output * _OFF if rank else output
        case Control.READ:
            return output + 0 * torch.empty_like(output)


def _has_matrix(module: nn.Module) -> bool:
    own = module.state_dict().values()  # without tables that are made again, such as those of positions
    is_leaf = next(module.children(), None) is None
    is_table = isinstance(module, nn.Embedding) or "Embedding" in type(module).__name__
    return is_leaf and not is_table and any(isinstance(kept, Tensor) and kept.dim() > 1 for kept in own)


def _values(output: Any) -> Tensor | None:
    """Return this rank's part of the first tensor of an output, if it holds values `[*, channels]`."""
    tensors = (leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor))
    first = next(tensors, None)
    local = None if first is None else local_part(first)
    is_usable = local is not None and local.is_floating_point() and local.dim() > 1 and local.numel() > 0
    return local if is_usable else None
