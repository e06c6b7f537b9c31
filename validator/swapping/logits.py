"""The logits of a run, put together from all calls of its model, and which of their positions count.

Shape legend: B = sequences, S = tokens of all calls, V = vocabulary.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from validator.capturing.values import bind_arguments, flatten
from validator.errors import MismatchError
from validator.numerics.positions import IGNORED_TARGET

__all__ = ["Logits", "Positions", "follows_text", "logits_of", "positions_of", "root_calls", "stitched"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Logits:
    """What a run returned.

    Attributes:
        values: `[B, S, V]`, on the CPU, in the format in which the run gave them.
        ids: `[B, S]` integer tokens that went in, or None where they were none.
        mask: `[B, S]` boolean, which of them are real, or None for all.
    """

    values: Tensor
    ids: Tensor | None
    mask: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """Where runs are compared.

    Attributes:
        chosen: `[B, S]` boolean.
        places: `(sequence, token)` of each position that is chosen, in order.
        targets: `[N]` the token that follows each, -100 where none does; None without tokens.
        groups: `[N]` the sequence of each.
    """

    chosen: Tensor
    places: tuple[tuple[int, int], ...]
    targets: Tensor | None
    groups: Tensor


def root_calls(model: nn.Module, run: Callable[[], Any]) -> list[tuple[Mapping[str, Any], Any]]:
    """Run a model, and return the arguments and the output of each of its own calls."""
    seen: list[tuple[Mapping[str, Any], Any]] = []

    def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        seen.append((bind_arguments(module, args, kwargs), output))

    with ExitStack() as stack, torch.no_grad():
        stack.callback(model.register_forward_hook(note, with_kwargs=True).remove)
        run()
    return seen


def logits_of(model: nn.Module, run: Callable[[], Any]) -> Logits:
    """Run a model and return its logits.

    Raises:
        MismatchError: it returns none.
    """
    return stitched(root_calls(model, run))


def stitched(calls: list[tuple[Mapping[str, Any], Any]]) -> Logits:
    """Put the logits of several calls one after the other.

    Raises:
        MismatchError: a call returns none, or the calls are not of the same sequences.
    """
    if not calls:
        raise MismatchError("the run never called the model itself, so that there are no logits to compare")
    parts = [_logits(output) for _, output in calls]
    if len({(part.shape[0], part.shape[2]) for part in parts}) > 1:
        shapes = ", ".join(str(list(part.shape)) for part in parts[:4])
        raise MismatchError(
            f"the model's calls returned logits of the shapes {shapes}, which are not of the same sequences "
            "and can't be put one after the other. Feed one batch in inputs()"
        )
    ids = [_tokens(given.get("input_ids"), part) for (given, _), part in zip(calls, parts, strict=True)]
    masks = [_mask(given.get("attention_mask"), part) for (given, _), part in zip(calls, parts, strict=True)]
    return Logits(
        values=torch.cat(parts, dim=1),
        ids=None if any(x is None for x in ids) else torch.cat([x for x in ids if x is not None], dim=1),
        mask=None
        if all(x is None for x in masks)
        else torch.cat(
            [
                torch.ones(part.shape[:2], dtype=torch.bool) if mask is None else mask
                for mask, part in zip(masks, parts, strict=True)
            ],
            dim=1,
        ),
    )


def positions_of(ref: Logits, cand: Logits) -> Positions:
    """Return the positions at which runs of both sides can be compared.

    Text that a run generates itself parts from the reference's where a token flips: from there on the two
    are asked different questions, and nothing is compared.

    Raises:
        MismatchError: the logits have different shapes, or no position is left.
    """
    if ref.values.shape != cand.values.shape:
        raise MismatchError(
            f"the reference's logits are {list(ref.values.shape)} and the candidate's "
            f"{list(cand.values.shape)}; feed both sides the same tokens"
        )
    batch, tokens, vocabulary = ref.values.shape
    chosen = torch.ones(batch, tokens, dtype=torch.bool) if ref.mask is None else ref.mask.clone()
    chosen &= follows_text(ref, cand)
    if not bool(chosen.any()):
        raise MismatchError("no position has the same real tokens before it on both sides")
    targets = None
    if ref.ids is not None and 0 <= int(ref.ids.min()) <= int(ref.ids.max()) < vocabulary:
        following = torch.full(chosen.shape, IGNORED_TARGET, dtype=torch.int64)
        following[:, :-1] = ref.ids[:, 1:].masked_fill(~chosen[:, 1:], IGNORED_TARGET)
        targets = following[chosen]
    return Positions(
        chosen=chosen,
        places=tuple((int(sequence), int(token)) for sequence, token in chosen.nonzero().tolist()),
        targets=targets,
        groups=torch.arange(batch)[:, None].expand(batch, tokens)[chosen],
    )


def follows_text(ref: Logits, run: Logits) -> Tensor:
    """Return `[B, S]` boolean, at which of the reference's positions a run has read the same text so far.

    One that generates may end sooner or later than the reference.
    """
    batch, tokens = ref.values.shape[:2]
    follows = torch.zeros(batch, tokens, dtype=torch.bool)
    common = min(tokens, run.values.shape[1])
    follows[:, :common] = True
    if ref.ids is not None and run.ids is not None and len(ref.ids) == len(run.ids):
        parted = ref.ids[:, :common] != run.ids[:, :common]
        follows[:, :common] = parted.cumsum(dim=1) == 0
    return follows


def _logits(output: Any) -> Tensor:
    leaves = flatten(output)
    named = leaves.get("logits", leaves.get("", leaves.get("0")))
    if isinstance(named, Tensor) and hasattr(named, "full_tensor"):
        named = named.full_tensor()
    if not isinstance(named, Tensor) or named.ndim != 3 or not named.is_floating_point():
        found = ", ".join(path or type(leaf).__name__ for path, leaf in leaves.items()) or "nothing"
        raise MismatchError(
            f"a swap is measured on logits [sequences, tokens, vocabulary], and the model returned {found}"
        )
    return named.detach().to("cpu", copy=True)


def _tokens(given: Any, part: Tensor) -> Tensor | None:
    """Return `[B, S]` the tokens whose logits a call returned: of a prompt it may be the last alone."""
    if not isinstance(given, Tensor) or given.ndim != 2 or given.is_floating_point():
        return None
    batch, tokens = part.shape[:2]
    return given.detach().cpu()[:, -tokens:] if len(given) == batch and given.shape[1] >= tokens else None


def _mask(given: Any, part: Tensor) -> Tensor | None:
    """Return `[B, S]` which tokens of a call are real; a step is given the mask of all tokens before too."""
    if not isinstance(given, Tensor) or given.ndim != 2 or given.shape[0] != part.shape[0]:
        return None
    tokens = part.shape[1]
    return None if given.shape[1] < tokens else given.detach().cpu()[:, -tokens:].to(torch.bool)
