"""What a search among hybrids found."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from validator.checks.findings import Verdict
from validator.swapping.metrics import Metric
from validator.swapping.search import SmallestSet

__all__ = ["Level", "Swap"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One search, with parts of one size.

    Attributes:
        name: `"blocks"`, `"modules"` or `"options"`.
        tried: what was told apart.
        found: a smallest set of them that explains the value; an empty one where the baseline does.
        runs: how many hybrids were run for it.
    """

    name: str
    tried: tuple[str, ...]
    found: SmallestSet[str]
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """What explains a candidate's divergence.

    Attributes:
        verdict: `aligned` where noise explains the whole, or it is below the limit; `divergent` where it does
            not; `inconclusive` where what noise explains is not known and no limit was given.
        source: the target.
        metric: by what runs were measured.
        tokens: the reference's token and the candidate's, for a flipped one.
        positions: how many positions were compared.
        candidate: value of the whole candidate.
        baseline: value of no part, or no option.
        noise: the value up to which noise explains it, or None where that is not known.
        limit: the value that a set has to reach; None where there was nothing to explain, unless the user
            gave it.
        levels: the searches, coarse ones first.
        unswappable: why a module that both sides have could not be told apart, by name.
        notes: other things a reader must know.
    """

    verdict: Verdict
    source: str
    metric: Metric
    tokens: tuple[int, int] | None
    positions: int
    candidate: float
    baseline: float
    noise: float | None
    limit: float | None
    levels: tuple[Level, ...] = ()
    unswappable: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def runs(self) -> int:
        """How many hybrids were run."""
        return sum(level.runs for level in self.levels)

    @property
    def found(self) -> tuple[str, ...]:
        """The finest set that explains the value, or none."""
        return tuple(member.item for member in self.levels[-1].found.members) if self.levels else ()
