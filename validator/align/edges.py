"""Edges: the ranks' tensors at one place, joined into one logical tensor that is read when asked."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from validator.align.thinned import WholeStatistics, least_known
from validator.align.traces import Edge, LogicalTensor, View
from validator.capturing.levels import NOTHING
from validator.capturing.records import TensorMeta, TensorRef
from validator.errors import LayoutError
from validator.sharding.inference import Evidence, Habits, role_of
from validator.sharding.layout import Declared
from validator.sharding.placements import disagreeing, odd_one_out, place
from validator.sharding.plan import Plan
from validator.sharding.stream import can_stream, stream
from validator.sharding.unshard import unshard

__all__ = ["JoinedEdge", "JoinedSide", "find_views", "is_mask", "join", "join_side"]

DimsOf = Callable[[Sequence[int], str], tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedEdge:
    """An edge, with the plan behind it, and each rank's tensor with what it is."""

    edge: Edge
    plan: Plan
    metas: Mapping[int, TensorMeta]
    refs: Mapping[int, TensorRef] = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedSide:
    """All inputs, or all outputs, of one call.

    Attributes:
        edges: by the reference's path.
        problems: why what both sides have could not be joined, by the reference's path.
        unpaired: paths of floating tensors that the other side lacks: (of the reference, of the candidate).
    """

    edges: Mapping[str, JoinedEdge]
    problems: Mapping[str, str]
    unpaired: tuple[tuple[str, ...], tuple[str, ...]]


def join(
    refs: Mapping[int, TensorRef],
    *,
    path: str,
    shape: Sequence[int],
    dims_of: DimsOf,
    declared: Declared | None = None,
    ref: TensorRef | None = None,
    name: str = "",
    habits: Habits | None = None,
    side: str = "output",
) -> JoinedEdge:
    """Join the ranks' tensors into the reference's tensor of `shape`.

    Args:
        refs: the ranks' tensors.
        path: of the edge.
        shape: of the logical tensor.
        dims_of: meaning of the dims of a shape at a path.
        declared: the target's `layout`.
        ref: the reference's tensor, whose values may tell how the ranks' are split.
        name: of the edge in the whole model, for `habits`.
        habits: what was found of the run's other tensors, or None where shapes alone must tell.
        side: what the target's `layout` calls it.

    Raises:
        LayoutError: they make up no such tensor, or do so in several ways.
    """
    metas = {rank: refs[rank].meta for rank in sorted(refs)}
    dtypes = {rank: meta.dtype for rank, meta in metas.items()}
    if len(set(dtypes.values())) > 1:
        raise LayoutError(", ".join(f"rank {rank} is {dtype}" for rank, dtype in dtypes.items()))
    evidence = None
    if habits is not None:
        is_comparable = ref is not None and ref.meta.shape == tuple(shape) and least_known(metas) != NOTHING
        known = ref if is_comparable else None
        evidence = Evidence(tensors=refs, ref=known, role=role_of(name), habits=habits, side=side)
    plan = place(metas, shape=shape, declared=declared, evidence=evidence)
    dims = dims_of(plan.shape, path)
    differing = disagreeing(plan, metas)
    has_copies_only = len(plan.copies) == 1 and not differing
    edge = Edge(
        path=path,
        dtype=dtypes[min(dtypes)],
        shape=plan.shape,
        read=partial(_read, plan=plan, refs=refs, dims=dims),
        is_replicated=any(len(ranks) > 1 for ranks in plan.copies),
        disagreeing=differing,
        odd_rank=odd_one_out(plan, metas) if differing else None,
        stream=partial(_stream, plan=plan, refs=refs) if can_stream(plan) else None,
        parts=plan.parts(metas),
        dims=dims,
        checksum=metas[min(metas)].checksum if has_copies_only else None,
        one_in=least_known(metas),
        statistics=WholeStatistics(plan=plan, metas=metas),
    )
    return JoinedEdge(edge=edge, plan=plan, metas=metas, refs=refs)


