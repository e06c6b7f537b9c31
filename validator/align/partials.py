"""What each rank gives to a sum over ranks inside a call, and which slice of the input it worked on."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod

import torch

from validator.align.edges import JoinedEdge
from validator.align.traces import PartialSum
from validator.capturing.records import Call, Collective, RankCapture, TensorRef
from validator.errors import LayoutError
from validator.sharding.plan import Box

__all__ = ["find_partials", "returned_inside", "sums_by_call"]

SumsByCall = Mapping[int, Mapping[int, Sequence[Collective]]]


class LazyTensors(Mapping[int, torch.Tensor]):
    """Tensors by rank, read each time they are asked for.

    Args:
        refs: as they entered a collective.
        boxes: where each part of an entered tensor belongs in the logical one, in order, or None where it is
            the logical one's elements in order.
        shape: of the logical tensor.
    """

    def __init__(
        self, refs: Mapping[int, TensorRef], *, boxes: Sequence[Box] | None, shape: Sequence[int]
    ) -> None:
        self._refs = dict(refs)
        self._boxes = boxes
        self._shape = tuple(shape)

    def __getitem__(self, rank: int) -> torch.Tensor:
        entered = self._refs[rank].read()
        if self._boxes is None:
            return entered.view(self._shape)
        whole = entered.new_empty(self._shape)
        for part, box in zip(entered.flatten().chunk(len(self._boxes)), self._boxes, strict=True):
            into = whole[tuple(slice(*interval) for interval in box)]
            into.copy_(part.view(into.shape))
        return whole

    def __iter__(self) -> Iterator[int]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)


def sums_by_call(cand: Sequence[RankCapture]) -> dict[int, dict[int, list[Collective]]]:
    """Return each rank's sums over ranks by the id of the innermost call that was open, in order.

    Sums of lists of tensors are left out: which of them belongs to which output is not recorded.
    """
    sums: dict[int, dict[int, list[Collective]]] = {}
    for capture in cand:
        of_rank = sums.setdefault(capture.rank, {})
        for collective in sorted(capture.collectives, key=lambda c: c.start):
            if (
                collective.call is not None
                and collective.op in ("all_reduce", "reduce_scatter")
                and collective.reduce == "sum"
                and len(collective.entered) == 1
            ):
                of_rank.setdefault(collective.call, []).append(collective)
    return sums


def returned_inside(cand: Sequence[RankCapture], sums: SumsByCall) -> dict[tuple[int, int], list[TensorRef]]:
    """Return what the modules inside a call returned, by rank and id of a call with sums."""
    returned: dict[tuple[int, int], list[TensorRef]] = {}
    for capture in cand:
        for call in capture.calls:
            if call.parent in sums[capture.rank] and call.parent is not None:
                found = returned.setdefault((capture.rank, call.parent), [])
                found += [value for value in call.outputs.values() if isinstance(value, TensorRef)]
    return returned


def find_partials(
    *,
    calls: Mapping[int, Call],
    sums: SumsByCall,
    inputs: Mapping[str, JoinedEdge],
    outputs: Mapping[str, JoinedEdge],
    returned: Mapping[int, Sequence[TensorRef]],
) -> tuple[PartialSum, ...]:
    """Return the sums over ranks directly inside one call, one for each group of ranks.

    Args:
        calls: each rank's call.
        sums: of `sums_by_call`.
        inputs: edges of the call's inputs.
        outputs: edges of its outputs. What enters a sum has the shape of the only one. A sum that is
            scattered takes the ranks' parts one after the other; they are put where they belong in it.
        returned: what the modules inside the call returned on each rank.

    Raises:
        LayoutError: ranks took part in different numbers of sums.
    """
    of_rank = {rank: sums[rank].get(call.id, ()) for rank, call in calls.items()}
    lengths = {rank: len(collectives) for rank, collectives in of_rank.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{count} on rank {rank}" for rank, count in lengths.items())
        raise LayoutError(f"sums over ranks inside the call: {counts}")
    boxes = _input_boxes(calls, inputs)
    partials = []
    for order, collectives in enumerate(zip(*of_rank.values(), strict=True)):
        groups: dict[tuple[int, ...], dict[int, Collective]] = {}
        for rank, collective in zip(of_rank, collectives, strict=True):
            groups.setdefault(collective.ranks, {})[rank] = collective
        for group in groups.values():
            as_returned = [
                rank
                for rank, sum_ in group.items()
                if sum_.entered[0].meta.checksum in {tensor.meta.checksum for tensor in returned[rank]}
            ]
            partials.append(
                PartialSum(
                    op=next(iter(group.values())).op,
                    order=order,
                    tensors=_terms(group, outputs),
                    input_boxes={rank: boxes[rank] for rank in group},
                    box=_output_box(group, outputs),
                    altered=tuple(r for r in group if as_returned and r not in as_returned),
                    made_of=_made_of(group, returned, outputs),
                )
            )
    if not partials:
        partials += _own_terms(calls, outputs, boxes)
    return tuple(partials)


def _own_terms(
    calls: Mapping[int, Call], outputs: Mapping[str, JoinedEdge], boxes: Mapping[int, Box | None]
) -> Iterator[PartialSum]:
    """Yield the outputs themselves where they are terms of a sum that a caller completes."""
    for joined in outputs.values():
        refs = {rank: joined.refs[rank] for rank in calls if rank in joined.refs}
        if joined.plan.reduce == "sum" and all(ref.meta.shape == joined.plan.shape for ref in refs.values()):
            tensors = LazyTensors(refs, boxes=None, shape=joined.plan.shape)
            yield PartialSum(op="all_reduce", order=0, tensors=tensors, input_boxes=boxes)
            return


def _made_of(
    group: Collection[int], returned: Mapping[int, Sequence[TensorRef]], outputs: Mapping[str, JoinedEdge]
) -> tuple[Mapping[int, torch.Tensor], ...]:
    if len(outputs) != 1:
        return ()
    (joined,) = outputs.values()
    box = _output_box(group, outputs)
    shape = joined.plan.shape if box is None else tuple(stop - start for start, stop in box)
    terms = {
        rank: [
            tensor
            for tensor in returned[rank]
            if any(placement.kind == "partial" for placement in tensor.meta.placements or ())
            and prod(tensor.meta.shape) == prod(shape)
        ]
        for rank in group
    }
    return tuple(
        LazyTensors(dict(zip(terms, of_module, strict=True)), boxes=None, shape=shape)
        for of_module in zip(*terms.values(), strict=False)
    )


def _terms(group: Mapping[int, Collective], outputs: Mapping[str, JoinedEdge]) -> LazyTensors:
    refs = {rank: sum_.entered[0] for rank, sum_ in group.items()}
    sum_ = next(iter(group.values()))
    shape = sum_.entered[0].meta.shape
    boxes = None
    joined = next(iter(outputs.values())) if len(outputs) == 1 else None
    if joined is not None and sum_.op == "all_reduce":
        box = _output_box(group, outputs)
        held = joined.plan.shape if box is None else tuple(stop - start for start, stop in box)
        shape = held if prod(held) == prod(shape) else shape
    if joined is not None and sum_.op == "reduce_scatter":
        parts = [joined.plan.shard_of(rank) for rank in sum_.ranks]
        sizes = {prod(stop - start for start, stop in box) for box in parts if box is not None}
        if joined.plan.shape != shape and None not in parts and sizes == {prod(shape) // len(parts)}:
            found = [box for box in parts if box is not None]
            if len(set(found)) == len(found) and sizes == {prod(joined.plan.shape) // len(found)}:
                boxes, shape = found, joined.plan.shape
    return LazyTensors(refs, boxes=boxes, shape=shape)


def _output_box(group: Collection[int], outputs: Mapping[str, JoinedEdge]) -> Box | None:
    """Return the part of the only output that all ranks of a group hold; None where it is all, or not one."""
    if len(outputs) != 1:
        return None
    (joined,) = outputs.values()
    held = {joined.plan.shard_of(rank) for rank in group}
    return held.pop() if len(held) == 1 else None


def _input_boxes(calls: Mapping[int, Call], inputs: Mapping[str, JoinedEdge]) -> dict[int, Box | None]:
    """Return the slice of the only input that each rank worked on, a shard of its last dim."""
    if len(inputs) != 1:
        return dict.fromkeys(calls)
    (joined,) = inputs.values()
    boxes = {rank: joined.plan.shard_of(rank) for rank in calls}
    last = joined.plan.whole[-1:]
    return {rank: box if box and box[-1:] != last else None for rank, box in boxes.items()}
