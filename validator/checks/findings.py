"""What the checks say: findings, the judgement of every edge, and the outcome of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from validator.align.traces import StepTokens
from validator.checks.profiles import OutputProfile, Profile
from validator.displayed import Displayed

__all__ = [
    "Arm",
    "Check",
    "EdgeVerdict",
    "Evidence",
    "Finding",
    "Judgement",
    "Outcome",
    "Signature",
    "Unchecked",
    "Unobservable",
    "Verdict",
]


class Verdict(StrEnum):
    """Of an edge (`unchecked` is an edge's alone) or of a run (`inconclusive` is a run's alone)."""

    ALIGNED = "aligned"
    UNDECLARED_PRECISION = "undeclared_precision"
    DIVERGENT = "divergent"
    INCONCLUSIVE = "inconclusive"
    UNCHECKED = "unchecked"


class Check(StrEnum):
    """Which check judged."""

    PARAMETER = "parameter"
    INPUT = "input"
    EXACT = "exact"
    FUNCTION = "function"
    WIRING = "wiring"
    REPLICA = "replica"
    PARTIAL = "partial"
    PAIR = "pair"
    DISTRIBUTION = "distribution"
    MEMORY = "memory"


class Arm(StrEnum):
    """Which rule of the verdict fired (NUMERICS section 5)."""

    EXACT = "EXACT"
    CLASS = "CLASS"
    MAX = "MAX"
    GAIN = "GAIN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """A hypothesis of the kind of fault: what would make the edge agree.

    Attributes:
        kind: such as `"factor"`, `"double_reduction"`, `"permutation"`, `"bias_per_rank"`.
        parameters: such as `{"factor": 2.0}`.
        residual_ulp: root mean square error after the correction, in root mean square ulp, or None where
            nothing was corrected.
    """

    kind: str
    parameters: Mapping[str, Any]
    residual_ulp: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The figures behind a judgement; None where a figure has no meaning.

    Attributes:
        max_over_band: largest |d| as a multiple of what the band allows.
        gain: least-squares gain of the difference on the oracle, and `z`, its distance from 0 in standard
            errors.
        ulp_error_max: largest |d| in ulp of the candidate's format.
        worst_index: index of the worst element, with the oracle's value (`reference`) and the candidate's.
        outside: how many elements are outside the band, of `elements`.
        worst_allowed_ulp: what the band allows at the worst element, in ulp.
    """

    max_over_band: float | None = None
    gain: float | None = None
    z: float | None = None
    ulp_error_max: float | None = None
    worst_index: tuple[int, ...] | None = None
    reference: float | None = None
    candidate: float | None = None
    outside: int | None = None
    elements: int | None = None
    worst_allowed_ulp: float | None = None
    shape: tuple[int, ...] | None = None
    dims: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeVerdict:
    """What was said of which edge: what a judgement and a finding have in common.

    Attributes:
        module: fqn in the reference's names, and `candidate_module` in the candidate's.
        order: place in the order of execution; parameters come before 0.
        into: fqn of the child whose input it is; None for what the module itself gives.
        path: in the inputs or outputs; the name of a parameter.
        call: n-th call of the module.
        rank: the one rank that it is about, or None.
        arm: the rule that fired; None where none did.
        recipe: the recipe behind the verdict; None where nothing is computed.
    """

    module: str
    candidate_module: str
    check: Check
    verdict: Verdict
    order: int
    evidence: Evidence
    into: str | None = None
    path: str = ""
    call: int = 0
    rank: int | None = None
    arm: Arm | None = None
    recipe: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(EdgeVerdict, Displayed):
    """An edge that rounding can't explain, in the JSON schema's words (DESIGN.md).

    Attributes:
        op: aten name of the guilty operator, or None.
        where: the places of the elements outside, by the meaning of the dim.
        step: where several steps were judged as one call, that in which the first element outside is.
    """

    arm: Arm
    summary: str
    op: str | None = None
    where: Mapping[str, Any] = field(default_factory=dict)
    signature: Signature | None = None
    step: StepTokens | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement(EdgeVerdict):
    """What was said of one edge, aligned or not: a row of the frame.

    Attributes:
        smallest_gain: of an aligned edge that rounding explains, the smallest `g` for which `(1 + g) y` on
            the whole edge would have shown under `recipe`; inf where none would. None for other edges.
        profile: what the edge looks like; None where that was not asked for, and where a choice, a parameter,
            copies or a pair were judged.
    """

    dtype: str = ""
    note: str = ""
    smallest_gain: float | None = None
    profile: Profile | None = field(default=None, repr=False)

    def found(self, *, summary: str, **more: Any) -> Finding:
        """Return the finding that this judgement comes to.

        Args:
            summary: what is wrong, in one sentence.
            more: what else is known of the finding, by field; it goes before what was judged.
        """
        judged = {one.name: getattr(self, one.name) for one in fields(EdgeVerdict)}
        return Finding(**{**judged, **more, "summary": summary})


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchecked:
    """A module (or one of its edges) that no check judged, and why."""

    module: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unobservable:
    """A fault that this input could not have shown.

    Attributes:
        module: where the fault would be.
        what: the fault, such as `"epsilon 1e-06 x10"`.
        why: the reason why it leaves no trace.
        propose: the input (or weights) that would show it.
        smallest: the smallest relative change that would have shown, inf for none; None where the fault has
            no size.
    """

    module: str
    what: str
    why: str
    propose: str
    smallest: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Everything that the checks say of a run.

    Attributes:
        verdict: of the run, rolled up as in DESIGN.md.
        findings: in execution order, parameters first.
        judgements: one an edge.
        unobservable: faults that this input could not have shown.
        distribution: end-to-end figures by name, or None where the model has no logits.
        run: metadata of both sides: `{"reference": {...}, "candidate": {...}}`.
        why_inconclusive: reasons, where the verdict is `inconclusive`.
        notes: other things a reader must know (modules that fired on one side alone, ...).
        output: the output distribution, position by position; None where that was not asked for.
    """

    verdict: Verdict
    findings: tuple[Finding, ...]
    judgements: tuple[Judgement, ...]
    unchecked: tuple[Unchecked, ...] = ()
    unobservable: tuple[Unobservable, ...] = ()
    distribution: Mapping[str, Any] | None = None
    run: Mapping[str, Any] = field(default_factory=dict)
    why_inconclusive: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    output: OutputProfile | None = field(default=None, repr=False)
