"""Replays: the operations of a run again, as if the code itself ran under other rounding."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from tests.checks.test_arithmetic import FREE, SIMPLE, Op, attention_inputs, pair
from validator.checks.arithmetic import Arithmetic
from validator.checks.operations import Value
from validator.checks.roundings import Rounding
from validator.checks.shadow import ShadowTensor
from validator.checks.tape import Diverted, Tape
from validator.numerics.recipes import EAGER, FUSED

# Their path, or a number in them, is read from a value that rounding changes.
READING = ("boolean index", "item", "float()", "branch on a value")

ROUNDINGS: dict[str, Callable[[], Rounding]] = {
    "nearest, eager": lambda: Rounding.nearest(EAGER),
    "nearest, fused": lambda: Rounding.nearest(FUSED),
    "stochastic, eager": lambda: Rounding.stochastic(EAGER, 3, {}),
    "stochastic, fused": lambda: Rounding.stochastic(FUSED, 3, {}),
}


def run(op: Op, inputs: tuple[Tensor, ...], rounding: Rounding, tape: Tape | None = None) -> list[Any]:
    """Run code on copies of the inputs; with a tape, mark all floating tensors that it made."""
    arithmetic = Arithmetic(rounding, tape=tape)
    shadows = [arithmetic.shadow(x.clone()) for x in inputs]
    # What goes in has a rounding behind it already, so that everything is recorded.
    with arithmetic:
        made = op(*[x * 0.7 for x in shadows])
    leaves = [x for x in tree_leaves(made) if isinstance(x, ShadowTensor)]
    if tape is not None:
        for i, leaf in enumerate(leaves):
            tape.mark(i, leaf)
    return leaves


def replayed(op: Op, inputs: tuple[Tensor, ...], rounding: Rounding) -> list[Value]:
    tape = Tape()
    leaves = run(op, inputs, Rounding.none(), tape)
    made = tape.play(rounding)
    return [made[i] for i in range(len(leaves))]


@pytest.mark.parametrize("rounding", list(ROUNDINGS.values())[::3], ids=list(ROUNDINGS)[::3])
@pytest.mark.parametrize("name", [name for name in (SIMPLE | FREE) if name not in READING])
def test_a_replay_is_the_code_itself_under_that_rounding(name: str, rounding: Callable[[], Rounding]) -> None:
    op, inputs = (SIMPLE | FREE)[name], pair(torch.bfloat16)
    direct = run(op, inputs, rounding())
    for ours, theirs in zip(replayed(op, inputs, rounding()), direct, strict=True):
        assert torch.equal(ours.data64.nan_to_num(), theirs.data64.nan_to_num())
        assert torch.equal(ours.exact64.nan_to_num(), theirs.exact64.nan_to_num())


@pytest.mark.parametrize("rounding", ROUNDINGS.values(), ids=ROUNDINGS.keys())
def test_attention_is_replayed_as_one_operator(rounding: Callable[[], Rounding]) -> None:
    def op(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    inputs = attention_inputs(torch.bfloat16)
    (direct,) = run(op, inputs, rounding())
    (ours,) = replayed(op, inputs, rounding())
    assert torch.equal(ours.data64, direct.data64)
    assert (ours.bound64 is None) == (direct.bound64 is None)


def test_a_tape_can_be_played_again_and_again() -> None:
    tape = Tape()
    run(SIMPLE["in place through views"], pair(torch.bfloat16), Rounding.none(), tape)
    first, again = (tape.play(Rounding.nearest(EAGER)) for _ in range(2))
    assert all(torch.equal(first[key].data64, again[key].data64) for key in first)


def test_a_replay_writes_to_nothing_that_the_code_was_given() -> None:
    given = torch.linspace(0, 1, 8)
    tape, arithmetic = Tape(), Arithmetic(Rounding.none())
    arithmetic = Arithmetic(Rounding.none(), tape=tape)
    x = arithmetic.shadow(given)
    with arithmetic:
        x.mul_(1.7)
    tape.mark("", x)
    after = x.data64.clone()
    made = tape.play(Rounding.nearest(EAGER))[""]
    assert torch.equal(x.data64, after)
    assert torch.equal(made.exact64, given.double() * 1.7)


def test_a_value_is_marked_as_it_is_then() -> None:
    tape = Tape()
    arithmetic = Arithmetic(Rounding.none(), tape=tape)
    x = arithmetic.shadow(torch.ones(3))
    with arithmetic:
        y = x * 3
        with arithmetic.suspended():
            tape.mark("before", y)
        y.add_(1)
    tape.mark("after", y)
    made = tape.play(Rounding.none())
    assert made["before"].data64.tolist() == [3.0] * 3
    assert made["after"].data64.tolist() == [4.0] * 3


@pytest.mark.parametrize("name", [name for name in READING if name != "boolean index"])
def test_a_replay_that_reads_another_number_is_given_up(name: str) -> None:
    """Rounding to nearest keeps the numbers of bfloat16; a product of two of them it does not keep."""
    op = SIMPLE[name]

    def reading(x: Tensor, y: Tensor) -> Tensor:
        return op(x - x.detach() * (1 - 2.0**-9), y)

    with pytest.raises(Diverted, match="in place of"):
        [replayed(reading, pair(torch.bfloat16), Rounding.stochastic(EAGER, seed, {})) for seed in range(16)]


def test_a_replay_in_which_fewer_values_are_chosen_is_given_up() -> None:
    def op(x: Tensor, y: Tensor) -> Tensor:
        return x[x * 1.1 != x * 1.1 + 2.0**-30]  # in float64 all of them

    with pytest.raises(Diverted, match="in place of"):
        replayed(op, pair(torch.bfloat16), Rounding.nearest(EAGER))


def test_a_given_tensor_that_changed_since_is_noticed() -> None:
    tape = Tape()
    arithmetic = Arithmetic(Rounding.none(), tape=tape)
    x = arithmetic.shadow(torch.ones(3))
    with arithmetic:
        tape_end = x * 3
    tape.mark("", tape_end)
    x.data64.add_(1)
    with pytest.raises(Diverted, match="changed since"):
        tape.play(Rounding.none())


def test_choices_that_no_edge_shows_are_made_anew_unless_they_are_pinned() -> None:
    x = torch.tensor([[1.0, 1.001953125, 0.5]])
    tape = Tape()
    arithmetic = Arithmetic(Rounding.none(), choose=lambda name, own: None, tape=tape)
    shadow = arithmetic.shadow(x)
    with arithmetic:
        scores = shadow.to(torch.bfloat16) * 1.0
        indices = scores.topk(1, -1).indices
        made = torch.zeros_like(shadow).scatter(-1, indices, 1.0) * 1.0
    tape.mark("", made)
    assert made.data64.tolist() == [[0.0, 1.0, 0.0]]
    # In bfloat16 the first two are equal, and the first of equals is chosen.
    equal = tape.play(Rounding.nearest(EAGER))[""].data64.tolist()
    tape.pins = True
    assert tape.play(Rounding.nearest(EAGER))[""].data64.tolist() == [[0.0, 1.0, 0.0]]
    assert equal in ([[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]])
