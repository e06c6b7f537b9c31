"""What a hybrid is measured by: one number, greater the further its distribution is from the reference's.

    kl          mean over positions of KL(reference || hybrid), in nats
    kl-max      its greatest value at any position, in nats
    perplexity  change of the perplexity of the inputs' own next tokens, hybrid over reference - 1
    flips       positions whose most probable token is another one
    token:P     how far the margin of the reference's token over the candidate's falls at position P, in
                logits; P is a token of the first sequence, or SEQUENCE,TOKEN. Where all of the margin is
                gone, the token flips

Where the candidate's perplexity is the smaller one, the metric is how far it falls. A run that generates
other text than the reference is measured up to where the two part: behind that it is asked something else.

Shape legend: N = positions, n = those of them that a run shares, V = vocabulary, K = runs.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from validator.errors import UsageError
from validator.numerics.distributions import compare_logits
from validator.numerics.formats import format_of
from validator.numerics.positions import IGNORED_TARGET
from validator.swapping.logits import Logits, Positions, follows_text

__all__ = ["Kind", "Metric", "Scale", "parse_metric"]


class Kind(StrEnum):
    """Which number it is."""

    KL = "kl"
    KL_MAX = "kl-max"
    PERPLEXITY = "perplexity"
    FLIPS = "flips"
    TOKEN = "token"


_UNITS = {
    Kind.KL: "nats, mean over positions",
    Kind.KL_MAX: "nats, at the worst position",
    Kind.PERPLEXITY: "relative change of the perplexity",
    Kind.FLIPS: "positions",
    Kind.TOKEN: "logits of the margin",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A choice of metric.

    Attributes:
        kind: which number.
        position: `(sequence, token)` for `token`, else None.
    """

    kind: Kind
    position: tuple[int, int] | None = None

    @property
    def unit(self) -> str:
        """What a value is in."""
        return _UNITS[self.kind]

    def __str__(self) -> str:
        return self.kind if self.position is None else f"{self.kind}:{self.position[0]},{self.position[1]}"


def parse_metric(text: str) -> Metric:
    """Read `kl`, `kl-max`, `perplexity`, `flips`, `token:TOKEN` or `token:SEQUENCE,TOKEN`.

    Raises:
        UsageError: it is none of them.
    """
    match = re.fullmatch(r"token:(?:(\d+),)?(\d+)", text)
    if match:
        return Metric(kind=Kind.TOKEN, position=(int(match[1] or 0), int(match[2])))
    if text in (kind.value for kind in Kind if kind is not Kind.TOKEN):
        return Metric(kind=Kind(text))
    raise UsageError(
        f"--metric {text!r} is none; there are kl, kl-max, perplexity, flips and token:POSITION, where "
        "POSITION is a token of the first sequence or SEQUENCE,TOKEN"
    )


