"""From the values of a judged edge to its profile.

Shape legend: * = the edge's shape.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from validator.align.traces import Part
from validator.checks.edge_values import EdgeValues
from validator.checks.profiles import ULP_EDGES, Line, Profile, Sample, Unit, Window

__all__ = ["BINS", "SAMPLED", "profile_of"]

BINS = 256
"""A longer dim is shown in so many bins."""

SAMPLED = 400
"""So many elements of an edge are kept, the worst among them."""

_WORST = 16
_AROUND = (2, 4)
"""Rows and columns that are shown on either side of the worst element."""


def profile_of(values: EdgeValues, *, sequences: int = 1, head_size: int | None = None) -> Profile:
    """Return what an edge looks like.

    Args:
        values: of the edge.
        sequences: so many follow each other in its first dim, which are to be told apart.
        head_size: channels of a head, where its channels are those of heads.
    """
    is_exact = values.is_exact
    unit = Unit.BAND if not is_exact else Unit.ULP if values.ulp is not None else Unit.DIFFERENCE
    error = values.error()
    lines = []
    if error.numel():
        lines = [*_over_dims(error, values.dims, sequences, head_size), *_over_ranks(error, values.parts)]
    judged = error[~error.isnan()]
    return Profile(
        unit=unit,
        largest=float(judged.max()) if len(judged) else 0.0,
        rms=float(judged.square().mean().sqrt()) if len(judged) else 0.0,
        lines=tuple(lines),
        ulp_counts=_histogram(values),
        sample=_sample(values, error),
        window=_window(values, error),
    )


def _over_dims(error: Tensor, dims: Sequence[str], sequences: int, head_size: int | None) -> Iterator[Line]:
    """Reduce the error to each dim of more than one place, and to the parts that a dim is made of."""
    for dim, (size, meaning) in enumerate(zip(error.shape, dims, strict=True)):
        axis = meaning if meaning and dims.count(meaning) == 1 else f"dim {dim}"
        if dim == 0 and sequences > 1:
            parts = error.unflatten(0, (sequences, -1))
            yield _along(parts, 0, dim, "batch")
            if parts.shape[1] > 1:
                yield _along(parts, 1, dim, axis)
            continue
        if axis == "channel" and head_size and size % head_size == 0 and size > head_size:
            yield _along(error.unflatten(dim, (-1, head_size)), dim, dim, "head")
        if size > 1:
            yield _along(error, dim, dim, axis)


def _along(error: Tensor, over: int, dim: int, axis: str) -> Line:
    """Reduce the error to one of its dims, and that to bins.

    Args:
        error: of the edge, a dim of which may be split.
        over: the dim of `error`.
        dim: the dim of the edge that it is, or is a part of.
        axis: what it is called.
    """
    size = error.shape[over]
    width = math.ceil(size / BINS)
    starts = range(0, size, width)
    rows = error.movedim(over, 0).reshape(size, -1)
    figures = (
        (rows.nan_to_num(-1.0, posinf=math.inf).amax(1), -1.0),
        (rows.square().nansum(1), 0.0),
        ((~rows.isnan()).sum(1), 0),
    )
    spare = len(starts) * width - size
    largest, squares, count = (
        pad(figure, (0, spare), value=fill).reshape(len(starts), width) for figure, fill in figures
    )
    total = count.sum(1)
    return Line(
        axis=axis,
        dim=dim,
        size=size,
        starts=starts,
        largest=largest.amax(1).masked_fill(total == 0, math.nan).tolist(),
        rms=(squares.sum(1) / total).sqrt().tolist(),
        counts=total.tolist(),
    )


def _over_ranks(error: Tensor, parts: Sequence[Part]) -> list[Line]:
    """Reduce the error to the ranks, where they do not all hold the same."""
    boxes: dict[int, list[tuple[slice, ...]]] = {}
    for part in parts:
        boxes.setdefault(part.rank, []).append(tuple(slice(*span) for span in part.box))
    if len({tuple(map(str, held)) for held in boxes.values()}) < 2:
        return []
    ranks = sorted(boxes)
    largest, rms, counts = [], [], []
    for rank in ranks:
        held = torch.cat([error[box].reshape(-1) for box in boxes[rank]])
        held = held[~held.isnan()]
        largest.append(float(held.max()) if len(held) else math.nan)
        rms.append(float(held.square().mean().sqrt()))
        counts.append(len(held))
    return [
        Line(
            axis="rank",
            dim=None,
            size=len(ranks),
            starts=ranks,
            largest=largest,
            rms=rms,
            counts=counts,
        )
    ]


def _histogram(values: EdgeValues) -> list[int]:
    if values.ulp is None:
        return []
    signed = (values.cand - values.exact) / values.ulp
    signed = torch.where(values.cand == values.exact, 0.0, signed)
    signed = signed[signed.isfinite() & values.is_judged() & ~values.is_other_class]
    # By size and by sign, so that an error and its negative are in bins that mirror each other.
    steps = torch.tensor([edge for edge in ULP_EDGES if edge > 0], dtype=torch.float64)
    size = torch.bucketize(signed.abs(), steps, right=True) + 1
    bins = len(steps) + 1 + signed.sign().to(torch.int64) * size
    counts: list[int] = torch.bincount(bins, minlength=len(ULP_EDGES) + 2).tolist()
    return counts


def _sample(values: EdgeValues, error: Tensor) -> Sample:
    flat = error.reshape(-1)
    judged = (~flat.isnan()).nonzero()[:, 0]
    worst = flat.nan_to_num(-1.0, posinf=math.inf).topk(min(_WORST, len(judged))).indices.flip(0)
    random = torch.Generator().manual_seed(0)
    if len(judged) > SAMPLED:
        # Not every n-th element: channels repeat with a period.
        judged = judged[torch.randint(len(judged), (SAMPLED - _WORST,), generator=random).unique()]
    # In no order but for the worst: the last part of a sample is a sample as well.
    judged = judged[torch.randperm(len(judged), generator=random)]
    kept = torch.cat([judged[~torch.isin(judged, worst)], worst])
    return Sample(
        oracle=values.exact.reshape(-1)[kept].tolist(),
        candidate=values.cand.reshape(-1)[kept].tolist(),
        error=flat[kept].tolist(),
    )


def _window(values: EdgeValues, error: Tensor) -> Window | None:
    if bool(error.isnan().all()):
        return None
    worst = torch.unravel_index(error.nan_to_num(-1.0, posinf=math.inf).argmax(), error.shape)
    place = tuple(int(index) for index in worst)
    spans = [slice(index, index + 1) for index in place]
    for dim, around in zip((-2, -1), _AROUND, strict=True):
        if len(place) >= -dim:
            spans[dim] = slice(max(0, place[dim] - around), place[dim] + around + 1)
    shown = [x[tuple(spans)] for x in (values.exact, values.cand, values.allowed)]
    columns = shown[0].shape[-1] if place else 1
    oracle, candidate, allowed = (x.reshape(-1, columns).to(torch.float64).tolist() for x in shown)
    return Window(
        start=tuple(span.start for span in spans),
        worst=place,
        oracle=oracle,
        candidate=candidate,
        allowed=allowed,
    )
