"""What an operator that is wrong is called: as in the reference, or as what only the candidate has."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from validator.align.inside import TraceOperator
from validator.capturing.records import Origin, OriginKind
from validator.checks.aten_calls import arguments_by_name, unflatten_call
from validator.checks.inside.alignment import Ours, bare_name, does_nothing, is_foreign
from validator.checks.inside.given import GivenValues
from validator.checks.operator_log import LoggedCall, Slot
from validator.numerics.formats import format_of

__all__ = ["Culprit", "Place", "is_narrower", "name_between", "name_operator"]

IsRightOn = Callable[[int, Mapping[int, Tensor]], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """The operator that is wrong.

    Attributes:
        op: its name: the reference's, or the candidate's where that has an operator of its own there.
        position: among the operators of the reference's code, or None where it has none there.
        ours: the candidate's operator that stands for it, with namespace and overload, or None.
        shown: position of the operator whose result shows it, or None where the edge is the first that does.
    """

    op: str
    position: int | None
    ours: str | None = None
    shown: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where in the two sequences of operators something is wrong.

    Attributes:
        calls: the reference's operators.
        operators: the candidate's.
        pairs: the candidate's operator by position of the reference's that it stands for.
        starts: positions whose values are the candidate's.
        behind: gives the positions that make an operator's result from these, itself last.
    """

    calls: Sequence[LoggedCall]
    operators: Sequence[TraceOperator]
    pairs: Mapping[int, Ours]
    starts: Mapping[int, Tensor]
    behind: Callable[[int], Sequence[int]]

    def does_work(self, position: int) -> bool:
        """Tell whether an operator of the reference's does more than change the form of values."""
        call = self.calls[position]
        return not call.is_trivial and call.main is not None

    def changes_values(self, ours: int) -> bool:
        """Tell whether one of the candidate's operators does more than change the form of values."""
        operator = self.operators[ours]
        if not does_nothing(bare_name(operator.name)):
            return True
        made = operator.results[0].dtype if operator.results else ""
        given = {self._dtype_of(origin) for origin in operator.sources}
        return any(
            "float" in x and "float" in made and is_narrower(getattr(torch, made), getattr(torch, x))
            for x in given
        )

    def extra(self, ours: int) -> list[tuple[str, str]]:
        """Return the candidate's operators before one of its own that stand for none of the reference's.

        Returns:
            Short and full names, casts last: one that only this side has is often there for another's sake.
        """
        paired = {x.position for x in self.pairs.values()}
        found: set[int] = set()
        waiting, seen = [ours], {ours}
        while waiting:
            for origin in self.operators[waiting.pop()].sources:
                if origin.operator < 0 or origin.operator in seen or origin.operator in paired:
                    continue
                seen.add(origin.operator)
                waiting.append(origin.operator)
                if self.changes_values(origin.operator):
                    found.add(origin.operator)
        return self._names(found)

    def extra_after_all(self) -> list[tuple[str, str]]:
        """Return the candidate's operators after the last whose value is used, as `extra` does."""
        last = max((self.pairs[x].position for x in self.starts if x in self.pairs), default=-1)
        paired = {x.position for x in self.pairs.values()}
        after = range(last + 1, len(self.operators))
        return self._names({x for x in after if x not in paired and self.changes_values(x)})

    def _names(self, found: set[int]) -> list[tuple[str, str]]:
        kept = sorted(found, key=lambda x: (does_nothing(bare_name(self.operators[x].name)), x))
        names = [self.operators[x].name for x in kept if any(r.read for r in self.operators[x].results)]
        return [(bare_name(name), name) for name in names]

    def _dtype_of(self, origin: Origin) -> str:
        if origin.kind is OriginKind.OPERATOR:
            results = self.operators[origin.operator].results
            return results[origin.result].dtype if origin.result < len(results) else ""
        return "" if origin.ref is None else origin.ref.meta.dtype


def name_operator(place: Place, position: int, is_right_on: IsRightOn) -> Culprit:
    """Name what is wrong where an operator's value is: the operator, or one that only one side has before it.

    Args:
        place: where.
        position: of the reference's operator.
        is_right_on: tells whether the reference's operator makes the candidate's value of other arguments,
            `[*]` float64 by leaf.
    """
    call, ours = place.calls[position], place.pairs[position]
    full = place.operators[ours.position].name
    if is_foreign(ours.name, call.name):
        return Culprit(op=ours.name, position=position, ours=full, shown=position)
    behind = place.behind(position)[:-1]
    missing = [x for x in behind if x not in place.starts and x not in place.pairs and place.does_work(x)]
    extra = place.extra(ours.position)
    if (missing or extra) and (call.is_trivial or _is_right_by_itself(place, position, is_right_on)):
        return _of_one_side(place, missing, extra, shown=position)
    return Culprit(op=call.name, position=position, ours=full, shown=position)


def name_between(place: Place, behind: Sequence[int]) -> Culprit | None:
    """Name what lies between the last values that are known and an edge; None where nothing does.

    Args:
        place: where.
        behind: positions of the reference's operators that make the edge from these values.
    """
    missing = [x for x in behind if x not in place.starts and place.does_work(x)]
    extra = place.extra_after_all()
    return _of_one_side(place, missing, extra, shown=None) if missing or extra else None


def is_narrower(dtype: torch.dtype, than: torch.dtype) -> bool:
    """Tell whether a floating dtype has fewer significant bits than another."""
    if not (dtype.is_floating_point and than.is_floating_point):
        return False
    return format_of(dtype).precision < format_of(than).precision


def _of_one_side(
    place: Place, missing: Sequence[int], extra: Sequence[tuple[str, str]], *, shown: int | None
) -> Culprit:
    foreign = next((x for x in extra if is_foreign(x[0], "")), None)
    if foreign is not None:
        position = missing[0] if missing else None
        return Culprit(op=foreign[0], position=position, ours=foreign[1], shown=shown)
    if missing:
        name, ours = place.calls[missing[0]].name, extra[0][1] if len(extra) == 1 else None
        return Culprit(op=name, position=missing[0], ours=ours, shown=shown)
    return Culprit(op=extra[0][0], position=None, ours=extra[0][1], shown=shown)


def _is_right_by_itself(place: Place, position: int, is_right_on: IsRightOn) -> bool:
    """Tell whether the reference's operator makes of the candidate's input what the candidate has."""
    call, ours = place.calls[position], place.pairs[position].position
    if not isinstance(call.func, torch._ops.OpOverload) or str(call.func) != place.operators[ours].name:
        return False
    given = GivenValues(place.operators).arguments(ours)
    replaced = None if given is None else _replaced(call, given)
    return replaced is not None and is_right_on(position, replaced)


def _replaced(call: LoggedCall, given: Mapping[str, object]) -> dict[int, Tensor] | None:
    """Return the candidate's tensors in place of the reference's, by leaf; None where they don't fit."""
    places, form = list(range(len(call.leaves))), call.form
    args, kwargs = unflatten_call(places, form)
    found: dict[int, Tensor] = {}
    for name, place in arguments_by_name(call.func, args, kwargs).items():
        leaves = place if isinstance(place, list) else [place]
        value = given.get(name)
        values = value if isinstance(value, list) else [value]
        if not any(isinstance(call.leaves[i], Slot) for i in leaves):
            continue
        if len(values) != len(leaves):
            return None
        for i, x in zip(leaves, values, strict=True):
            if isinstance(call.leaves[i], Slot) and isinstance(x, Tensor) and x.is_floating_point():
                found[i] = x.to(torch.float64)
    return found
