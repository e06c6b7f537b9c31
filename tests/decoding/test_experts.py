"""Experts in decode steps, where each gets a few rows of several sequences, or none."""

from typing import Any

import pytest
from torch import Tensor

from tests.decoding.runs import PADDED, generated, judge, pair
from tests.models import EXPERTS
from tests.selecting import cases
from validator.checks.findings import Verdict
from validator.wrapping import wrap

FAMILY = "qwen3-moe"
WAYS = [(ref, cand) for ref in EXPERTS[FAMILY] for cand in EXPERTS[FAMILY]]
QUICK = [("eager", "eager"), ("grouped_mm", "eager")]


@pytest.mark.parametrize("way", cases(WAYS, quick=QUICK.__contains__, label=" and ".join))
def test_experts_of_several_sequences_are_aligned_step_by_step(way: tuple[str, str]) -> None:
    of_reference, of_candidate = way
    reference, candidate = pair(FAMILY, _experts_implementation=of_reference)
    candidate.set_experts_implementation(of_candidate)
    result = judge(reference, candidate, generated(4, batch=3, padding=PADDED))
    assert result.verdict is Verdict.ALIGNED, str(result)


@pytest.mark.parametrize("way", cases(WAYS, quick=QUICK[:1].__contains__, label=" and ".join))
def test_an_expert_that_is_off_in_steps_alone_is_named(way: tuple[str, str]) -> None:
    of_reference, of_candidate = way
    reference, candidate = pair(FAMILY, _experts_implementation=of_reference)
    candidate.set_experts_implementation(of_candidate)
    experts = candidate.model.layers[0].mlp.experts

    def forward(inner: Any, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        made = inner(hidden, *args, **kwargs)
        return made if len(hidden) > 3 else made * 1.25

    wrap(experts, forward)
    found = judge(reference, candidate, generated(4, batch=3)).findings[0]
    assert found.module == "model.layers.0.mlp.experts"
    assert found.step is not None
    assert found.step.number == 2
    # Rows of three sequences of eleven tokens; the prompt has eight.
    assert all(row % 11 >= 8 for row in found.where["tokens"])
