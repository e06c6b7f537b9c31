"""Keys and values as they come out of a cache of narrow codes.

Shape legend: B = sequences, H = heads, T = keys, D = channels of a head, * = B and H, flat or not.
"""

from collections.abc import Sequence
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
    """Which tokens a scale is taken from that several share.

    Attributes:
        batch: B, where B and H are one dim; None where that is not known.
        tokens: T, where the spans are of T tokens; 0 for no spans.
        spans: tokens that share a scale, `(start, stop)`; those after the last take its scale. Without any,
            or of another number of keys, all share one.
    """

    batch: int | None = None
    tokens: int = 0
    spans: tuple[tuple[int, int], ...] = ()

    @classmethod
    def ways(cls, batch: int | None, steps: Sequence[StepTokens]) -> tuple["Sharing", ...]:
        """Return those of engines: the scale is the first step's, and is kept, or each step has its own."""
        if len(steps) < 2:
            return (cls(batch=batch),)
        spans = tuple((step.start, step.stop) for step in steps)
        return tuple(cls(batch=batch, tokens=spans[-1][1], spans=x) for x in (spans[:1], spans))


def from_cache(
    x: Tensor, fmt: str, scale: float | str | None, *, dim: int, sharing: Sharing | None = None
) -> Tensor:
    """Return keys or values as they come out of a cache.

    Args:
        x: `[*, T, D]` or `[*, D, T]` floating.
        fmt: of the codes, one of `numerics.recipes.CACHES`.
        scale: what they are multiplied by, as of `CacheScale`.
        dim: which dim is D.
        sharing: where a scale is taken from several tokens, from which.

    Returns:
        Float64 of the same shape. Scales and quotients are taken in float32, as devices do, and what is
        larger than the largest code becomes that.

    Raises:
        ValueError: B and H can't be told apart, and a scale is of one of them alone.
    """
    values = x.to(torch.float32)
    largest = _INT8_MAX if fmt == "int8" else FORMATS[fmt].max
    if isinstance(scale, float | int):
        factor = torch.tensor(scale, dtype=torch.float32)
    else:
        turned = values if dim == -1 else values.mT
        factor = _largest(turned, scale, sharing or Sharing()) / largest
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
    flat = sizes.shape
    if sizes.dim() == 3 and sharing.batch is not None:
        sizes = sizes.unflatten(0, (sharing.batch, -1))
    if sizes.dim() != 4 and shared_by != "tensor":
        raise ValueError(f"sequences and heads of {tuple(x.shape)} can't be told apart")
    if shared_by == "token":
        return sizes.amax(1, keepdim=True).expand(sizes.shape).reshape(flat)
    tokens = sizes.shape[-2]
    spans = sharing.spans if sharing.spans and sharing.tokens == tokens else ((0, tokens),)
    over = [d - sizes.dim() for d in range(sizes.dim() - 1) if shared_by == "tensor" or d != 1]
    made = torch.empty_like(sizes)
    for i, (start, stop) in enumerate(spans):
        end = tokens if i == len(spans) - 1 else stop
        made[..., start:end, :] = sizes[..., start:stop, :].amax(over, keepdim=True)
    return made.reshape(flat)
