"""Whether errors are of the kind that a model of arithmetic makes, which may sum in another order.

Values differ then, but the size, the spread and the direction of the errors don't.

Shape legend: * = the edge's shape; N = judged elements.
"""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from validator.checks.judge import GAIN_Z, Band, selected_values
from validator.checks.module_code import CodeEdge
from validator.numerics.formats import Format, format_of
from validator.numerics.gain import normal_score
from validator.numerics.rounding import round_nearest
from validator.numerics.ulp import ulp

__all__ = ["SIZE", "UNEVEN", "Elements", "Likeness"]

SIZE = 3.0
"""How much larger or smaller than a model's the errors of a candidate may be that sums in another order.

The error of k terms grows with the root of the number of roundings in a row, of which blocks and trees make
fewer.
"""

UNEVEN = 4.0
"""How many times its median over channels (or rows) the mean square error of one may be."""

MINIMUM_ROWS = 16
"""Below so many values no mean can be told from noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """How a candidate's errors compare with a model's.

    Attributes:
        sizes: ratios of the candidate's to the model's: of root mean squares, of roots of median squares,
            and, where the model's errors have a direction, of the gains and of what these leave.
        unevenness: the largest mean square error of a channel, and of a row, over the median one, less what
            is chance.
        is_steady: whether a channel is off by the same, or by the same share, in all rows.
    """

    sizes: tuple[float, ...]
    unevenness: tuple[float, float]
    is_steady: bool

    @property
    def is_close(self) -> bool:
        """Whether the errors are of one kind."""
        return (
            all(1 / SIZE <= ratio <= SIZE for ratio in self.sizes)
            and max(self.unevenness) <= UNEVEN
            and not self.is_steady
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """The judged elements of an edge, flat.

    Attributes:
        usable: `[*]` boolean, which they are.
        y, c: `[N]` float64, the oracle's values and the candidate's.
        weight: `[N]` float64, one over the variance that a band allows. In units of an ulp the smallest
            values would count for more than all others.
        channels, rows: `[N]` int64, the channel and the row of each.
        fmt: the candidate's format.
    """

    usable: Tensor
    y: Tensor
    c: Tensor
    weight: Tensor
    channels: Tensor
    rows: Tensor
    fmt: Format

    @classmethod
    def of(cls, edge: CodeEdge, *, band: Band, judged: Tensor | None) -> Self:
        """Take the elements of an edge that are finite on both sides.

        Args:
            edge: the edge.
            band: that errors are measured by.
            judged: `[*]` boolean, or None for all.
        """
        cand = edge.cand.data.to(torch.float64)
        fmt = format_of(edge.cand.data.dtype)
        usable = edge.exact.isfinite() & cand.isfinite()
        usable = usable if judged is None else usable & judged
        sigma, bound = (selected_values(x, usable) for x in (band.sigma, band.bound))
        y = edge.exact[usable]
        width = cand.shape[-1] if cand.dim() else 1
        places = usable.reshape(-1).nonzero()[:, 0]
        return cls(
            usable=usable,
            y=y,
            c=cand[usable],
            weight=1 / (ulp(y, fmt).square() / 12 + sigma.square() + bound.square() / 12),
            channels=places % width,
            rows=places // width,
            fmt=fmt,
        )

    def __len__(self) -> int:
        return len(self.y)

    def energy(self, model: Tensor) -> float:
        """Return the weighted squared error that a model `[*]` leaves; inf where it isn't finite."""
        left = float((self.weight * (self.c - model[self.usable]).square()).sum())
        return math.inf if math.isnan(left) else left

    def likeness(self, model: Tensor, *, has_direction: bool) -> Likeness:
        """Compare the candidate's errors with a model's.

        Args:
            model: `[*]` float64.
            has_direction: whether the model's errors make results larger, or smaller, on the whole.
        """
        made = model[self.usable]
        own, modelled = (self.weight * (x - self.y).square() for x in (self.c, made))
        sizes = [_ratio(own.mean(), modelled.mean()), _ratio(own.median(), modelled.median())]
        if has_direction:
            gains = [self.gain_of(x) for x in (self.c, made)]
            left = (
                (self.weight * (x - round_nearest((1 + g) * self.y, self.fmt)).square()).mean()
                for x, g in zip((self.c, made), gains, strict=True)
            )
            sizes += [gains[0] / gains[1] if gains[1] else math.inf, _ratio(*left)]
        shares = own / modelled.mean()
        return Likeness(
            sizes=tuple(sizes),
            unevenness=(_unevenness(shares, self.channels), _unevenness(shares, self.rows)),
            is_steady=not has_direction and (self._has_steady_channels() or self._has_scaled_channels(made)),
        )

    def gain_of(self, values: Tensor) -> float:
        """Return the gain of `[N]` values on the oracle, less 1."""
        total = float((self.weight * self.y.square()).sum())
        return float((self.weight * (values - self.y) * self.y).sum()) / max(total, 1e-300)

    def _has_steady_channels(self) -> bool:
        """Tell whether a channel is off by the same in all rows, as rounding in another order never is."""
        z, _ = self._channel_scores(self.weight.sqrt() * (self.c - self.y))
        return bool((z.abs() > _limit(z)).any())

    def _has_scaled_channels(self, made: Tensor) -> bool:
        """Tell whether a channel is off by the same share in all rows, and by more than those of a model."""
        scale = self.weight * self.y
        z, gains = self._channel_scores(scale * (self.c - self.y))
        _, modelled = self._channel_scores(scale * (made - self.y))
        _, power = self._channel_scores(scale * self.y)
        gains, modelled = (x.abs() / power.clamp_min(1e-300) for x in (gains, modelled))
        largest = float(modelled.max()) if len(modelled) else 0.0
        return bool(((z.abs() > _limit(z)) & (gains > SIZE * largest)).any())

    def _channel_scores(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean of `[N]` in each channel with enough rows, in standard errors, and as it is."""
        width = int(self.channels.max()) + 1
        count = torch.bincount(self.channels, minlength=width).to(torch.float64)
        mean = torch.bincount(self.channels, values, width) / count
        square = torch.bincount(self.channels, values.square(), width) / count
        t = mean / torch.sqrt(((square - mean.square()) / (count - 1)).clamp_min(1e-300))
        enough = count >= MINIMUM_ROWS
        return normal_score(t[enough], count[enough] - 1), mean[enough]


def _unevenness(squares: Tensor, labels: Tensor) -> float:
    """Return how much more error than the median one the worst channel or row has, less what is chance."""
    dense = torch.unique(labels, return_inverse=True)[1]
    size = int(dense.max()) + 1
    count = torch.bincount(dense, minlength=size).to(torch.float64)
    mean = torch.bincount(dense, squares, size) / count
    chance = 12 * math.sqrt(2 / float(count.median()))
    return float(mean.max()) / max(float(mean.median()), 1e-300) - chance


def _limit(z: Tensor) -> float:
    """Return the score that counts where so many channels are tried."""
    return math.sqrt(GAIN_Z**2 + 2 * math.log(max(len(z), 1)))


def _ratio(own: Tensor, modelled: Tensor) -> float:
    return math.sqrt(float(own) / max(float(modelled), 1e-300))
