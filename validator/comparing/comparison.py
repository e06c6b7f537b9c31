"""Compare two captures tensor by tensor, without a model.

Without the model, and without noise in the reference's capture, nothing says how far rounding can carry each
tensor, so figures are all there is: the comparison is aligned where every element is the reference's, rounded
once at most, else inconclusive. With noise each tensor is judged.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from validator.align.traces import Edge, Trace, TraceCall, View
from validator.capturing.manifest import ProofStatus
from validator.capturing.noise import Noise
from validator.capturing.reader import Capture
from validator.capturing.records import Parameter, RankCapture, TensorRef
from validator.checks.findings import Finding, Verdict
from validator.checks.padding import real_of, real_positions
from validator.comparing.cards import judge_cards
from validator.comparing.figures import are_identical, figures
from validator.comparing.findings import open_questions, pair_finding, passed_over, thin_notes, thin_reasons
from validator.comparing.records import Comparison, Pair
from validator.comparing.sides import traces, unmatched
from validator.comparing.thinned import Measured, is_sampled, measure_hashes, measure_thin
from validator.comparing.verdicts import Verdicts
from validator.errors import CaptureError, MismatchError

__all__ = ["NO_NOISE", "compare_captures", "compare_trace", "judge_trace"]

NO_NOISE = "the reference capture holds no propagated noise, so nothing says what rounding explains"

_THREADS = 2  # one reads while another measures; each holds a block of both sides


def compare_captures(
    *,
    ref: Capture,
    cand: Capture,
    names: Mapping[str, str] | None = None,
    layout: Mapping[str, str] | None = None,
    mesh: Mapping[str, int] | None = None,
) -> Comparison:
    """Compare two captures of the same model on the same inputs.

    A sharded candidate is put together first if the reference has one rank. Captures of equally many ranks
    are compared rank by rank.

    Args:
        ref: the reference's capture.
        cand: the candidate's.
        names: fqn pattern of the reference by fqn pattern of the candidate, as a target has it.
        layout: a target's.
        mesh: a target's.

    Raises:
        MismatchError: the captures share no module or no call, or their numbers of ranks don't fit.
        CaptureError: a rank is missing, or a file is damaged.
    """
    pairs: list[Pair] = []
    findings: list[Finding] = []
    notes: list[str] = []
    missed: list[str] = []
    for rank, ours, trace in traces(ref, cand, names=names, layout=layout, mesh=mesh):
        comparer = _Comparer(ours, trace, rank, ref.manifest.noise)
        pairs += comparer.pairs()
        findings += comparer.findings
        missed += comparer.missed
        notes += unmatched(trace)
    if not pairs:
        raise MismatchError(f"{ref.path} and {cand.path} have no tensor in common, so nothing was compared")
    why = [f"{len(missed)} tensors could not be compared: {missed[0]}"] if missed else []
    why += [
        f"looking changed the {side}'s run: {capture.manifest.proof.reason}"
        for side, capture in (("reference", ref), ("candidate", cand))
        if capture.manifest.proof.status is ProofStatus.CHANGED
    ]
    why += thin_reasons(ref, cand)
    notes += thin_notes(ref, cand)
    if ref.manifest.noise is not None:
        why += open_questions(pairs)
        notes += passed_over(pairs)
    elif any(pair.differs for pair in pairs):
        why.append(NO_NOISE)
    return Comparison(
        reference=str(ref.path),
        candidate=str(cand.path),
        pairs=tuple(pairs),
        findings=tuple(findings),
        noise=ref.manifest.noise,
        notes=tuple(dict.fromkeys(notes)),
        cards=judge_cards(ref, cand),
        why_inconclusive=tuple(why),
    )


def compare_trace(*, ref: RankCapture, trace: Trace, noise: Noise | None) -> tuple[Pair, ...]:
    """Compare a candidate's run, in the reference's names, with the reference's capture.

    Args:
        ref: the reference's capture.
        trace: the candidate's run.
        noise: how the noise in the reference's capture was measured, or None where it holds none.

    Raises:
        CaptureError: a file is damaged.
    """
    return tuple(_Comparer(ref, trace, None, noise).pairs())


def judge_trace(
    *, ref: RankCapture, trace: Trace, noise: Noise | None
) -> tuple[tuple[Pair, ...], tuple[Finding, ...], tuple[str, ...]]:
    """Compare and judge the tensors at the calls of a candidate's run, as `compare_trace` does.

    Returns:
        The pairs, the findings among them, and what could not be compared. Parameters are not looked at.
    """
    comparer = _Comparer(ref, replace(trace, parameters={}), None, noise)
    pairs = tuple(comparer.pairs())
    return pairs, tuple(comparer.findings), tuple(comparer.missed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """An edge as one view of the candidate saw it, and the reference's tensor.

    Attributes:
        moment: when the reference had it, in its sequence of events; -1 for a parameter.
    """

    edge: Edge
    ref: TensorRef
    view: View
    call: TraceCall | None
    side: str
    moment: int = -1
    parameter: Parameter | None = None


class _Comparer:
    """Compares a trace with the reference's capture; equal pairs of bits are measured once."""

    def __init__(self, ref: RankCapture, trace: Trace, rank: int | None, noise: Noise | None) -> None:
        self.missed: list[str] = [f"{module}: {why}" for module, why in trace.problems]
        self.findings: list[Finding] = []
        self._ref = ref
        self._trace = trace
        self._rank = rank
        self._jobs = list(self._all_jobs())
        self._verdicts: Verdicts | None = None
        self._real = real_positions(ref)
        if noise is not None:
            elements = sum(prod(job.edge.shape) for job in self._jobs if job.ref.noise is not None)
            self._verdicts = Verdicts(ref, noise, elements=elements, tensors=len(self._jobs))

    def pairs(self) -> Iterator[Pair]:
        """Yield the pairs in execution order, parameters first."""
        measured: dict[tuple[object, ...], Future[Measured]] = {}
        with ThreadPoolExecutor(max_workers=_THREADS) as threads:
            for job in self._jobs:
                if self._identity(job) not in measured:
                    measured[self._identity(job)] = threads.submit(self._measure, job)
            try:
                for job in self._jobs:
                    yield from self._pair(job, measured[self._identity(job)])
            except BaseException:
                threads.shutdown(cancel_futures=True)
                raise

    def _all_jobs(self) -> Iterator[_Job]:
        for name, edge in self._trace.parameters.items():
            parameter = self._ref.parameters[name]
            for view in self._views(edge):
                yield _Job(
                    edge=edge, ref=parameter.ref, view=view, call=None, side="parameter", parameter=parameter
                )
        ours = {(call.module, call.n): call for call in self._ref.calls}
        moments: list[tuple[int, str, TraceCall, Mapping[str, Edge], Mapping[str, Any]]] = []
        for key, call in self._trace.calls.items():
            start, end = ours[key].start, ours[key].end
            moments.append((start, "input", call, call.inputs, ours[key].inputs))
            moments.append((start if end is None else end, "output", call, call.outputs, ours[key].outputs))
        for moment, side, call, edges, values in sorted(moments, key=lambda moment: moment[0]):
            for path, edge in edges.items():
                for view in self._views(edge):
                    yield _Job(edge=edge, ref=values[path], view=view, call=call, side=side, moment=moment)

    def _views(self, edge: Edge) -> tuple[View, ...]:
        return self._trace.views if edge.disagreeing else self._trace.views[:1]

    def _identity(self, job: _Job) -> tuple[object, ...]:
        """Return what decides the figures and the verdict of a pair."""
        # Calls of the model may have other padding.
        root = None if self._real is None or job.call is None else job.call.root
        return (*_identity(job), root)

    def _measure(self, job: _Job) -> Measured:
        is_hashed = job.parameter is not None and (job.parameter.row_hashes or job.edge.row_hashes)
        if is_hashed and job.parameter is not None and not are_identical(job.ref, job.edge):
            return measure_hashes(job.parameter, job.edge, job.view)
        verdicts = self._verdicts
        if verdicts is not None and job.call is not None:
            verdicts = verdicts.among(real_of(job.call, self._real))
        if is_sampled(job.ref, job.edge) and not are_identical(job.ref, job.edge):
            return measure_thin(job.ref, job.edge, job.view, verdicts)
        judge = None
        if verdicts is not None and not are_identical(job.ref, job.edge):
            judge = verdicts.judge(job.ref, job.edge)
        if judge is None:
            return figures(ref=job.ref, cand=job.edge, view=job.view), None
        return figures(ref=job.ref, cand=job.edge, view=job.view, also=judge.add), (*judge.result(), "")

    def _pair(self, job: _Job, future: Future[Measured]) -> Iterator[Pair]:
        edge, call = job.edge, job.call
        try:
            made, judged = future.result()
        except CaptureError as error:
            is_hashed = job.parameter is not None and (job.parameter.row_hashes or edge.row_hashes)
            if not is_hashed and not is_sampled(job.ref, edge):
                raise
            self.missed.append(str(error))
            return
        theirs = self._trace.candidate_parameters[edge.path] if call is None else call.candidate_module
        pair = Pair(
            module=edge.path.rpartition(".")[0] if call is None else call.module,
            candidate_module=theirs.rpartition(".")[0] if call is None else theirs,
            call=0 if call is None else call.n,
            side=job.side,
            path=edge.path,
            rank=job.view.ranks[0] if edge.disagreeing else self._rank,
            reference_dtype=job.ref.meta.dtype,
            candidate_dtype=edge.dtype,
            shape=edge.shape,
            metrics=made.metrics,
            slices=made.slices,
            ranks=made.ranks,
        )
        if self._verdicts is None:
            yield pair
            return
        if job.parameter is not None:
            said = self._verdicts.of_parameter(job.parameter, differs=pair.differs)
        else:
            is_other = pair.differs or (not made.metrics.compared and not are_identical(job.ref, edge))
            said = self._verdicts.of_edge(job.ref, edge, judged, moment=job.moment, differs=is_other)
        if said.verdict is Verdict.DIVERGENT:
            parent = None if call is None or call.parent is None else self._trace.calls.get(call.parent)
            self.findings.append(pair_finding(pair, said, caller=parent, order=job.moment))
        yield replace(pair, judged=said)


def _identity(job: _Job) -> tuple[object, ...]:
    """Return what decides the figures: the bits of both sides, where they are known by a checksum."""
    meta, edge = job.ref.meta, job.edge
    if edge.checksum is None:
        return (id(job),)
    noise = None if job.ref.noise is None else job.ref.noise.meta.checksum
    return (meta.checksum, meta.dtype, noise, edge.checksum, edge.dtype, edge.shape, edge.dims, edge.parts)
