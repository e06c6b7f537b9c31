"""Calls of a capture, replaced: what every rewrite of a rank's run needs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from validator.capturing.records import Call, Collective, ModuleInfo, Parameter, RankCapture
from validator.sharding.layout import Layout

__all__ = ["Rewritten", "merged_calls", "split_calls", "with_calls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """Captures in which something was put in the place of what the candidate has.

    Attributes:
        captures: every rank's.
        modules: the reference's name of each module that was made, by its own.
        parameters: the reference's name of each parameter that was made, by its own.
        owners: the candidate's module or parameter behind each of them.
        inner: modules of the candidate that work on what the reference has no tensor for.
        layouts: what the target declares of each module that was made, where it does.
        problems: what could not be put into the reference's form: `(module of the reference, why)`.
    """

    captures: tuple[RankCapture, ...]
    modules: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    owners: Mapping[str, str] = field(default_factory=dict)
    inner: frozenset[str] = frozenset()
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    problems: tuple[tuple[str, str], ...] = ()


def split_calls(
    capture: RankCapture, parts_of: Callable[[Call], Sequence[Call] | None]
) -> tuple[list[Call], list[Collective]]:
    """Put several calls in the place of one.

    Args:
        capture: a rank's.
        parts_of: returns copies of a call that differ in module, inputs and outputs, or None to keep it.

    Returns:
        All calls and collectives. The first part stands where the call stood, around what ran inside it; the
        others follow it, before whatever came next.
    """
    split = {call.id: parts for call in capture.calls if (parts := parts_of(call)) is not None}
    room = 2 * max(map(len, split.values()), default=0) + 1
    next_id = max((call.id for call in capture.calls), default=-1) + 1
    calls: list[Call] = []
    for call in capture.calls:
        start = call.start * room
        end = None if call.end is None else call.end * room
        first, *others = split.get(call.id, [call])
        calls.append(replace(first, start=start, end=end))
        event = start if end is None else end
        for other in others:
            after = None if end is None else event + 2
            calls.append(replace(other, id=next_id, start=event + 1, end=after))
            event += 2
            next_id += 1
    return calls, [replace(one, start=one.start * room) for one in capture.collectives]


def merged_calls(
    capture: RankCapture, groups: Iterable[Sequence[Call]], merge: Callable[[Sequence[Call]], Call]
) -> tuple[list[Call], list[Collective]]:
    """Put one call in the place of several.

    Args:
        capture: a rank's.
        groups: calls of one parent, in order, to be one.
        merge: makes the first of them what stands for all.

    Returns:
        All calls and collectives. The one call spans what the several did, and holds what ran inside them.
    """
    of_id: dict[int, Call] = {}
    for group in groups:
        ends = [call.end for call in group]
        end = None if any(x is None for x in ends) else max(x for x in ends if x is not None)
        one = replace(merge(group), id=group[0].id, start=min(call.start for call in group), end=end)
        of_id |= {call.id: one for call in group}
    calls = [
        replace(of_id.get(call.id, call), parent=_moved(call.parent, of_id))
        for call in capture.calls
        if call.id not in of_id or of_id[call.id].id == call.id
    ]
    return calls, [replace(one, call=_moved(one.call, of_id)) for one in capture.collectives]


def with_calls(
    capture: RankCapture,
    calls: Iterable[Call],
    *,
    collectives: Iterable[Collective] | None = None,
    modules: Mapping[str, ModuleInfo] | None = None,
    parameters: Mapping[str, Parameter] | None = None,
) -> RankCapture:
    """Return a capture with other calls, whose ids are again their positions in order of their starts."""
    ordered = sorted(calls, key=lambda call: call.start)
    ids = {call.id: place for place, call in enumerate(ordered)}
    numbered = [
        replace(call, id=ids[call.id], parent=None if call.parent is None else ids[call.parent])
        for call in ordered
    ]
    kept = capture.collectives if collectives is None else collectives
    return replace(
        capture,
        calls=tuple(numbered),
        collectives=tuple([replace(one, call=None if one.call is None else ids[one.call]) for one in kept]),
        modules=capture.modules if modules is None else dict(modules),
        parameters=capture.parameters if parameters is None else dict(parameters),
    )


def _moved(call: int | None, of_id: Mapping[int, Call]) -> int | None:
    return of_id[call].id if call is not None and call in of_id else call
