"""Reductions in words."""

import pytest

from validator.determinism.reductions import described, words_of


@pytest.mark.parametrize(
    ("operator", "words"),
    [
        ("aten.mm.default", "summed over its inner dim"),
        ("aten.index_add_.default", "in the order in which they arrive"),
        ("aten._softmax.default", "a softmax"),
        ("aten._scaled_dot_product_flash_attention_for_cpu.default", "over its keys"),
        ("vllm.unified_attention.default", "over its keys"),
        ("aten.native_layer_norm.default", "variance over channels"),
    ],
)
def test_an_operator_that_adds_up_is_told_by_what_it_adds_up(operator: str, words: str) -> None:
    assert words in words_of(operator)
    assert described(operator) == f"{operator} ({words_of(operator)})"


@pytest.mark.parametrize("operator", ["aten.mul.Tensor", "aten.view.default", "other.thing.default"])
def test_an_operator_that_reduces_nothing_or_is_not_known_is_named_alone(operator: str) -> None:
    assert described(operator) == operator
