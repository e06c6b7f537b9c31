"""What a capture knows of the noise of its tensors, and what whoever measures it must offer."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from .watch import Place

__all__ = ["MeasuredNoise", "Noise", "NoiseSource"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How the noise of a capture was measured.

    Attributes:
        runs: how many stochastic runs.
        recipe: name of what they were allowed to round.
        dtype: of the candidate that they stand for, the torch name without `torch.`; None for the
            reference's.
        choice: the first place behind a choice that rounded values decided, or None. From there on two
            healthy runs may part for good.
        unknown: operators of whose rounding nothing is known; there is no noise behind them.
    """

    runs: int
    recipe: str
    dtype: str | None
    choice: Place | None = None
    unknown: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Noise":
        """Read what `asdict` gave, as a manifest keeps it.

        Raises:
            ValueError, KeyError, TypeError: it is nothing of the kind.
        """
        choice, dtype = fields["choice"], fields["dtype"]
        return cls(
            runs=int(fields["runs"]),
            recipe=str(fields["recipe"]),
            dtype=None if dtype is None else str(dtype),
            choice=None
            if choice is None
            else Place(
                module=str(choice["module"]),
                call=int(choice["call"]),
                side=str(choice["side"]),
                path=str(choice["path"]),
            ),
            unknown=tuple(str(name) for name in fields["unknown"]),
        )


class MeasuredNoise(Protocol):
    """Noise that was measured."""

    @property
    def description(self) -> Noise:
        """How it was measured."""

    def noise(self) -> Iterator[tuple[Place, torch.Tensor]]:
        """Yield the standard deviation at each place that has one, in the candidate's dtype there."""


NoiseSource = Callable[[Callable[[str, int], bool], Path], AbstractContextManager[MeasuredNoise]]
"""Measures noise when it is entered: of the calls, by module and number, that the first argument keeps; what
memory need not hold goes to the folder that is the second."""
