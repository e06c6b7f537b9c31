"""Which operators are paired: by order, name, form and values, whatever only one side has."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from validator.align.inside import TraceOperator, TraceResult
from validator.checks.inside.alignment import align, bare_name, ours_of
from validator.checks.operator_log import LoggedCall, sample


def theirs(func: object, value: Tensor) -> LoggedCall:
    """Return a call of the reference's that made a value."""
    return LoggedCall(
        func=func,
        leaves=(),
        form=((), ()),
        made=(0,),
        written=(),
        is_view=bool(getattr(func, "is_view", False)),
        shape=tuple(value.shape),
        dtype=value.dtype,
        samples=sample(value),
        main=0,
    )


def ours(name: str, value: Tensor | None) -> TraceOperator:
    """Return an operator of the candidate's that made a value; None for a view."""
    stored = torch.zeros(()) if value is None else value
    result = TraceResult(
        dtype=str(stored.dtype).removeprefix("torch."),
        shape=tuple(stored.shape),
        sizes=(stored.numel(),),
        read=None if value is None else lambda shape, ranks: stored.reshape(shape),
    )
    return TraceOperator(name=name, arguments={}, results=(result,))


def pairs(reference: Mapping[object, Tensor], candidate: list[TraceOperator]) -> dict[int, int]:
    calls = [theirs(func, value) for func, value in reference.items()]
    return {pair.theirs: pair.ours.position for pair in align(calls, ours_of(candidate), (0,))}


ATEN = torch.ops.aten
X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
CHAIN = {ATEN.mul.Tensor: X, ATEN.add.Tensor: X + 1, ATEN.exp.default: (X + 1).exp(), ATEN.neg.default: -X}


def test_equal_sequences_are_paired_one_to_one() -> None:
    candidate = [ours(str(func), value) for func, value in CHAIN.items()]
    assert pairs(CHAIN, candidate) == {0: 0, 1: 1, 2: 2, 3: 3}


@pytest.mark.parametrize("extra", ["aten.clone.default", "aten.mul.Tensor", "mylib.scale.default"])
def test_an_extra_operator_shifts_nothing(extra: str) -> None:
    candidate = [ours(str(func), value) for func, value in CHAIN.items()]
    candidate.insert(1, ours(extra, X * 0.5))
    assert pairs(CHAIN, candidate) == {0: 0, 1: 2, 2: 3, 3: 4}


def test_a_missing_operator_shifts_nothing() -> None:
    candidate = [ours(str(func), value) for func, value in CHAIN.items() if func is not ATEN.add.Tensor]
    assert pairs(CHAIN, candidate) == {0: 0, 2: 1, 3: 2}


@pytest.mark.parametrize("rows", [0, 1])
def test_an_operator_that_the_candidate_unrolls_is_paired_with_what_it_comes_to(rows: int) -> None:
    chain = dict(list(CHAIN.items())[:rows])
    candidate = [ours("aten.sub.Tensor", X + 2 + i) for i in range(900)]
    candidate += [ours(str(func), value) for func, value in chain.items()]
    assert pairs(chain, candidate) == {i: 900 + i for i in range(rows)}


def test_views_have_no_values_and_are_passed_over() -> None:
    candidate = [ours(str(func), value) for func, value in CHAIN.items()]
    candidate[2:2] = [ours("aten.view.default", None), ours("aten.transpose.int", None)]
    assert pairs(CHAIN, candidate) == {0: 0, 1: 1, 2: 4, 3: 5}


def test_among_operators_of_one_name_the_values_decide() -> None:
    reference = {ATEN.mul.Tensor: X, ATEN.mul.Scalar: 2 * X}
    assert pairs(reference, [ours("aten.mul.Tensor", 2 * X)]) == {1: 0}
    assert pairs(reference, [ours("aten.mul.Tensor", X)]) == {0: 0}


def test_tensors_of_other_sizes_are_never_paired() -> None:
    assert pairs({ATEN.mul.Tensor: X}, [ours("aten.mul.Tensor", X[:2])]) == {}


def test_a_fused_kernel_stands_for_the_last_operator_that_it_replaces() -> None:
    reference = {ATEN.bmm.default: X, ATEN._softmax.default: X.softmax(-1), ATEN.bmm.out: X.exp()}
    candidate = [ours("mylib.attention.default", X.exp() * 1.001)]
    assert pairs(reference, candidate) == {2: 0}


def test_a_view_stands_for_no_other_operator_that_happens_to_have_its_values() -> None:
    reference = {ATEN.bmm.default: X, ATEN.view.default: X}
    assert pairs(reference, [ours("aten.bmm.default", X), ours("aten.sigmoid.default", X)]) == {0: 0}


@pytest.mark.parametrize(
    ("name", "bare"),
    [
        ("aten.mul.Tensor", "mul"),
        ("aten.mul_.Tensor", "mul"),
        ("aten._softmax.default", "_softmax"),
        ("aten.__rshift__.Scalar", "__rshift__"),
        ("mylib.attention.default", "mylib.attention"),
    ],
)
def test_foreign_names_keep_their_namespace(name: str, bare: str) -> None:
    assert bare_name(name) == bare
