"""What a comparison of two captures says: of each tensor, and of the whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from validator.capturing.noise import Noise
from validator.checks.findings import Arm, Evidence, Finding, Verdict
from validator.comparing.cards import Cards
from validator.numerics.metrics import Metrics

__all__ = ["Comparison", "Figures", "Gap", "Pair", "PairVerdict", "Slice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The index along one dim where the relative error is greatest.

    Attributes:
        dim: which dim of the tensor.
        meaning: `"token"`, `"channel"`, `"head"`, `"expert"`, `"batch"`, or `""`.
        index: the index.
        rel_l2: `||d|| / ||ref||` there.
    """

    dim: int
    meaning: str
    index: int
    rel_l2: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of a pair.

    Attributes:
        metrics: but for those along dims.
        slices: the worst index of each dim.
        ranks: `||d|| / ||ref||` of what each rank holds of a tensor that is sharded along one dim.
    """

    metrics: Metrics
    slices: tuple[Slice, ...] = ()
    ranks: Mapping[int, float] = field(default_factory=dict)


class Gap(StrEnum):
    """Why a tensor that differs is judged by nothing."""

    MASK = "masks are their kernel's own"
    CHOICE = "rounded values decide it, and near ties go either way"
    COMPUTED = "a buffer that each side computes for itself"
    NO_NOISE = "no noise is known of it"
    COARSER = "it has fewer bits than the candidate that the noise is of"
    STATISTICS = "only statistics of it were kept, which prove little"
    PADDING = "NaN or infinities that the reference has not are in padding or in real tokens, no sample tells"

    @property
    def is_open(self) -> bool:
        """Whether nothing else stands in for the verdict, so that the run's is inconclusive."""
        return self in (Gap.NO_NOISE, Gap.COARSER, Gap.STATISTICS, Gap.PADDING)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairVerdict:
    """What the noise says of a pair.

    Attributes:
        verdict: `aligned`; `divergent`; `inconclusive` beyond the noise, but behind a choice that may have
            gone another way; `unchecked` where nothing is said.
        gap: why it is `unchecked`.
        arm: the rule that fired.
        evidence: the figures, where the elements were judged.
        note: what is off, where statistics were judged.
    """

    verdict: Verdict
    gap: Gap | None = None
    arm: Arm | None = None
    evidence: Evidence | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One tensor of both captures, and how far apart its two sides are.

    Attributes:
        module: fqn in the reference's names; `""` is the model itself.
        candidate_module: fqn in the candidate's.
        call: how many calls of this module came before.
        side: `"parameter"`, `"input"` or `"output"`.
        path: where it stands in the inputs or outputs; the name of a parameter.
        rank: the rank that holds the candidate's copy, where copies differ or ranks are compared one by one.
        reference_dtype: the torch name without `torch.`.
        candidate_dtype: the torch name without `torch.`.
        shape: of the tensor.
        metrics: the figures, but for those along dims.
        slices: the worst index of each dim.
        ranks: `||d|| / ||ref||` of what each rank holds of a tensor that is sharded along one dim.
        judged: what the reference's noise says of it, or None where the capture holds no noise.
    """

    module: str
    candidate_module: str
    call: int
    side: str
    path: str
    rank: int | None = None
    reference_dtype: str
    candidate_dtype: str
    shape: tuple[int, ...]
    metrics: Metrics
    slices: tuple[Slice, ...] = ()
    ranks: Mapping[int, float] = field(default_factory=dict)
    judged: PairVerdict | None = None

    @property
    def differs(self) -> bool:
        """Whether any element differs after rounding both sides to the coarser of their formats."""
        return bool(self.metrics.mismatched or self.metrics.class_mismatched)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Every tensor of two captures.

    Attributes:
        reference: path of the reference's capture.
        candidate: path of the candidate's.
        pairs: in execution order, parameters first.
        findings: the pairs that noise can't explain, in that order.
        noise: how the reference's noise was measured, or None where its capture holds none.
        notes: what was found on one side alone, and what was judged by nothing.
        cards: whether what differs moves with a card, or None where the ranks sit on the same ones.
        why_inconclusive: reasons why an absence of findings proves nothing.
    """

    reference: str
    candidate: str
    pairs: tuple[Pair, ...]
    findings: tuple[Finding, ...] = ()
    noise: Noise | None = None
    notes: tuple[str, ...] = ()
    cards: Cards | None = None
    why_inconclusive: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """`divergent`, `inconclusive` or `aligned`."""
        if self.findings:
            return Verdict.DIVERGENT
        return Verdict.INCONCLUSIVE if self.why_inconclusive else Verdict.ALIGNED

    @property
    def first_difference(self) -> Pair | None:
        """The first pair in execution order that differs, or None."""
        return next((pair for pair in self.pairs if pair.differs), None)
