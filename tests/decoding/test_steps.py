"""Faults of a decode loop are named at their edge, in the step and at the positions where they begin."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import validator
from tests.decoding.runs import generated, judge, pair
from validator.capturing.session import capture_run
from validator.checks.findings import Check, Verdict
from validator.faults import parse
from validator.wrapping import wrap


def test_a_loop_that_restarts_positions_is_found_at_the_model_s_input() -> None:
    reference, candidate = pair("llama", kernel="sdpa")
    prepare = candidate.prepare_inputs_for_generation

    def restarted(*args: Any, **kwargs: Any) -> Any:
        made = prepare(*args, **kwargs)
        if made["position_ids"].shape[-1] == 1:
            made["position_ids"] = made["position_ids"] - 8
        return made

    candidate.prepare_inputs_for_generation = restarted
    result = judge(reference, candidate, generated())
    found = result.findings[0]
    assert (found.check, found.module, found.path) == (Check.INPUT, "", "position_ids")
    assert found.call == 1
    assert "first in step 2 of 4" in found.summary


def test_a_finding_says_the_step_and_its_tokens() -> None:
    reference, candidate = pair("llama", kernel="sdpa")
    parse("step-kv-evicted:layer=0,first=7,tokens=2").plant(candidate)
    found = judge(reference, candidate, generated()).findings[0]
    assert (found.module, found.into) == ("model.layers.0.self_attn", "model.layers.0.self_attn.o_proj")
    # The block is whole, and dropped, from the second step on; token 8 is computed by that step.
    assert found.where["tokens"] == [8, 9, 10]
    assert (found.call, found.step and str(found.step)) == (1, "step 2 of 4")


def test_a_fault_is_found_in_both_of_two_generations_whose_calls_alternate() -> None:
    reference, candidate = pair("llama", kernel="sdpa")
    parse("step-kv-scale:layer=1,factor=1.25").plant(candidate)
    result = judge(reference, candidate, generated(3, guidance_scale=1.5))
    assert {found.module for found in result.findings} == {"model.layers.1.self_attn"}
    assert [(found.call, str(found.step)) for found in result.findings] == [
        (2, "step 2 of 3"),
        (3, "step 2 of 3"),
    ]


def test_a_reproducer_names_the_call_the_step_and_the_tokens_of_its_finding(tmp_path: Path) -> None:
    reference, candidate = pair("llama", kernel="sdpa")
    parse("step-kv-scale:layer=1,factor=1.25").plant(candidate)
    found = judge(reference, candidate, generated(), repro=tmp_path / "made").findings[0]
    assert found.step is not None
    assert (found.call, found.step.start) == (1, 8)
    text = (tmp_path / "made" / "reproduce.py").read_text()
    head = " ".join(line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#"))
    assert f"{found.check} check, call 1 " in head
    assert "Step: step 2 of 4, token 8 " in head
    assert found.summary in head


@pytest.mark.parametrize(
    ("fault", "module", "kernel", "op"),
    [
        ("step-nibble-order:layer=0", "mlp.up_proj", "sdpa", "mm"),
        ("step-kv-evicted:layer=0,first=4,tokens=3", "self_attn", "sdpa", "scaled_dot_product_attention"),
        ("step-kv-evicted:layer=0,first=4,tokens=3", "self_attn", "eager", "bmm"),
    ],
)
def test_the_operator_of_the_steps_that_is_wrong_is_named(
    fault: str, module: str, kernel: str, op: str
) -> None:
    reference, candidate = pair("llama", kernel=kernel)
    parse(fault).plant(candidate)
    found = judge(reference, candidate, generated(), operators="model.layers.0.*").findings[0]
    assert (found.module, found.op) == (f"model.layers.0.{module}", op)
    assert found.step is not None
    assert found.step.number == 2


def test_a_note_names_the_modules_whose_operators_are_others_from_step_to_step() -> None:
    reference, candidate = pair("llama", kernel="sdpa")
    mlp = candidate.model.layers[0].mlp

    def forward(inner: Any, x: Tensor) -> Any:
        if x.shape[1] > 1:
            return inner(x)
        gate = mlp.act_fn(mlp.gate_proj(x))
        return mlp.down_proj(torch.addcmul(torch.zeros_like(gate), gate, mlp.up_proj(x), value=1.5))

    wrap(mlp, forward)
    result = judge(reference, candidate, generated(), operators="model.layers.0.*")
    assert result.findings[0].module == "model.layers.0.mlp"
    (note,) = (note for note in result.outcome.notes if "from step to step" in note)
    assert note.startswith("the operators of model.layers.0.mlp are others from step to step")


def test_a_stored_capture_of_steps_is_judged_without_inputs(tmp_path: Path) -> None:
    reference, candidate = pair("llama", kernel="sdpa")
    path = tmp_path / "steps.h5"
    run = generated(new=3)
    capture_run(lambda: run(candidate), candidate, path)
    result = validator.check(reference=reference, candidate=path)
    assert result.verdict is Verdict.ALIGNED, str(result)
    with torch.no_grad():
        candidate.model.layers[1].mlp.up_proj.weight[5] *= 1.02
    capture_run(lambda: run(candidate), candidate, path, overwrite=True)
    assert validator.check(reference=reference, candidate=path).verdict is Verdict.DIVERGENT