def join_side(
    *,
    cand: Mapping[int, Mapping[str, Any]],
    ref: Mapping[str, Any],
    dims_of: DimsOf,
    declared: Callable[[str], Declared | None] = lambda path: None,
    expands_batch: bool = False,
    name: str = "",
    habits: Habits | None = None,
    side: str = "output",
) -> JoinedSide:
    """Join all inputs, or all outputs, of one call.

    Tensors of one path are one edge. Those that are left are paired by position where kind of number,
    count and shapes agree: the argument of another name, the tuple in place of a mapping. Paths that are
    None or another object on one side, and kinds of number that differ (a boolean mask and an additive
    one), are left out: how masks are passed is the implementation's choice.

    Args:
        cand: each rank's values by path.
        ref: the reference's values by path.
        dims_of: meaning of the dims of a shape at a path.
        declared: the target's `layout` of the tensor at a path of this side.
        expands_batch: whether one side may have for each sequence what the other has once for all, such as
            positions. Such an edge has the candidate's shape.
        name: of this side in the whole model, as of `join`.
        habits: as of `join`.
        side: `input` or `output`.
    """
    theirs = _tensors(ref)
    ours = {rank: _tensors(values) for rank, values in cand.items()}
    all_ours = {path: tensor for tensors in ours.values() for path, tensor in tensors.items()}
    edges: dict[str, JoinedEdge] = {}
    problems: dict[str, str] = {}

    def join_pair(path: str, our_path: str) -> None:
        refs = {rank: tensors[our_path] for rank, tensors in ours.items() if our_path in tensors}
        kinds = {_kind(tensor) for tensor in refs.values()}
        if kinds == {_kind(theirs[path])}:
            shape = theirs[path].meta.shape
            own = next(iter(refs.values())).meta.shape
            joined = partial(
                join,
                refs,
                path=path,
                dims_of=dims_of,
                declared=declared(path),
                ref=theirs[path],
                name=f"{name} {path}",
                habits=habits,
                side=side,
            )
            try:
                edges[path] = joined(shape=shape)
            except LayoutError:
                if not (expands_batch and _differ_in_batch(shape, own, path, dims_of)):
                    raise
                edges[path] = joined(shape=own)

    if len(theirs) == 1 and all(len(tensors) == 1 for tensors in ours.values()) and len(all_ours) == 1:
        pairs = dict(zip(theirs, all_ours, strict=True))
    elif list(all_ours) == [""] and next(iter(theirs), None) == "0":
        pairs = {"0": ""}  # a bare tensor stands for the first of a tuple, attention weights left out
    else:
        pairs = {path: path for path in theirs if path in all_ours}
    for path, our_path in pairs.items():
        try:
            join_pair(path, our_path)
        except LayoutError as error:
            problems[path] = str(error)
    left = [p for p in theirs if p not in pairs and not any(_holds(values, p) for values in cand.values())]
    our_left = [p for p in all_ours if p not in pairs.values() and not _holds(ref, p)]
    for role in {_role(path, theirs) for path in left}:
        names = [path for path in left if _role(path, theirs) == role]
        our_names = [path for path in our_left if _role(path, all_ours) == role]
        if len(names) != len(our_names):
            continue
        try:
            for path, our_path in zip(names, our_names, strict=True):
                join_pair(path, our_path)
        except LayoutError:
            for path in names:
                edges.pop(path, None)
            continue
        left = [path for path in left if path not in names]
        our_left = [path for path in our_left if path not in our_names]
    unpaired = (
        tuple(path for path in left if _kind(theirs[path]) == "float"),
        tuple(path for path in our_left if _kind(all_ours[path]) == "float"),
    )
    return JoinedSide(
        edges={path: edges[path] for path in theirs if path in edges}, problems=problems, unpaired=unpaired
    )


def is_mask(path: str) -> bool:
    """Tell whether a path is that of a mask, by its name."""
    return any(part.endswith("mask") for part in path.split("/"))


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


def _holds(values: Mapping[str, Any], path: str) -> bool:
    """Tell whether these values have anything at a path or around it, None say in place of a tuple."""
    parts = path.split("/")
    return any("/".join(parts[:count]) in values for count in range(1, len(parts) + 1))


def _differ_in_batch(a: Sequence[int], b: Sequence[int], path: str, dims_of: DimsOf) -> bool:
    """Tell whether two shapes are one but for the batch, which is 1 in one of them."""
    if not a or len(a) != len(b) or tuple(a[1:]) != tuple(b[1:]) or min(a[0], b[0]) != 1:
        return False
    return dims_of(a if a[0] > 1 else b, path)[:2] == ("batch", "token")


def _role(path: str, tensors: Mapping[str, TensorRef]) -> tuple[str, bool]:
    return _kind(tensors[path]), is_mask(path)


def _kind(tensor: TensorRef) -> str:
    for kind in ("complex", "float", "bool"):
        if kind in tensor.meta.dtype:
            return kind
    return "int"