class Scale:
    """Measures runs against the reference's.

    Args:
        metric: by what.
        ref: the reference's logits.
        cand: those of the whole candidate: they say which token is asked about, and which direction counts.
        positions: where to compare.

    Raises:
        UsageError: the metric does not apply to these runs.
    """

    def __init__(self, metric: Metric, *, ref: Logits, cand: Logits, positions: Positions) -> None:
        self.metric = metric
        self._positions = positions
        self._run = ref
        self._ref = ref.values[positions.chosen]
        self._cand = cand.values[positions.chosen]
        self._sign = 1.0
        self._row, self._pair = -1, (0, 0)
        if metric.kind is Kind.TOKEN:
            self._row, self._pair = self._asked()
        if metric.kind is Kind.PERPLEXITY:
            if positions.targets is None or not bool((positions.targets != IGNORED_TARGET).any()):
                raise UsageError(
                    "--metric perplexity needs input_ids, tokens of the model's vocabulary, in inputs(): "
                    "choose another metric such as kl"
                )
            self._sign = -1.0 if self._signed(cand) < 0 else 1.0

    @property
    def flip_limit(self) -> float | None:
        """The value at which the token flips, for a `token`, else None."""
        return float(self.margins(self._ref[self._row : self._row + 1])) if self._row >= 0 else None

    @property
    def tokens(self) -> tuple[int, int] | None:
        """The reference's token and the candidate's, for a `token`, else None."""
        return self._pair if self._row >= 0 else None

    @property
    def positions(self) -> int:
        """How many positions are compared."""
        return len(self._positions.places)

    def value(self, run: Logits) -> float:
        """Return how far a run is from the reference's, infinite where it has no distribution.

        A `token` behind other text than the reference's says nothing, and is 0.
        """
        return self._sign * self._signed(run)

    def margins(self, logits: Tensor) -> Tensor:
        """Return `[N]` the margin of the reference's token over the candidate's, of `[N, V]` logits."""
        first, second = self._pair
        return logits[:, first].to(torch.float64) - logits[:, second].to(torch.float64)

    def margin_errors(self, runs: Sequence[Logits]) -> Tensor:
        """Return `[K, N]` how far rounding moves the margin of each position's two best tokens.

        At the position that is asked about they are the reference's token and the candidate's. Where a run
        read other text than the reference it is NaN.
        """
        best = self._ref.to(torch.float64).topk(min(2, self._ref.shape[-1]), dim=-1).indices
        best = torch.cat([best, best], dim=-1)[:, :2]
        best[self._row] = torch.tensor(self._pair)
        ref = _margin(self._ref, best)
        errors = torch.full((len(runs), self.positions), torch.nan, dtype=torch.float64)
        for row, run in zip(errors, runs, strict=True):
            shared, logits = self._shared(run)
            row[shared] = _margin(logits, best[shared]) - ref[shared]
        return errors

    @property
    def row(self) -> int:
        """Which of the positions is asked about, for a `token`."""
        return self._row

    def _shared(self, run: Logits) -> tuple[Tensor, Tensor]:
        """Return `[N]` boolean, where a run has read the reference's text so far, and its logits `[n, V]`."""
        shared = self._positions.chosen & follows_text(self._run, run)
        tokens = min(shared.shape[1], run.values.shape[1])
        return shared[self._positions.chosen], run.values[:, :tokens][shared[:, :tokens]]

    def _signed(self, run: Logits) -> float:
        shared, logits = self._shared(run)
        if self.metric.kind is Kind.TOKEN:
            if not shared[self._row]:
                return 0.0
            row = int(shared[: self._row].sum())
            moved = float(
                self.margins(self._ref[self._row : self._row + 1]) - self.margins(logits[row : row + 1])
            )
            return math.inf if math.isnan(moved) else moved
        targets = self._positions.targets
        figures = compare_logits(
            ref=self._ref[shared],
            cand=logits,
            cand_format=format_of(logits.dtype),
            top_k=1,
            groups=self._positions.groups[shared],
            targets=None if targets is None else targets[shared],
        )
        match self.metric.kind:
            case Kind.KL:
                return figures.kl.mean
            case Kind.KL_MAX:
                return figures.kl.max
            case Kind.FLIPS:
                return float(figures.flips.count)
        assert figures.perplexity is not None
        return figures.perplexity.ratio - 1

    def _asked(self) -> tuple[int, tuple[int, int]]:
        assert self.metric.position is not None
        first = self._ref.to(torch.float64).argmax(dim=-1)
        second = self._cand.to(torch.float64).argmax(dim=-1)
        flipped = [
            place
            for place, is_flipped in zip(self._positions.places, (first != second).tolist(), strict=True)
            if is_flipped
        ]
        shown = " ".join(f"{sequence},{token}" for sequence, token in flipped[:8]) or "none"
        shown += f" and {len(flipped) - 8} more" if len(flipped) > 8 else ""
        if self.metric.position not in self._positions.places:
            raise UsageError(
                f"--metric {self.metric}: there is no such position among the {self.positions} that are "
                f"compared; flipped are {shown}"
            )
        row = self._positions.places.index(self.metric.position)
        if self.metric.position not in flipped:
            raise UsageError(
                f"--metric {self.metric}: both sides prefer token {int(first[row])} there; flipped are "
                f"{shown}"
            )
        return row, (int(first[row]), int(second[row]))


def _margin(logits: Tensor, best: Tensor) -> Tensor:
    chosen = logits.to(torch.float64).gather(-1, best)
    return chosen[:, 0] - chosen[:, 1]
