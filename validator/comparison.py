"""Compare two captures tensor by tensor, without a model.

Without the model nothing says how far rounding can carry each tensor, so figures are all there is: the
comparison is aligned where every element is the reference's, rounded once at most, else inconclusive.
"""

import math
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from validator.align.builder import build_trace
from validator.align.traces import Edge, Trace, TraceCall, View
from validator.capturing.reader import Capture
from validator.capturing.records import RankCapture, TensorMeta, TensorRef
from validator.checks.findings import Verdict
from validator.errors import CaptureError, MismatchError
from validator.numerics.formats import FORMATS
from validator.numerics.metrics import Metrics, measure_blocks

__all__ = ["NO_NOISE", "Comparison", "Pair", "Slice", "compare_captures"]

NO_NOISE = "the reference capture holds no propagated noise, so nothing says what rounding explains"

_THREADS = 2  # one reads while another measures; each holds a block of both sides


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
        notes: what was found on one side alone.
        why_inconclusive: reasons; empty where the verdict is `aligned`.
    """

    reference: str
    candidate: str
    pairs: tuple[Pair, ...]
    notes: tuple[str, ...] = ()
    why_inconclusive: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """`aligned` or `inconclusive`."""
        return Verdict.INCONCLUSIVE if self.why_inconclusive else Verdict.ALIGNED

    @property
    def first_difference(self) -> Pair | None:
        """The first pair in execution order that differs, or None."""
        return next((pair for pair in self.pairs if pair.differs), None)


def compare_captures(*, ref: Capture, cand: Capture) -> Comparison:
    """Compare two captures of the same model on the same inputs.

    A sharded candidate is put together first if the reference has one rank. Captures of equally many ranks
    are compared rank by rank.

    Raises:
        MismatchError: the captures share no module or no call, or their numbers of ranks don't fit.
        CaptureError: a rank is missing, or a file is damaged.
    """
    pairs: list[Pair] = []
    notes: list[str] = []
    missed: list[str] = []
    for rank, ours, trace in _traces(ref, cand):
        comparer = _Comparer(ours, trace, rank)
        pairs += comparer.pairs()
        missed += comparer.missed
        notes += _unmatched(trace)
    if not pairs:
        raise MismatchError(f"{ref.path} and {cand.path} have no tensor in common, so nothing was compared")
    why = [f"{len(missed)} tensors could not be compared: {missed[0]}"] if missed else []
    if any(pair.differs for pair in pairs):
        why.append(NO_NOISE)
    return Comparison(
        reference=str(ref.path),
        candidate=str(cand.path),
        pairs=tuple(pairs),
        notes=tuple(dict.fromkeys(notes)),
        why_inconclusive=tuple(why),
    )


_Figures = tuple[Metrics, tuple[Slice, ...], dict[int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """An edge as one view of the candidate saw it, and the reference's tensor."""

    edge: Edge
    ref: TensorRef
    view: View
    call: TraceCall | None
    side: str
    hashes: tuple[str, ...] | None = None


class _Comparer:
    """Compares a trace with the reference's capture; equal pairs of bits are measured once."""

    def __init__(self, ref: RankCapture, trace: Trace, rank: int | None) -> None:
        self.missed: list[str] = [f"{module}: {why}" for module, why in trace.problems]
        self._ref = ref
        self._trace = trace
        self._rank = rank

    def pairs(self) -> Iterator[Pair]:
        """Yield the pairs in execution order, parameters first."""
        jobs = list(self._jobs())
        measured: dict[tuple[object, ...], Future[_Figures]] = {}
        with ThreadPoolExecutor(max_workers=_THREADS) as threads:
            for job in jobs:
                if _identity(job) not in measured:
                    measured[_identity(job)] = threads.submit(_figures, job)
            try:
                for job in jobs:
                    yield from self._pair(job, measured[_identity(job)])
            except BaseException:
                threads.shutdown(cancel_futures=True)
                raise

    def _jobs(self) -> Iterator[_Job]:
        for name, edge in self._trace.parameters.items():
            parameter = self._ref.parameters[name]
            for view in self._views(edge):
                yield _Job(
                    edge=edge,
                    ref=parameter.ref,
                    view=view,
                    call=None,
                    side="parameter",
                    hashes=parameter.row_hashes,
                )
        ours = {(call.module, call.n): call for call in self._ref.calls}
        moments: list[tuple[int, str, TraceCall, Mapping[str, Edge], Mapping[str, Any]]] = []
        for key, call in self._trace.calls.items():
            start, end = ours[key].start, ours[key].end
            moments.append((start, "input", call, call.inputs, ours[key].inputs))
            moments.append((start if end is None else end, "output", call, call.outputs, ours[key].outputs))
        for _, side, call, edges, values in sorted(moments, key=lambda moment: moment[0]):
            for path, edge in edges.items():
                for view in self._views(edge):
                    yield _Job(edge=edge, ref=values[path], view=view, call=call, side=side)

    def _views(self, edge: Edge) -> tuple[View, ...]:
        return self._trace.views if edge.disagreeing else self._trace.views[:1]

    def _pair(self, job: _Job, future: Future[_Figures]) -> Iterator[Pair]:
        edge, call = job.edge, job.call
        try:
            metrics, slices, ranks = future.result()
        except CaptureError as error:
            if job.hashes is None:
                raise
            self.missed.append(str(error))
            return
        theirs = self._trace.candidate_parameters[edge.path] if call is None else call.candidate_module
        yield Pair(
            module=edge.path.rpartition(".")[0] if call is None else call.module,
            candidate_module=theirs.rpartition(".")[0] if call is None else theirs,
            call=0 if call is None else call.n,
            side=job.side,
            path=edge.path,
            rank=job.view.ranks[0] if edge.disagreeing else self._rank,
            reference_dtype=job.ref.meta.dtype,
            candidate_dtype=edge.dtype,
            shape=edge.shape,
            metrics=metrics,
            slices=slices,
            ranks=ranks,
        )


