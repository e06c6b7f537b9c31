"""The path that a search took: its steps, what each cost, and what it ends with."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from validator.checks.findings import Finding, Judgement, Outcome

__all__ = ["Bisection", "Claim", "Cost", "Step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a search.

    Attributes:
        name: `"boundaries"`, `"functions"`, `"inside"`, `"sweep"`, `"operators"` or `"reproducer"`.
        modules: what was looked at, in the reference's names: blocks, or one module.
        captured: how many modules were captured for it.
        runs: candidate runs that it took; 0 where a stored capture held what it needs.
        size_bytes: of the tensors captured for it.
        verdict: what it came to, in a few words.
    """

    name: str
    modules: tuple[str, ...]
    captured: int
    runs: int
    size_bytes: int
    verdict: str

    @property
    def extent(self) -> str:
        """The first module and the last."""
        return " to ".join(dict.fromkeys((*self.modules[:1], *self.modules[-1:]))) or "the model"

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self) | {"modules": list(self.modules)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Step":
        """Read what `to_json` gave."""
        return cls(**{**fields, "modules": tuple(fields["modules"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a search cost, beside what one capture of everything would have.

    Attributes:
        runs: candidate runs.
        size_bytes: of all tensors captured.
        largest_bytes: of those of the largest step: so much is on the disk at a time.
        full_bytes: of a capture of everything, estimated from the reference's tensors and the candidate's
            dtype.
    """

    runs: int
    size_bytes: int
    largest_bytes: int
    full_bytes: int

    @classmethod
    def of(cls, steps: Sequence[Step], full_bytes: int) -> "Cost":
        """Add up the steps."""
        sizes = [step.size_bytes for step in steps]
        return cls(
            runs=sum(step.runs for step in steps),
            size_bytes=sum(sizes),
            largest_bytes=max(sizes, default=0),
            full_bytes=full_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What was verified of the first finding, on the candidate's own inputs.

    Attributes:
        finding: the guilty edge.
        before: the judgement of the last edge before it in execution order; None where it is the first edge
            that was judged.
        inside: how many blocks before it had every edge judged.
        as_functions: how many others before it were judged as one function each.
    """

    finding: Finding
    before: Judgement | None
    inside: int = 0
    as_functions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisection:
    """The end of a search.

    Attributes:
        outcome: what the checks say of all that was looked at.
        path: the steps taken, in order.
        cost: of all of them.
        claim: of the first finding; None where there is none.
    """

    outcome: Outcome
    path: tuple[Step, ...]
    cost: Cost
    claim: Claim | None = None
