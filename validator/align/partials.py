"""What each rank gives to a sum over ranks inside a call, and which slice of the input it worked on."""

from collections.abc import Iterator, Mapping, Sequence

import torch

from validator.align.edges import JoinedEdge
from validator.align.traces import PartialSum
from validator.capturing.records import Call, Collective, RankCapture, TensorRef
from validator.errors import LayoutError
from validator.sharding.plan import Box

__all__ = ["find_partials", "sums_by_call"]

SumsByCall = Mapping[int, Mapping[int, Sequence[Collective]]]


class LazyTensors(Mapping[int, torch.Tensor]):
    """Tensors by rank, read each time they are asked for."""

    def __init__(self, refs: Mapping[int, TensorRef]) -> None:
        self._refs = dict(refs)

    def __getitem__(self, rank: int) -> torch.Tensor:
        return self._refs[rank].read()

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


def find_partials(
    *, calls: Mapping[int, Call], sums: SumsByCall, inputs: Mapping[str, JoinedEdge]
) -> tuple[PartialSum, ...]:
    """Return the sums over ranks directly inside one call, one for each group of ranks.

    Args:
        calls: each rank's call.
        sums: of `sums_by_call`.
        inputs: edges of the call's inputs.

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
            partials.append(
                PartialSum(
                    op=next(iter(group.values())).op,
                    order=order,
                    tensors=LazyTensors({rank: sum_.entered[0] for rank, sum_ in group.items()}),
                    input_boxes={rank: boxes[rank] for rank in group},
                )
            )
    return tuple(partials)


def _input_boxes(calls: Mapping[int, Call], inputs: Mapping[str, JoinedEdge]) -> dict[int, Box | None]:
    """Return the slice of the contraction that each rank did: its shard of the last dim of the only input."""
    if len(inputs) != 1:
        return dict.fromkeys(calls)
    (joined,) = inputs.values()
    boxes = {rank: joined.plan.shard_of(rank) for rank in calls}
    whole = joined.plan.whole
    return {rank: box if box and box[:-1] == whole[:-1] else None for rank, box in boxes.items()}
