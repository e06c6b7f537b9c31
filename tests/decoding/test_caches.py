"""Caches of a fixed size: healthy ones are aligned, and what a step reads wrongly of them is named."""

from typing import Any

import pytest
from torch import Tensor

from tests.decoding.runs import PADDED, generated, judge, pair
from validator.checks.findings import Check, Finding, Verdict
from validator.faults import parse
from validator.faults.kernels import wrap_kernel
from validator.report.result import Result

WINDOW = {"sliding_window": 4}
STATIC = generated(5, batch=3, padding=PADDED, cache_implementation="static")


@pytest.mark.parametrize("family", ["gemma2", pytest.param("gpt-oss", marks=pytest.mark.slow)])
def test_static_windows_with_left_padding_are_aligned(family: str) -> None:
    result = judge(*pair(family, **WINDOW), STATIC)
    assert result.verdict is Verdict.ALIGNED, str(result)


def test_a_block_of_another_sequence_is_named_in_a_static_cache() -> None:
    reference, candidate = pair("llama", kernel="sdpa")
    parse("step-kv-misplaced-block:layer=0,first=5,tokens=3").plant(candidate)
    found = first_in_layer_0(judge(reference, candidate, STATIC))
    assert found.signature is not None
    assert found.signature.kind == "keys_of_another"
    assert found.signature.parameters == {"start": 5, "stop": 8, "sequences": [0], "of_sequence": 1}


def test_a_block_that_steps_no_longer_find_is_named_in_a_static_cache() -> None:
    reference, candidate = pair("llama", kernel="sdpa")

    def evicted(
        inner: Any, attention: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **kwargs: Any
    ) -> Any:
        if query.shape[2] == 1:
            mask = mask.clone()
            mask[..., 5:7] = False
        return inner(attention, query, key, value, mask, **kwargs)

    wrap_kernel(candidate.model.layers[0].self_attn, evicted)
    found = first_in_layer_0(judge(reference, candidate, STATIC))
    assert found.signature is not None
    assert (found.signature.kind, found.signature.parameters) == ("keys_left_out", {"start": 5, "stop": 7})
    assert (found.where["tokens"], found.step and str(found.step)) == ([8, 9, 10, 11], "step 2 of 5")


def test_a_window_that_steps_read_at_another_scale_is_named_in_a_static_cache() -> None:
    reference, candidate = pair("gemma2", **WINDOW)
    parse("step-kv-scale:layer=0,factor=1.25").plant(candidate)
    found = first_in_layer_0(judge(reference, candidate, STATIC))
    assert found.signature is not None
    assert found.signature.kind == "cache_scale"
    assert found.signature.parameters["factor_of_keys"] == pytest.approx(1.25, rel=0.01)
    assert found.step is not None
    assert found.step.number == 2


def first_in_layer_0(result: Result) -> Finding:
    """Return the first finding, which must be about what the first layer's attention makes."""
    found = result.findings[0]
    assert (found.module, found.into) == ("model.layers.0.self_attn", "model.layers.0.self_attn.o_proj")
    assert found.check is Check.WIRING
    return found
