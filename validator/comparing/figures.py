"""The figures of a pair of stored tensors: in one pass over both, or from their checksums alone."""

import math
from collections.abc import Callable
from dataclasses import replace
from math import prod

from torch import Tensor

from validator.align.traces import Edge, View
from validator.capturing.records import TensorMeta, TensorRef
from validator.comparing.records import Figures, Slice
from validator.numerics.formats import FORMATS
from validator.numerics.metrics import Metrics, measure_blocks

__all__ = ["are_identical", "figures"]


def are_identical(ref: TensorRef, cand: Edge) -> bool:
    """Say whether checksums show that both sides have the same bits."""
    meta = ref.meta
    return (meta.checksum, meta.dtype, meta.shape) == (cand.checksum, cand.dtype, cand.shape)


def figures(
    *, ref: TensorRef, cand: Edge, view: View, also: Callable[[Tensor, Tensor], None] | None = None
) -> Figures:
    """Measure a pair. Bits that a checksum shows to be equal are not read.

    Args:
        ref: the reference's tensor.
        cand: the candidate's.
        view: whose copies of it are taken.
        also: called with each pair of blocks that is read, as by `measure_blocks`.

    Raises:
        CaptureError: values are not stored, or a file is damaged.
    """
    if are_identical(ref, cand):
        return Figures(metrics=_identical(ref.meta))
    metrics = measure_blocks(ref=ref.blocks(), cand=cand.blocks(view), shape=cand.shape, also=also)
    return Figures(
        metrics=replace(metrics, dims=()), slices=_slices(metrics, cand.dims), ranks=_by_rank(metrics, cand)
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
