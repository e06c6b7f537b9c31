"""The error of a candidate's logits against position: where it leaves its noise, and whether it grows.

Shape legend: T = tokens, V = vocabulary.
"""

import math
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from validator.errors import MismatchError
from validator.long_context.noise import Band, distance

__all__ = ["LIMIT", "PositionErrors", "position_errors"]

LIMIT = 4.0
"""How many times its noise the error of a position may be. In healthy runs it is 0.7 at the median, and its
logarithms spread by 0.25 (tests/long_context/test_judging.py holds all families to half of it)."""

_STRETCH = 16
_OF_STRETCH = 8
_OF_END = 4
"""Where a router decides, a single position may part by much in healthy runs. Were one in fifty to, eight of
sixteen would by chance in less than one stretch of 1e9, and the last four of a text in one text of 1e6."""

_GROWTH = 1.5
"""How much the error may grow over its noise, from the first position to the last, before it is a trend."""

_BLOCK = 16
_TREND_CONFIDENCE = 0.999


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionErrors:
    """How a candidate's error goes with position.

    Attributes:
        ratio: `[T]` float64, error of each position over its noise; infinite where a logit is not finite on
            one side only.
        outside: the positions whose ratio is over the limit.
        onset: the first position of the error, or None where there is none.
        growth: by how much the ratio is greater at the last position than at the first, along a straight
            line through its logarithms; (low, high) holds it with 99.9% confidence. 1 where there are too
            few positions to tell.
        typical: median ratio before the onset.
        beyond: median ratio from the onset on; that of all positions where there is none.
    """

    ratio: Tensor
    outside: tuple[int, ...]
    onset: int | None
    growth: float
    growth_low: float
    growth_high: float
    typical: float
    beyond: float

    @property
    def grows(self) -> bool:
        """Whether the error grows with position, beyond what the noise does, without leaving it at once."""
        return self.onset is None and self.growth > _GROWTH and self.growth_low > 1.0


def position_errors(*, cand: Tensor, band: Band, limit: float = LIMIT) -> PositionErrors:
    """Compare each position's logits.

    Args:
        cand: `[T, V]` candidate logits of any floating dtype.
        band: the reference's, and their noise.
        limit: see `LIMIT`.

    Raises:
        MismatchError: the two sides have other shapes.
    """
    if cand.shape != band.logits.shape:
        raise MismatchError(
            f"the candidate's logits are {list(cand.shape)} and the reference's {list(band.logits.shape)}: "
            "both must have all of the vocabulary at each token"
        )
    error = distance(cand.double(), band.logits)
    ratio = (error / band.sigma).nan_to_num(nan=math.inf, posinf=math.inf)
    ratio = torch.where(error == 0, 0.0, ratio)
    over = ratio > limit
    onset = _onset(ratio, over, single=not band.has_chosen)
    growth, low, high = _growth(ratio)
    before, after = (ratio, ratio) if onset is None else (ratio[:onset], ratio[onset:])
    return PositionErrors(
        ratio=ratio,
        outside=tuple(over.nonzero().flatten().tolist()),
        onset=onset,
        growth=growth,
        growth_low=low,
        growth_high=high,
        typical=float(before.median()) if len(before) else math.nan,
        beyond=float(after.median()),
    )


def _onset(ratio: Tensor, over: Tensor, *, single: bool) -> int | None:
    """Return the first position over the limit: any, or one that a stretch of such begins with.

    Logits that are not finite are no choice of a router: one position of them is enough.
    """
    found: list[int] = over.nonzero().flatten().tolist()
    for position in found:
        is_enough = single or bool(ratio[position].isinf())
        demanded = 1 if is_enough else max(_OF_END, min(_OF_STRETCH, len(over) - position))
        if int(over[position : position + _STRETCH].sum()) >= demanded:
            return position
    return None


def _growth(ratio: Tensor) -> tuple[float, float, float]:
    """Fit a line through the medians of blocks of positions: neighbours share keys, and so errors."""
    blocks = ratio[: len(ratio) // _BLOCK * _BLOCK].reshape(-1, _BLOCK).median(1).values
    known = (blocks > 0) & blocks.isfinite()
    if int(known.sum()) < 6:
        return 1.0, 1.0, 1.0
    at = (torch.arange(len(blocks), dtype=torch.float64) * _BLOCK)[known]
    slope = stats.theilslopes(blocks[known].log().numpy(), at.numpy(), _TREND_CONFIDENCE)
    length = float(at[-1] - at[0])
    grown, low, high = (math.exp(float(each) * length) for each in (slope[0], slope[2], slope[3]))
    return grown, low, high
