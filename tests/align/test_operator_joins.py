"""Operators of calls that are parts of one are paired in order, and joined where they make up a whole."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.align.build import tensor_ref
from validator.align.call_parts import along
from validator.align.operator_joins import join_operators_of_parts
from validator.capturing.records import Operator, OperatorResult, Origin, OriginKind, TensorRef

FIRST, SECOND = torch.arange(6.0).view(1, 2, 3), torch.arange(3.0).view(1, 1, 3)
WHOLE = torch.cat([FIRST, SECOND], 1)


def ran(name: str, made: Tensor | None, **arguments: Any) -> Operator:
    ref = None if made is None else tensor_ref(made)
    shape = () if made is None else tuple(made.shape)
    result = OperatorResult(dtype="float32", shape=shape, ref=ref)
    return Operator(name=name, start=0, arguments=arguments, results=(result,))


def given(x: Tensor, kind: OriginKind = OriginKind.INPUT) -> Origin:
    return Origin(kind=kind, name="x", ref=tensor_ref(x))


def by_tokens(tensors: Sequence[TensorRef]) -> TensorRef | None:
    """Join along the dim of tokens what has as many as the parts."""
    sizes = [tensor.meta.shape[1] for tensor in tensors if len(tensor.meta.shape) == 3]
    return along(tensors, 1) if sizes == [2, 1] else None


def test_what_operators_of_all_parts_made_and_were_given_is_put_end_to_end() -> None:
    parts = [[ran("aten.mul.Tensor", x, self=given(x), other=2.0)] for x in (FIRST, SECOND)]
    (whole,) = join_operators_of_parts(parts, by_tokens)
    (result,) = whole.results
    assert result.ref is not None
    assert torch.equal(result.ref.read(), WHOLE)
    assert result.shape == (1, 3, 3)
    assert torch.equal(whole.arguments["self"].ref.read(), WHOLE)
    assert whole.arguments["other"] == 2.0


def test_an_operator_of_some_parts_alone_has_no_values_and_shifts_nothing() -> None:
    first = [ran("aten.empty", FIRST), ran("aten.cat", FIRST, tensors=[given(FIRST)]), ran("aten.mm", FIRST)]
    second = [ran("aten.mm", SECOND), ran("aten.cat", SECOND, tensors=[given(SECOND), given(SECOND)])]
    whole = join_operators_of_parts([first, second], by_tokens)
    assert [operator.name for operator in whole] == ["aten.empty", "aten.cat", "aten.mm"]
    known = {operator.name: operator.results[0].ref for operator in whole}
    # Only one of two that changed places is paired.
    assert [name for name, ref in known.items() if ref is not None] in (["aten.cat"], ["aten.mm"])


def test_what_does_not_fit_together_has_no_values() -> None:
    keys = torch.zeros(1, 3, 3)
    parts = [
        [ran("aten.cat", x, tensors=[given(x), given(x)]), ran("aten.mul", y)]
        for x, y in ((FIRST, FIRST), (keys, SECOND))
    ]
    cat, mul = join_operators_of_parts(parts, by_tokens)
    assert cat.results[0].ref is None
    assert [origin.ref for origin in cat.arguments["tensors"]] == [None, None]
    assert mul.results[0].ref is not None


def test_a_parameter_is_the_same_in_all_parts() -> None:
    weight = torch.ones(3, 3)
    parts = [[ran("aten.mm", x, mat2=given(weight, OriginKind.PARAMETER))] for x in (FIRST, SECOND)]
    (whole,) = join_operators_of_parts(parts, by_tokens)
    assert torch.equal(whole.arguments["mat2"].ref.read(), weight)


def test_operators_that_make_up_nothing_are_left_out() -> None:
    assert join_operators_of_parts([[ran("aten.mm", FIRST)], [ran("aten.bmm", SECOND)]], by_tokens) == ()
    assert join_operators_of_parts([[], []], by_tokens) == ()
