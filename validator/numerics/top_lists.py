"""The top-k log-probabilities that a serving engine prints, checked so that bounds can be built on them.

Shape legend: N = positions, K = entries listed at a position, V = vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from validator.errors import ComparisonError

__all__ = ["ABSENT", "TopLogprobs"]

ABSENT = -1
"""The token of an entry that a shorter row lacks."""

_FLOAT32_TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class TopLogprobs:
    """The greatest log-probabilities of one model at every position.

    Attributes:
        tokens: `[N, K]` integer, no token twice in a row, in any order; `ABSENT` fills shorter rows up.
        logprobs: `[N, K]` floating, natural logarithms; -inf where a token is masked or `ABSENT`.
        top: how many entries of a row are its greatest: a token that is not listed is no likelier than the
            last of these. None says all of them. Engines that append the sampled token to the top k have
            rows of k + 1 entries of which k are the greatest.
        tolerance: how far a printed value may be from that of a normalised distribution, absolute. The
            default 1e-5 is for a log-softmax in float32: three roundings of numbers up to 64 are within 6e-6.
            Four printed decimals are within 5e-5 besides; a bfloat16 between 16 and 32 is within 0.0625.

    Raises:
        ComparisonError: shapes, dtypes or tokens are not legal, or a row's probabilities add up to more than
            1 by more than the tolerance: then they are not log-probabilities.
    """

    tokens: Tensor
    logprobs: Tensor
    top: int | None = None
    tolerance: float = _FLOAT32_TOLERANCE

    def __post_init__(self) -> None:
        """Check that every row can be a part of a distribution."""
        _demand_shapes(self)
        _demand_entries(self)

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[Mapping[int, float]],
        *,
        top: int | None = None,
        tolerance: float = _FLOAT32_TOLERANCE,
    ) -> "TopLogprobs":
        """Gather one mapping of token to log-probability a position, of any lengths.

        Raises:
            ComparisonError: as the class does.
        """
        width = max((len(row) for row in rows), default=0)
        tokens = torch.full((len(rows), width), ABSENT, dtype=torch.int64)
        logprobs = torch.full((len(rows), width), -torch.inf, dtype=torch.float64)
        for at, row in enumerate(rows):
            tokens[at, : len(row)] = torch.tensor(list(row), dtype=torch.int64)
            logprobs[at, : len(row)] = torch.tensor(list(row.values()), dtype=torch.float64)
        return cls(tokens=tokens, logprobs=logprobs, top=top, tolerance=tolerance)

    @classmethod
    def from_logits(cls, logits: Tensor, k: int) -> "TopLogprobs":
        """List the `k` greatest of `[N, V]` logits, for a side of which all are known."""
        greatest = torch.topk(torch.log_softmax(logits.detach().to(torch.float64), dim=-1), k, dim=-1)
        return cls(tokens=greatest.indices, logprobs=greatest.values, tolerance=1e-14)

    @property
    def lengths(self) -> Tensor:
        """`[N]` how many tokens each row lists."""
        return (self.tokens != ABSENT).sum(dim=-1)

    def ranked(self) -> tuple[Tensor, Tensor]:
        """Return `[N, K]` int64 tokens and float64 log-probabilities, greatest first, `ABSENT` last.

        Of equal ones the lower token comes first, as `argmax` chooses among logits.
        """
        by_token = self.tokens.to(torch.int64).sort(dim=-1)
        logprobs = self.logprobs.detach().to(torch.float64).gather(-1, by_token.indices)
        logprobs = logprobs.masked_fill(by_token.values == ABSENT, -torch.inf)
        # Masked tokens are listed, and come before what is not there at all.
        at = (by_token.values == ABSENT).to(torch.int8).sort(dim=-1, stable=True).indices
        tokens, logprobs = by_token.values.gather(-1, at), logprobs.gather(-1, at)
        order = logprobs.sort(dim=-1, descending=True, stable=True)
        return tokens.gather(-1, order.indices), order.values

    def cap(self) -> Tensor:
        """`[N]` float64, the log-probability that no token outside of the list surpasses."""
        _, logprobs = self.ranked()
        greatest = self.lengths if self.top is None else self.lengths.clamp_max(self.top)
        return logprobs.gather(-1, greatest[:, None] - 1).squeeze(-1)


def _demand_shapes(side: TopLogprobs) -> None:
    tokens, logprobs = side.tokens, side.logprobs
    if tokens.ndim != 2 or tokens.shape != logprobs.shape or tokens.numel() == 0:
        raise ComparisonError(
            f"tokens have shape {list(tokens.shape)} and logprobs {list(logprobs.shape)}: both are "
            "[positions, entries], with one position and one entry at least"
        )
    if tokens.dtype.is_floating_point or not logprobs.dtype.is_floating_point:
        raise ComparisonError(
            f"tokens are {tokens.dtype} and logprobs {logprobs.dtype}: give integers and floating numbers"
        )
    if side.top is not None and side.top < 1:
        raise ComparisonError(f"top is {side.top!r}: at least one entry of a row is among its greatest")
    if not 0 <= side.tolerance < 1:
        raise ComparisonError(f"tolerance is {side.tolerance!r}: legal are 0 to 1, in nats")


def _demand_entries(side: TopLogprobs) -> None:
    if bool((side.tokens < ABSENT).any()):
        raise ComparisonError(f"token {int(side.tokens.min())} is no token; {ABSENT} fills shorter rows up")
    tokens, logprobs = side.ranked()
    twice = (tokens.sort(dim=-1).values.diff(dim=-1) == 0) & (tokens.sort(dim=-1).values[:, 1:] != ABSENT)
    if bool(twice.any()):
        raise ComparisonError(
            f"position {_first(twice)} lists a token twice: {tokens[_first(twice)].tolist()}; keep the first "
            "where an engine repeats the sampled token"
        )
    wrong = ~(logprobs[:, :1] > -torch.inf) | logprobs.isnan()
    if bool(wrong.any()):
        raise ComparisonError(
            f"position {_first(wrong)} has log-probabilities {logprobs[_first(wrong)].tolist()}: NaN is "
            "none, and one of them must be finite"
        )
    mass = logprobs.exp().sum(dim=-1, keepdim=True)
    too_much = mass.log() > side.tolerance + 1e-12
    if bool(too_much.any()):
        at = _first(too_much)
        raise ComparisonError(
            f"the probabilities listed at position {at} add up to {float(mass[at]):.9g}, above 1 by more "
            f"than the tolerance {side.tolerance:g}: these are logits, or rounded more coarsely. Give "
            "natural log-probabilities, or the tolerance of their rounding"
        )


def _first(rows: Tensor) -> int:
    return int(rows.any(dim=-1).nonzero()[0])