def _identity(job: _Job) -> tuple[object, ...]:
    """Return what decides the figures: the bits of both sides, where they are known by a checksum."""
    meta, edge = job.ref.meta, job.edge
    if edge.checksum is None:
        return (id(job),)
    return (meta.checksum, meta.dtype, edge.checksum, edge.dtype, edge.shape, edge.dims, edge.parts)


def _figures(job: _Job) -> _Figures:
    meta, edge = job.ref.meta, job.edge
    if (meta.checksum, meta.dtype, meta.shape) == (edge.checksum, edge.dtype, edge.shape):
        return _identical(meta), (), {}
    metrics = measure_blocks(ref=job.ref.blocks(), cand=edge.blocks(job.view), shape=edge.shape)
    return replace(metrics, dims=()), _slices(metrics, edge.dims), _by_rank(metrics, edge)


def _traces(ref: Capture, cand: Capture) -> Iterator[tuple[int | None, RankCapture, Trace]]:
    for side in (ref, cand):
        missing = [rank for rank in range(side.manifest.world_size) if rank not in side.ranks]
        if missing:
            raise CaptureError(
                f"{side.path} lacks rank {missing[0]} of {side.manifest.world_size}: copy the other ranks' "
                "files into the folder, or capture all ranks."
            )
    if len(ref.ranks) == 1:
        ours = ref.rank(0)
        yield None, ours, build_trace(cand=[cand.rank(rank) for rank in cand.ranks], ref=ours)
    elif ref.ranks == cand.ranks:
        for rank in ref.ranks:
            ours = ref.rank(rank)
            yield rank, ours, build_trace(cand=[_unplaced(cand.rank(rank))], ref=ours)
    else:
        raise MismatchError(
            f"{ref.path} has {len(ref.ranks)} ranks and {cand.path} has {len(cand.ranks)}: compare with a "
            "reference of one rank, or of as many ranks"
        )


def _unplaced(capture: RankCapture) -> RankCapture:
    """Return a rank's capture with its parts of sharded tensors as tensors of their own."""

    def part(value: object) -> object:
        if not isinstance(value, TensorRef):
            return value
        return replace(value, meta=replace(value.meta, placements=None, mesh=None, global_shape=None))

    def parts(values: Mapping[str, object]) -> dict[str, object]:
        return {path: part(value) for path, value in values.items()}

    return replace(
        capture,
        calls=tuple(
            replace(call, inputs=parts(call.inputs), outputs=parts(call.outputs)) for call in capture.calls
        ),
        collectives=(),
        parameters={
            name: replace(parameter, ref=part(parameter.ref))  # type: ignore[arg-type]
            for name, parameter in capture.parameters.items()
        },
    )


def _identical(meta: TensorMeta) -> Metrics:
    """Return what measuring a tensor against itself gives, without reading it.

    Where no statistics were stored (complex numbers, parameters known by their hashes) only the counts are
    known.
    """
    known, elements = meta.statistics, prod(meta.shape)
    if meta.dtype not in FORMATS or known is None:
        return Metrics(elements=elements, compared=elements)
    finite = elements - known.nan - known.inf
    counts = Metrics(
        elements=elements,
        compared=finite,
        nan_reference=known.nan,
        nan_candidate=known.nan,
        inf_reference=known.inf,
        inf_candidate=known.inf,
        steps_format=meta.dtype,
    )
    if finite == 0:
        return counts
    is_zero = known.rms == 0
    return replace(
        counts,
        max_abs=0.0,
        mean_abs=0.0,
        max_rel=0.0,
        rel_l2=0.0,
        rms=0.0,
        bias=0.0,
        gain=math.nan if is_zero else 0.0,
        cosine=math.nan if is_zero else 1.0,
        pcc=math.nan if known.min == known.max else 1.0,
        snr_db=math.nan if is_zero else math.inf,
        ulp_steps_max=0,
        ulp_steps_p50=0,
        ulp_steps_p99=0,
        ulp_steps_p999=0,
        ulp_steps_histogram=(finite,),
        mere=0.0,
        mare=0.0,
        within_0p1_percent=1.0,
    )


def _slices(metrics: Metrics, dims: tuple[str, ...]) -> tuple[Slice, ...]:
    worst = ((errors, errors.worst) for errors in metrics.dims)
    return tuple(
        Slice(
            dim=errors.dim,
            meaning=dims[errors.dim] if dims else "",
            index=index,
            rel_l2=float(errors.rel_l2[index]),
        )
        for errors, index in worst
    )


def _by_rank(metrics: Metrics, edge: Edge) -> dict[int, float]:
    along = {errors.dim: errors for errors in metrics.dims}
    shares = {}
    for part in edge.parts:
        cut = [
            dim
            for dim, ((start, stop), size) in enumerate(zip(part.box, edge.shape, strict=True))
            if stop - start < size
        ]
        if len(cut) == 1 and cut[0] in along:
            shares[part.rank] = along[cut[0]].over(*part.box[cut[0]])
    return shares


def _unmatched(trace: Trace) -> list[str]:
    names = (
        ("modules", "reference", trace.unmatched_reference),
        ("modules", "candidate", trace.unmatched_candidate),
        ("parameters", "reference", trace.unmatched_parameters[0]),
        ("parameters", "candidate", trace.unmatched_parameters[1]),
    )
    return [
        f"{len(found)} {kind} of the {side} have no partner, such as {found[0]!r}"
        for kind, side, found in names
        if found
    ]
