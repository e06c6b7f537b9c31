"""The first tensor that differs between two runs of one program on the same inputs and cards.

Such runs make the same tensors in the same order, so that events are compared one by one, by their checksums.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from validator.capturing.records import RankCapture, TensorRef
from validator.determinism.records import Difference
from validator.errors import CaptureError

__all__ = [
    "Event",
    "count_tensors",
    "events_of",
    "first_difference",
    "first_other_result",
    "mismatches",
]

_SIDES = frozenset(("inputs", "operators", "outputs", "entered", "left"))

_FROM_ONE_RANK = ("broadcast", "scatter")
"""Collectives that all ranks but one enter with memory that is only written to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Tensors that a rank had at one moment.

    Attributes:
        moment: when, in the rank's sequence of events; what leaves a collective comes half a step later.
        side: as of `Difference`.
        tensors: by path.
    """

    moment: float
    side: str
    module: str
    call: int
    op: str = ""
    caller: str | None = None
    tensors: Mapping[str, TensorRef]

    @property
    def name(self) -> tuple[str, str, int, str]:
        """What tells it from other events of the run, but for repetitions."""
        return self.side, self.module, self.call, self.op


def first_difference(a: Sequence[RankCapture], b: Sequence[RankCapture]) -> Difference | None:
    """Return the first tensor that differs, on the rank where the difference arises.

    Args:
        a: every rank's capture of one run.
        b: of another run, in the same order.

    Returns:
        None where the bits of all results are the same: what a call is given, and what pads a parameter, may
        be memory that nobody reads. A difference that a collective only brought from another rank is not the
        first; one that arises in a collective, from the same terms, is that of its lowest rank.
    """
    if not any(_results_differ(one, other) for one, other in zip(a, b, strict=True)):
        return None
    return _first_on_any(a, b, sides=_SIDES)


def first_other_result(a: Sequence[RankCapture], b: Sequence[RankCapture]) -> Difference | None:
    """Return what `first_difference` does, but for what calls are given, which may still be written to."""
    return _first_on_any(a, b, sides=_SIDES - {"inputs"})


def count_tensors(capture: RankCapture) -> int:
    """Return how many tensors `first_difference` compares of a rank."""
    return len(capture.parameters) + sum(len(event.tensors) for event in events_of(capture))


def mismatches(a: torch.Tensor, b: torch.Tensor) -> int:
    """Count the elements whose bits differ; all of them where the shapes or dtypes do."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return max(a.numel(), b.numel())
    if a.dtype == torch.bool or a.is_complex():
        return int((a != b).sum())
    size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return int((a.contiguous().view(size) != b.contiguous().view(size)).sum())


def _results_differ(a: RankCapture, b: RankCapture) -> bool:
    """Tell whether anything but parameters and inputs of calls differs."""
    ours, theirs = (
        [
            (event.moment, event.name, {path: ref.meta.checksum for path, ref in event.tensors.items()})
            for event in events_of(x)
            if event.side != "inputs"
        ]
        for x in (a, b)
    )
    return sorted(ours, key=str) != sorted(theirs, key=str)


def _first_on_any(
    a: Sequence[RankCapture], b: Sequence[RankCapture], *, sides: frozenset[str]
) -> Difference | None:
    pairs = zip(a, b, strict=True)
    firsts = [found for one, other in pairs if (found := _first(one, other, sides)) is not None]
    own = [(event, difference) for event, difference in firsts if event.side != "left"]
    return next((difference for _, difference in [*own, *firsts]), None)


def _first(a: RankCapture, b: RankCapture, sides: frozenset[str]) -> tuple[Event, Difference] | None:
    for name, parameter in a.parameters.items():
        other = b.parameters.get(name)
        if other is None or other.ref.meta.checksum != parameter.ref.meta.checksum:
            module, _, path = name.rpartition(".")
            event = Event(moment=-1, side="outputs", module=module, call=0, tensors={})
            return event, Difference(module=module, call=0, rank=a.rank, side="outputs", path=path)
    ours, theirs = (
        sorted((event for event in events_of(x) if event.side in sides), key=lambda event: event.moment)
        for x in (a, b)
    )
    for mine, other_one in zip(ours, theirs, strict=False):
        if mine.name != other_one.name or mine.tensors.keys() != other_one.tensors.keys():
            return mine, _difference(mine, a.rank)
        for path, tensor in mine.tensors.items():
            if tensor.meta.checksum != other_one.tensors[path].meta.checksum:
                return mine, _difference(mine, a.rank, path, tensor, other_one.tensors[path])
    if len(ours) != len(theirs):
        longer = max(ours, theirs, key=len)
        event = longer[min(len(ours), len(theirs))]
        return event, _difference(event, a.rank)
    return None


def _difference(
    event: Event, rank: int, path: str = "", ref: TensorRef | None = None, other: TensorRef | None = None
) -> Difference:
    counts: dict[str, Any] = {}
    if ref is not None and other is not None:
        try:
            a, b = ref.read(), other.read()
            counts = {"mismatched": mismatches(a, b), "elements": a.numel()}
        except CaptureError:
            counts = {}
    return Difference(
        module=event.module,
        call=event.call,
        rank=rank,
        side=event.side,
        path=path,
        op=event.op,
        caller=event.caller,
        **counts,
    )


def events_of(capture: RankCapture) -> Iterator[Event]:
    """Yield what a rank had at each moment, not in order."""
    for call in capture.calls:
        caller = None if call.parent is None else capture.calls[call.parent].module
        yield Event(
            moment=call.start,
            side="inputs",
            module=call.module,
            call=call.n,
            caller=caller,
            tensors=_tensors(call.inputs),
        )
        for operator in call.operators:
            results = {str(i): made.ref for i, made in enumerate(operator.results) if made.ref is not None}
            yield Event(
                moment=operator.start,
                side="operators",
                module=call.module,
                call=call.n,
                op=operator.name,
                tensors=results,
            )
        if call.end is not None:
            yield Event(
                moment=call.end,
                side="outputs",
                module=call.module,
                call=call.n,
                caller=caller,
                tensors=_tensors(call.outputs),
            )
    for collective in capture.collectives:
        within = None if collective.call is None else capture.calls[collective.call]
        for side, tensors, later in (("entered", collective.entered, 0.0), ("left", collective.left, 0.5)):
            if side == "entered" and collective.op in _FROM_ONE_RANK:
                continue
            yield Event(
                moment=collective.start + later,
                side=side,
                module="" if within is None else within.module,
                call=0 if within is None else within.n,
                op=f"{collective.op} ({collective.reduce})" if collective.reduce else collective.op,
                tensors={str(i): tensor for i, tensor in enumerate(tensors)},
            )


def _tensors(values: Mapping[str, Any]) -> dict[str, TensorRef]:
    return {path: value for path, value in values.items() if isinstance(value, TensorRef)}
