"""The first tensor of a sequence that differs between two batches.

Shape legend: B = sequences, s = tokens, * = any further dims.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from validator.capturing.records import RankCapture, TensorRef
from validator.determinism.events import Event, events_of, mismatches
from validator.determinism.records import Difference
from validator.errors import CaptureError

__all__ = ["Place", "RowComparison", "compare_rows"]

Place = tuple[str, str, int, str, int, str]
"""Side, module, call, operator, which of several such events, path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowComparison:
    """How far the sequences that two batches share are the same.

    Attributes:
        first: the first tensor of which a shared sequence's part differs, or None.
        compared: tensors with a part for each sequence.
        left_out: floating tensors without, or that one run alone has.
        places: those that were compared.
    """

    first: Difference | None
    compared: int
    left_out: int
    places: frozenset[Place]


def compare_rows(
    a: Sequence[RankCapture],
    b: Sequence[RankCapture],
    *,
    sizes: tuple[int, int],
    tokens: int,
    shared: Sequence[tuple[int, int]],
    places: frozenset[Place] | None = None,
) -> RowComparison:
    """Compare the sequences that two batches share, tensor by tensor, in the order of the first run.

    Args:
        a: every rank's capture of one batch.
        b: of the other.
        sizes: B of both.
        tokens: s.
        shared: where a sequence stands in both batches.
        places: tensors that have a part for each sequence; None to tell by their shapes. In batches of one
            size above 1 these are the tensors with a dim of tokens beside: another dim may be of that size.

    Returns:
        The comparison of all ranks; the first difference is the earliest on any of them.
    """
    firsts: list[tuple[float, int, Difference]] = []
    compared = left_out = 0
    found: set[Place] = set()
    is_told = places is not None or sizes[0] != sizes[1] or sizes[0] == 1
    for ours, theirs in zip(a, b, strict=True):
        first: Difference | None = None
        others = dict(_tensors(theirs))
        for place, (event, tensor) in _tensors(ours).items():
            other = others.get(place)
            is_floating = "float" in tensor.meta.dtype
            parts = None if other is None else _parts(tensor, other[1], sizes, tokens, is_told=is_told)
            if parts is None or other is None or (places is not None and place not in places):
                left_out += is_floating
                continue
            compared += 1
            found.add(place)
            if first is None:
                first = _difference(event, place, tensor, other[1], parts, shared, ours.rank)
                firsts += [] if first is None else [(event.moment, ours.rank, first)]
    earliest = min(firsts, key=lambda found: found[:2])[2] if firsts else None
    return RowComparison(first=earliest, compared=compared, left_out=left_out, places=frozenset(found))


def _tensors(capture: RankCapture) -> dict[Place, tuple[Event, TensorRef]]:
    """Return a rank's tensors in the order in which it had them."""
    seen: Counter[Any] = Counter()
    tensors: dict[Place, tuple[Event, TensorRef]] = {}
    for event in sorted(events_of(capture), key=lambda event: event.moment):
        number = seen[event.name]
        seen[event.name] += 1
        for path, tensor in event.tensors.items():
            tensors[(*event.name, number, path)] = event, tensor
    return tensors


def _parts(
    tensor: TensorRef, other: TensorRef, sizes: tuple[int, int], tokens: int, *, is_told: bool
) -> tuple[int, int] | None:
    """Return how many rows of its first dim a sequence has in both tensors, or None for no such thing.

    `is_told` says that a first dim of this size is one of sequences, whatever follows it.
    """
    factors = []
    shapes = (tensor.meta.shape, other.meta.shape)
    if tensor.meta.one_in != 1 or other.meta.one_in != 1 or tensor.meta.dtype != other.meta.dtype:
        return None
    for shape, size in zip(shapes, sizes, strict=True):
        if len(shape) > 1 and shape[0] == size * tokens:
            factors.append(tokens)  # packed: [B s, *]
        elif (is_told and len(shape) > 2 and shape[0] == size) or shape[:2] == (size, tokens):
            factors.append(1)  # [B, *]
        else:
            return None
    a, b = factors
    is_same = a == b and shapes[0][1:] == shapes[1][1:] and len(set(sizes)) == len({s[0] for s in shapes})
    return (a, b) if is_same else None


def _difference(
    event: Event,
    place: Place,
    tensor: TensorRef,
    other: TensorRef,
    parts: tuple[int, int],
    shared: Sequence[tuple[int, int]],
    rank: int,
) -> Difference | None:
    try:
        a, b = (_by_sequence(x.read(), part) for x, part in zip((tensor, other), parts, strict=True))
    except CaptureError:
        return None
    counts = [(mismatches(a[i], b[j]), a[i].numel()) for i, j in shared]
    if not any(count for count, _ in counts):
        return None
    return Difference(
        module=event.module,
        call=event.call,
        rank=rank,
        side=event.side,
        path=place[-1],
        op=event.op,
        caller=event.caller,
        mismatched=sum(count for count, _ in counts),
        elements=sum(elements for _, elements in counts),
    )


def _by_sequence(tensor: Tensor, part: int) -> Tensor:
    return tensor.reshape(-1, part, *tensor.shape[1:])
