"""Some of a module's operators once more, from given values, as code that the rules can judge.

Shape legend: * = the value's shape.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from validator.align.traces import LogicalTensor
from validator.checks.arithmetic import Arithmetic
from validator.checks.aten_calls import listed, unflatten_call
from validator.checks.code_edges import code_edge
from validator.checks.module_code import Code
from validator.checks.operator_log import BECOME, Given, LoggedCall, OperatorLog, Slot
from validator.checks.replays import Replays
from validator.checks.roundings import Rounding
from validator.checks.shadow import ShadowTensor
from validator.checks.tape import Tape

__all__ = ["NotRerunError", "rerun"]

_KEY = (None, "")


_RAISED = (RuntimeError, ValueError, IndexError)
"""What an operator raises that can't compute what it is given; so is a missing kernel."""


class NotRerunError(Exception):
    """An operator of the code can't compute other values than those of its own run."""


def rerun(
    log: OperatorLog,
    *,
    code: Code,
    slot: int,
    positions: Sequence[int],
    starts: Mapping[int, Tensor],
    cand: Tensor,
    runs: int,
    replaced: Mapping[int, Tensor] | None = None,
) -> Code:
    """Run operators of a module's code once more, and return what came of it next to a candidate's value.

    Args:
        log: of the code.
        code: the whole.
        slot: of the value that is wanted.
        positions: of the operators to run, in order.
        starts: `[*]` float64 by position, what operators returned, in place of running them.
        cand: `[*]` the candidate's value, in its dtype.
        runs: stochastic runs behind a measured sigma.
        replaced: `[*]` float64 by leaf, other values for tensors that the last operator is given.

    Returns:
        Code with a single edge.

    Raises:
        NotRerunError: an operator can't compute what it is given now.
    """
    tape, chosen = Tape(), _Chosen()
    arithmetic = Arithmetic(Rounding.none(), log.lift, chosen, tape)
    slots = _given(log, slot, [x for x in positions if x not in starts or not log.calls[x].is_replaceable])
    last = positions[-1] if positions else -1
    for position in positions:
        call = log.calls[position]
        known = None
        if position in starts and call.main is not None and not call.written:
            assert call.dtype is not None
            known = ShadowTensor(starts[position].clone(), call.dtype)
        if known is None or not call.is_replaceable:
            _run(call, slots, arithmetic, chosen, (replaced or {}) if position == last else {})
        if known is not None and call.main is not None:
            slots[call.main] = known
        elif position in starts and call.main is not None:
            target = slots[call.main]
            assert isinstance(target, ShadowTensor)
            arithmetic.become(target, ShadowTensor(starts[position].clone(), target.dtype))
    value = arithmetic.shadow(slots[slot])
    tape.mark(_KEY, value)
    logical = LogicalTensor(data=cand, parts=(), dims=("",) * cand.dim())
    edge = code_edge(_KEY, None, value, logical, 0, arithmetic)
    # Groups that were chosen before decide what there was to choose from: the same in every replay.
    tape.pins = bool(arithmetic.choices)
    return replace(
        code,
        call=replace(code.call, partials=()),
        edges=(edge,),
        choices=(),
        has_children=False,
        inlined=(),
        constants=tuple(arithmetic.constants),
        steps=tuple(arithmetic.steps),
        replays=Replays(tape=tape, edges=(edge,), choices=(), runs=runs),
        log=None,
    )


def _given(log: OperatorLog, slot: int, positions: Sequence[int]) -> dict[int, Tensor]:
    """Return fresh copies of what comes from outside of the code, by slot."""
    found: dict[int, Tensor] = {}
    for number in {slot, *(x for position in positions for x in log.calls[position].needs)}:
        given = log.given.get(number)
        if given is not None:
            found[number] = _fresh(given)
    return found


def _fresh(given: Given) -> Tensor:
    """Return a tensor that the operators may change, but for floating ones of the model's own."""
    if given.dtype is not None:
        return ShadowTensor(given.tensor.clone(), given.dtype)
    return given.tensor if given.tensor.is_floating_point() else given.tensor.clone()


class _Chosen:
    """Prescribes the choices that the code made when it was logged."""

    def __init__(self) -> None:
        self.indices: Tensor | None = None

    def __call__(self, name: str, own: Tensor) -> Tensor | None:
        known = self.indices
        return known if known is not None and known.shape == own.shape else None


def _run(
    call: LoggedCall,
    slots: dict[int, Tensor],
    arithmetic: Arithmetic,
    chosen: _Chosen,
    replaced: Mapping[int, Tensor],
) -> None:
    leaves: list[Any] = []
    for i, leaf in enumerate(call.leaves):
        value = slots[leaf.number] if isinstance(leaf, Slot) else leaf
        if i in replaced and isinstance(value, Tensor):
            value = ShadowTensor(replaced[i].clone(), value.dtype)
        leaves.append(value)
    if call.func is BECOME:
        target, source = leaves
        arithmetic.become(target, source)
        return
    args, kwargs = unflatten_call(leaves, call.form)
    chosen.indices = call.chosen
    try:
        with arithmetic:
            made = listed(call.func(*args, **kwargs))
    except _RAISED as error:
        raise NotRerunError(f"{call.name}: {error}") from error
    for number, value in zip(call.made, made, strict=True):
        if number is not None:
            slots[number] = value
