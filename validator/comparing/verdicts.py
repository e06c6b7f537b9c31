"""The verdict on each pair of stored tensors, where the reference's capture holds the noise of its tensors.

The noise at a tensor is that of everything before it. So a fault that is smaller passes unseen, and the first
tensor beyond its noise may come after the faulty operator; a check with the model judges each operator alone.
"""

import copy
from math import prod

from torch import Tensor

from validator.align.edges import is_mask
from validator.align.traces import Edge, View
from validator.capturing.levels import NOTHING
from validator.capturing.noise import Noise
from validator.capturing.records import Parameter, RankCapture, TensorRef
from validator.checks.findings import Arm, Evidence, Verdict
from validator.checks.pairs import PairJudge, noise_lambda
from validator.checks.places import real_region
from validator.comparing.records import Gap, PairVerdict
from validator.comparing.stored_statistics import (
    STATISTICS_A_TENSOR,
    class_in_words,
    judge_statistics,
    may_overflow,
)
from validator.numerics.formats import FORMATS, Format

__all__ = ["Verdicts"]


class Verdicts:
    """Judges the pairs of one reference.

    Args:
        ref: the reference's capture.
        noise: how its noise was measured.
        elements: how many elements the comparison judges.
        tensors: how many tensors.
    """

    def __init__(self, ref: RankCapture, noise: Noise, *, elements: int, tensors: int = 1) -> None:
        self._multiplier = noise_lambda(elements, noise.runs)
        self._of_statistics = noise_lambda(STATISTICS_A_TENSOR * max(1, tensors), noise.runs)
        self._real: Tensor | None = None
        self._choice: int | None = None
        calls = {(call.module, call.n): call for call in ref.calls}
        if noise.choice is not None:
            call = calls.get((noise.choice.module, noise.choice.call))
            # A place that is not in the capture may come before all that is.
            moment = None if call is None else call.start if noise.choice.side == "inputs" else call.end
            self._choice = -1 if moment is None else moment

    def among(self, real: Tensor | None) -> "Verdicts":
        """Return what judges only these positions, `[batch, tokens]` boolean, or all for None."""
        verdicts = copy.copy(self)
        verdicts._real = real
        return verdicts

    def judge(self, ref: TensorRef, cand: Edge, *, places: Tensor | None = None) -> PairJudge | None:
        """Return what judges a pair as it is read, or None where no noise of use is known.

        Args:
            ref: the reference's tensor.
            cand: the candidate's.
            places: of the elements that are judged, `[K]` in the flat tensor, where these are not all.
        """
        noise = ref.noise
        if noise is None or _is_coarser(cand, noise):
            return None
        fmt, own = _number_format(noise.meta.dtype), _number_format(cand.dtype)
        shape = noise.meta.shape
        dims = cand.dims if len(shape) == len(cand.dims) else (*cand.dims, "")
        real = None if self._real is None else real_region(shape, dims, self._real)
        values = noise.blocks()
        if places is not None:
            values = iter([noise.read().reshape(-1)[places]])
            real = None if real is None else real.reshape(-1)[places]
            shape, dims = (len(places),), ("",)
        return PairJudge(
            noise=values,
            fmt=fmt,
            largest=0.0 if own is None else own.max,
            multiplier=self._multiplier,
            shape=shape,
            dims=dims,
            real=real,
        )

    def judge_statistics(
        self, ref: TensorRef, cand: Edge, view: View
    ) -> tuple[Arm | None, Evidence, str] | None:
        """Judge a tensor by its statistics, or return None where they can't be: they may be of padding."""
        noise = ref.noise
        theirs, ours = ref.meta.statistics, None if cand.statistics is None else cand.statistics(view)
        if noise is None or _is_coarser(cand, noise) or theirs is None or ours is None:
            return None
        if noise.meta.statistics is None or noise.meta.statistics.inf or noise.meta.statistics.nan:
            return None
        fmt = _number_format(noise.meta.dtype)
        if fmt is None or self._real_in(cand) is not None:
            return None
        return judge_statistics(
            ref=theirs,
            cand=ours,
            noise=noise.meta.statistics,
            fmt=fmt,
            multiplier=self._of_statistics,
            of_elements=self._multiplier,
            shape=cand.shape,
            dims=cand.dims,
        )

    def judge_class(
        self, ref: TensorRef, cand: Edge, view: View, nan: Tensor | None = None
    ) -> tuple[Arm | None, Evidence, str] | None:
        """Return what the numbers of NaN and infinities say of a tensor, or None for nothing.

        Statistics count those in padding, which are no fault: there are too many, or one is known to be in
        a real token, or nobody knows.

        Args:
            ref: the reference's tensor.
            cand: the candidate's.
            view: whose copies of it are taken.
            nan: `[n]` places of elements that are known to be NaN, in the flat tensor.

        Returns:
            As `judge_statistics`; a note without a rule where nobody knows.
        """
        real = self._real_in(cand)
        if real is None:
            judged = self.judge_statistics(ref, cand, view)
            return judged if judged is not None and judged[0] is Arm.CLASS else None
        theirs, ours = ref.meta.statistics, None if cand.statistics is None else cand.statistics(view)
        noise = None if ref.noise is None or _is_coarser(cand, ref.noise) else ref.noise
        fmt = None if noise is None else _number_format(noise.meta.dtype)
        if theirs is None or ours is None or noise is None or noise.meta.statistics is None or fmt is None:
            return None
        more = max(abs(ours.nan - theirs.nan), abs(ours.inf - theirs.inf))
        if not more or may_overflow(theirs, noise.meta.statistics, fmt, self._multiplier):
            return None
        evidence = Evidence(shape=tuple(cand.shape), dims=cand.dims, elements=prod(cand.shape))
        is_real = nan is not None and not theirs.nan and bool(real.reshape(-1)[nan].any())
        if is_real or more > int((~real).sum()):
            return Arm.CLASS, evidence, class_in_words(ours)
        return None, evidence, str(Gap.PADDING)

    def _real_in(self, cand: Edge) -> Tensor | None:
        """Return `[*]` boolean, the elements that are of no padding, or None for all."""
        return None if self._real is None else real_region(cand.shape, cand.dims, self._real)

    def of_parameter(self, parameter: Parameter, *, differs: bool) -> PairVerdict:
        """Say what a parameter or buffer is: the reference's, rounded once at most, or another."""
        if not differs:
            return _ALIGNED
        if parameter.kind == "non_persistent_buffer":
            return PairVerdict(verdict=Verdict.UNCHECKED, gap=Gap.COMPUTED)
        return PairVerdict(verdict=Verdict.DIVERGENT, arm=Arm.EXACT)

    def of_edge(
        self,
        ref: TensorRef,
        cand: Edge,
        judged: tuple[Arm | None, Evidence, str] | None,
        *,
        moment: int,
        differs: bool,
    ) -> PairVerdict:
        """Say what a tensor at an edge is.

        Args:
            ref: the reference's.
            cand: the candidate's.
            judged: what `judge` found, or None where it judged nothing.
            moment: when the reference had it, in its sequence of events.
            differs: whether it is another than the reference's, rounded once at most.
        """
        if not differs:
            return _ALIGNED if judged is None else PairVerdict(verdict=Verdict.ALIGNED, evidence=judged[1])
        if is_mask(cand.path):
            return PairVerdict(verdict=Verdict.UNCHECKED, gap=Gap.MASK)
        if judged is None:
            return PairVerdict(verdict=Verdict.UNCHECKED, gap=_gap(ref, cand))
        arm, evidence, note = judged
        if arm is None and NOTHING in (ref.meta.one_in, cand.one_in):
            return PairVerdict(verdict=Verdict.UNCHECKED, gap=Gap.STATISTICS, evidence=evidence)
        if arm is None and note == Gap.PADDING:
            return PairVerdict(verdict=Verdict.UNCHECKED, gap=Gap.PADDING, evidence=evidence)
        if arm is None:
            return PairVerdict(verdict=Verdict.ALIGNED, evidence=evidence)
        is_behind = self._choice is not None and moment >= self._choice
        verdict = Verdict.INCONCLUSIVE if is_behind else Verdict.DIVERGENT
        return PairVerdict(verdict=verdict, arm=arm, evidence=evidence, note=note)


_ALIGNED = PairVerdict(verdict=Verdict.ALIGNED)


def _gap(ref: TensorRef, cand: Edge) -> Gap:
    if ref.noise is not None and NOTHING in (ref.meta.one_in, cand.one_in):
        return Gap.STATISTICS
    if ref.noise is not None:
        return Gap.COARSER
    return Gap.NO_NOISE if _number_format(ref.meta.dtype) is not None else Gap.CHOICE


def _is_coarser(cand: Edge, noise: TensorRef) -> bool:
    ours, theirs = _number_format(cand.dtype), _number_format(noise.meta.dtype)
    return ours is not None and theirs is not None and ours.precision < theirs.precision


def _number_format(dtype: str) -> Format | None:
    """Return the format of a dtype's numbers, of complex ones that of their parts; None for integers."""
    return FORMATS.get({"complex64": "float32", "complex128": "float64"}.get(dtype, dtype))
