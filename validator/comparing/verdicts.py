"""The verdict on each pair of stored tensors, where the reference's capture holds the noise of its tensors.

The noise at a tensor is that of everything before it. So a fault that is smaller passes unseen, and the first
tensor beyond its noise may come after the faulty operator; a check with the model judges each operator alone.
"""

from torch import Tensor

from validator.align.edges import is_mask
from validator.align.traces import Edge
from validator.capturing.noise import Noise
from validator.capturing.records import Parameter, RankCapture, TensorRef
from validator.checks.findings import Arm, Evidence, Verdict
from validator.checks.pairs import PairJudge, noise_lambda
from validator.checks.places import real_region
from validator.comparing.records import Gap, PairVerdict
from validator.numerics.formats import FORMATS, Format

__all__ = ["Verdicts"]


class Verdicts:
    """Judges the pairs of one reference.

    Args:
        ref: the reference's capture.
        noise: how its noise was measured.
        elements: how many elements the comparison judges.
        real: `[batch, tokens]` boolean, the positions to judge, or None for all.
    """

    def __init__(self, ref: RankCapture, noise: Noise, *, elements: int, real: Tensor | None) -> None:
        self._multiplier = noise_lambda(elements, noise.runs)
        self._real = real
        self._choice: int | None = None
        calls = {(call.module, call.n): call for call in ref.calls}
        if noise.choice is not None:
            call = calls.get((noise.choice.module, noise.choice.call))
            # A place that is not in the capture may come before all that is.
            moment = None if call is None else call.start if noise.choice.side == "inputs" else call.end
            self._choice = -1 if moment is None else moment

    def judge(self, ref: TensorRef, cand: Edge) -> PairJudge | None:
        """Return what judges a pair as it is read, or None where no noise of use is known."""
        noise = ref.noise
        if noise is None or _is_coarser(cand, noise):
            return None
        fmt, own = _number_format(noise.meta.dtype), _number_format(cand.dtype)
        shape = noise.meta.shape
        dims = cand.dims if len(shape) == len(cand.dims) else (*cand.dims, "")
        return PairJudge(
            noise=noise.blocks(),
            fmt=fmt,
            largest=0.0 if own is None else own.max,
            multiplier=self._multiplier,
            shape=shape,
            dims=dims,
            real=None if self._real is None else real_region(shape, dims, self._real),
        )

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
        judged: tuple[Arm | None, Evidence] | None,
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
        arm, evidence = judged
        if arm is None:
            return PairVerdict(verdict=Verdict.ALIGNED, evidence=evidence)
        is_behind = self._choice is not None and moment >= self._choice
        verdict = Verdict.INCONCLUSIVE if is_behind else Verdict.DIVERGENT
        return PairVerdict(verdict=verdict, arm=arm, evidence=evidence)


_ALIGNED = PairVerdict(verdict=Verdict.ALIGNED)


def _gap(ref: TensorRef, cand: Edge) -> Gap:
    if ref.noise is not None:
        return Gap.COARSER
    return Gap.NO_NOISE if _number_format(ref.meta.dtype) is not None else Gap.CHOICE


def _is_coarser(cand: Edge, noise: TensorRef) -> bool:
    ours, theirs = _number_format(cand.dtype), _number_format(noise.meta.dtype)
    return ours is not None and theirs is not None and ours.precision < theirs.precision


def _number_format(dtype: str) -> Format | None:
    """Return the format of a dtype's numbers, of complex ones that of their parts; None for integers."""
    return FORMATS.get({"complex64": "float32", "complex128": "float64"}.get(dtype, dtype))
