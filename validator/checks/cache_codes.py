"""Keys and values as they come out of a cache of narrow codes.

Shape legend: B = sequences, H = heads, T = keys, D = channels of a head, * = B and H, flat or not.
"""

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from validator.align.traces import StepTokens
from validator.numerics.formats import FORMATS
from validator.numerics.rounding import round_nearest

__all__ = ["Sharing", "from_cache"]

_INT8_MAX = 127.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Which keys a scale is taken from that several share, and the format in which it is kept.

    Attributes:
        batch: B, where B and H are one dim; None where that is not known.
        tokens: T, where the spans are of T tokens; 0 for no spans.
        spans: tokens that share a scale, `(start, stop)`; those after the last take its scale. Without any,
            or of another number of keys, all share one.
        is_by_sequence: whether each sequence has scales of its own, as requests have that are not one batch.
        ranks: between how many ranks the heads are split. Each rank takes its scales from its own.
        kept_in: the format of scales.
    """

    batch: int | None = None
    tokens: int = 0
    spans: tuple[tuple[int, int], ...] = ()
    is_by_sequence: bool = False
    ranks: int = 1
    kept_in: torch.dtype = torch.float32

    @classmethod
    def ways(
        cls, shared_by: Collection[object], *, batch: int | None, ranks: int, steps: Sequence[StepTokens]
    ) -> Iterator["Sharing"]:
        """Yield those of engines, likely ones first, with scales in float32.

        A scale is the first step's, and is kept, or each step has its own; it is taken from the whole batch
        or from one sequence, and from the heads of one rank or of all.

        Args:
            shared_by: what shares a scale, as of `CacheScale`, of keys and of values.
            batch: B, or None where it is not known.
            ranks: between how many ranks the heads are split.
            steps: of the run.
        """
        of_tokens = not {"tensor", "head"}.isdisjoint(shared_by)
        of_heads = not {"tensor", "token"}.isdisjoint(shared_by)
        spans: list[tuple[tuple[int, int], ...]] = [()]
        if of_tokens and len(steps) > 1:
            each = tuple((step.start, step.stop) for step in steps)
            spans = [each[:1], each]
        sequences = (False, True) if of_tokens and (batch or 1) > 1 else (False,)
        for by_rank, by_sequence, x in itertools.product(
            dict.fromkeys((ranks, 1)) if of_heads else (1,), sequences, spans
        ):
            tokens = steps[-1].stop if x else 0
            yield cls(batch=batch, tokens=tokens, spans=x, is_by_sequence=by_sequence, ranks=by_rank)


def from_cache(
    x: Tensor, fmt: str, scale: float | str | None, *, dim: int, sharing: Sharing | None = None
) -> Tensor:
    """Return keys or values as they come out of a cache.

    Args:
        x: `[*, T, D]` or `[*, D, T]` floating.
        fmt: of the codes, one of `numerics.recipes.CACHES`.
        scale: what they are multiplied by, as of `CacheScale`.
        dim: which dim is D.
        sharing: how a scale is taken from values.

    Returns:
        Float64 of the same shape. Quotients are taken in float32, as devices do, and what is larger than the
        largest code becomes that.

    Raises:
        ValueError: B and H can't be told apart, and a scale is of one of them alone; or the heads can't be
            split between so many ranks.
    """
    values = x.to(torch.float32)
    largest = _INT8_MAX if fmt == "int8" else FORMATS[fmt].max
    if isinstance(scale, float | int):
        factor = torch.tensor(scale, dtype=torch.float32)
    else:
        turned = values if dim == -1 else values.mT
        sharing = sharing or Sharing()
        sizes = _largest(turned, scale, sharing).to(sharing.kept_in)
        factor = (sizes / largest).to(torch.float32)
        factor = factor.where(factor > 0, 1.0)
        factor = factor if dim == -1 else factor.mT
    quotients = (values / factor).clamp(-largest, largest).to(torch.float64)
    codes = quotients.round() if fmt == "int8" else round_nearest(quotients, FORMATS[fmt])
    return codes * factor.to(torch.float64)


def _largest(x: Tensor, shared_by: str | None, sharing: Sharing) -> Tensor:
    """Return `[*, T, 1]`, the largest size among the values `[*, T, D]` that share a scale."""
    sizes = x.abs().amax(-1, keepdim=True)
    if shared_by is None:
        return sizes
    shape = sizes.shape
    groups = _in_groups(sizes, shared_by, sharing)
    if shared_by == "token":
        return groups.amax(2, keepdim=True).expand(groups.shape).reshape(shape)
    tokens = shape[-2]
    spans = sharing.spans if sharing.spans and sharing.tokens == tokens else ((0, tokens),)
    over = (2, 3) if sharing.is_by_sequence else (0, 2, 3)
    made = torch.empty_like(groups)
    for i, (start, stop) in enumerate(spans):
        end = tokens if i == len(spans) - 1 else stop
        made[..., start:end, :] = groups[..., start:stop, :].amax(over, keepdim=True)
    return made.reshape(shape)


def _in_groups(sizes: Tensor, shared_by: str, sharing: Sharing) -> Tensor:
    """Return `[B, groups, heads, T, 1]`, where the heads of a group share scales."""
    if sizes.dim() == 3 and sharing.batch is not None:
        sizes = sizes.unflatten(0, (sharing.batch, -1))
    if sizes.dim() != 4:
        if shared_by != "tensor" or sharing.is_by_sequence or sharing.ranks > 1:
            raise ValueError(f"sequences and heads of {tuple(sizes.shape[:-1])} can't be told apart")
        return sizes.reshape(1, 1, -1, *sizes.shape[-2:])
    heads = sizes.shape[1]
    # More ranks than heads hold copies of them.
    count = heads if shared_by == "head" else min(sharing.ranks, heads)
    if heads % count:
        raise ValueError(f"{heads} heads can't be split between {count} ranks")
    groups: Tensor = sizes.unflatten(1, (count, -1))
    return groups
