"""Edges: the ranks' tensors at one place, joined into one logical tensor that is read when asked."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from validator.align.traces import Edge, LogicalTensor, View
from validator.capturing.records import Placement, TensorMeta, TensorRef
from validator.errors import LayoutError
from validator.sharding.placements import disagreeing, place
from validator.sharding.plan import Plan
from validator.sharding.stream import can_stream, stream
from validator.sharding.unshard import unshard

__all__ = ["JoinedEdge", "find_views", "join", "join_side"]

DimsOf = Callable[[Sequence[int], str], tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedEdge:
    """An edge, with the plan behind it and what each rank's tensor is."""

    edge: Edge
    plan: Plan
    metas: Mapping[int, TensorMeta]


def join(
    refs: Mapping[int, TensorRef],
    *,
    path: str,
    shape: Sequence[int],
    dims_of: DimsOf,
    declared: Placement | None = None,
) -> JoinedEdge:
    """Join the ranks' tensors into the reference's tensor of `shape`.

    Raises:
        LayoutError: they make up no such tensor.
    """
    metas = {rank: refs[rank].meta for rank in sorted(refs)}
    dtypes = {rank: meta.dtype for rank, meta in metas.items()}
    if len(set(dtypes.values())) > 1:
        raise LayoutError(", ".join(f"rank {rank} is {dtype}" for rank, dtype in dtypes.items()))
    plan = place(metas, shape=shape, declared=declared)
    dims = dims_of(plan.shape, path)
    edge = Edge(
        path=path,
        dtype=dtypes[min(dtypes)],
        shape=plan.shape,
        read=partial(_read, plan=plan, refs=refs, dims=dims),
        disagreeing=disagreeing(plan, metas),
        stream=partial(_stream, plan=plan, refs=refs) if can_stream(plan) else None,
        parts=plan.parts(metas),
        dims=dims,
        checksum=metas[min(metas)].checksum if len(plan.copies) == 1 else None,
    )
    return JoinedEdge(edge=edge, plan=plan, metas=metas)


def join_side(
    *,
    cand: Mapping[int, Mapping[str, Any]],
    ref: Mapping[str, Any],
    dims_of: DimsOf,
    declared: Placement | None = None,
) -> tuple[dict[str, JoinedEdge], dict[str, str]]:
    """Join all inputs, or all outputs, of one call.

    Paths that are no tensor on one side, and kinds of number that differ (a boolean mask and an
    additive one), are left out: how masks are passed is the implementation's choice. The only
    tensors of both sides are the same edge, whatever their paths.

    Args:
        cand: each rank's values by path.
        ref: the reference's values by path.
        dims_of: meaning of the dims of a shape at a path.
        declared: the target's `layout` for this side.

    Returns:
        The edges by path, and why the others could not be joined, by path.
    """
    edges: dict[str, JoinedEdge] = {}
    problems: dict[str, str] = {}
    theirs = _tensors(ref)
    ours = {rank: _tensors(values) for rank, values in cand.items()}
    if len(theirs) == 1:
        # A bare tensor on one side and a tuple of one on the other, or an argument of another name.
        ours = {
            rank: dict(zip(theirs, tensors.values(), strict=True)) if len(tensors) == 1 else tensors
            for rank, tensors in ours.items()
        }
    for path, ref_value in theirs.items():
        refs = {rank: tensors[path] for rank, tensors in ours.items() if path in tensors}
        kinds = {_kind(tensor.meta.dtype) for tensor in refs.values()}
        if kinds != {_kind(ref_value.meta.dtype)}:
            continue
        try:
            edges[path] = join(
                refs, path=path, shape=ref_value.meta.shape, dims_of=dims_of, declared=declared
            )
        except LayoutError as error:
            problems[path] = str(error)
    return edges, problems


def find_views(ranks: Iterable[int], edges: Iterable[JoinedEdge]) -> tuple[View, ...]:
    """Group the ranks so that no two of a group hold copies that differ, lowest ranks first."""
    conflicts: set[tuple[int, int]] = set()
    for joined in edges:
        if not joined.edge.disagreeing:
            continue
        for copies in joined.plan.copies:
            sums = {rank: joined.metas[rank].checksum for rank in copies}
            conflicts |= {(a, b) for a in copies for b in copies if sums[a] != sums[b]}
    views: list[list[int]] = []
    for rank in sorted(ranks):
        for view in views:
            if not any((rank, other) in conflicts for other in view):
                view.append(rank)
                break
        else:
            views.append([rank])
    return tuple(View(ranks=tuple(view)) for view in views)


def _read(view: View, *, plan: Plan, refs: Mapping[int, TensorRef], dims: tuple[str, ...]) -> LogicalTensor:
    data = unshard(plan, lambda rank: refs[rank].read(), prefer=view.ranks)
    return LogicalTensor(data=data, parts=plan.parts(view.ranks), dims=dims)


def _stream(view: View, *, plan: Plan, refs: Mapping[int, TensorRef]) -> Iterator[torch.Tensor]:
    return stream(plan, lambda rank: refs[rank].blocks(), prefer=view.ranks)


def _tensors(values: Mapping[str, Any]) -> dict[str, TensorRef]:
    return {path: value for path, value in values.items() if isinstance(value, TensorRef)}


def _kind(dtype: str) -> str:
    for kind in ("complex", "float", "bool"):
        if kind in dtype:
            return kind
    return "int"
