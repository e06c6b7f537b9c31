"""What blocks returned, beside the noise that rounding carries to it through the whole model."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from validator.align.traces import Trace
from validator.bisecting.candidates import Captured
from validator.bisecting.search import Side
from validator.bisecting.storing import finding_from_json, finding_to_json
from validator.bisecting.survey import Survey
from validator.capturing.reader import Capture
from validator.capturing.records import TensorRef
from validator.checks.findings import Finding, Verdict
from validator.comparing.comparison import compare_trace
from validator.comparing.findings import pair_finding
from validator.comparing.records import Pair

__all__ = ["Boundary", "boundaries_of", "usual_dtype"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """What a block returned in one of its calls, beside what noise allows.

    Attributes:
        block: in the reference's names.
        side: where it lies.
        finding: what says that it is outside, if it is.
    """

    block: str
    side: Side
    finding: Finding | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        found = None if self.finding is None else finding_to_json(self.finding)
        return {"block": self.block, "side": self.side.value, "finding": found}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Boundary":
        """Read what `to_json` gave."""
        found = fields["finding"]
        return cls(
            block=fields["block"],
            side=Side(fields["side"]),
            finding=None if found is None else finding_from_json(found),
        )


def boundaries_of(
    *, ref: Capture, trace: Trace, survey: Survey, blocks: Sequence[str]
) -> tuple[Boundary, ...]:
    """Hold what blocks returned against the noise in the reference's capture, in execution order.

    Args:
        ref: the reference's capture, with noise; without, nothing is held against it.
        trace: the candidate's run.
        survey: of the reference's run.
        blocks: in the reference's names.
    """
    if ref.manifest.noise is None:
        return ()
    wanted = set(blocks)
    found: dict[tuple[str, int], list[Pair]] = {}
    for pair in compare_trace(ref=ref.rank(0), trace=trace, noise=ref.manifest.noise):
        if pair.module in wanted and pair.side == "output":
            found.setdefault((pair.module, pair.call), []).append(pair)
    ordered = sorted(found, key=lambda key: survey.ends.get(key, 0))
    return tuple(_boundary(key[0], found[key], survey.ends.get(key, 0)) for key in ordered)


def usual_dtype(captured: Captured) -> str | None:
    """Return the dtype in which the candidate stores most parameters, or returns most tensors, or None."""
    parameters = [p.ref.meta.dtype for capture in captured.ranks for p in capture.parameters.values()]
    outputs = [
        value.meta.dtype
        for capture in captured.ranks
        for call in capture.calls
        for value in call.outputs.values()
        if isinstance(value, TensorRef)
    ]
    for dtypes in (parameters, outputs):
        counts = Counter(dtype for dtype in dtypes if dtype in ("float64", "float32", "float16", "bfloat16"))
        if counts:
            return counts.most_common(1)[0][0]
    return None


def _boundary(block: str, pairs: Sequence[Pair], moment: int) -> Boundary:
    verdicts = {pair.judged.verdict: pair for pair in pairs if pair.judged is not None}
    outside = verdicts.get(Verdict.DIVERGENT)
    if outside is not None and outside.judged is not None:
        return Boundary(
            block=block,
            side=Side.OUTSIDE,
            finding=pair_finding(outside, outside.judged, caller=None, order=moment),
        )
    if Verdict.INCONCLUSIVE in verdicts:
        return Boundary(block=block, side=Side.UNCLEAR)
    return Boundary(block=block, side=Side.INSIDE if Verdict.ALIGNED in verdicts else Side.UNKNOWN)
