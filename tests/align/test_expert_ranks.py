"""What ranks give to their own experts is put in the words of all ranks, and mistakes in it stay visible."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.align.build import Recorder, tensor_ref
from validator.align.expert_ranks import number_experts
from validator.align.parameters import join_parameters
from validator.capturing.records import RankCapture
from validator.sharding.layout import parse_layout

COUNT = 4
CHOSEN = torch.tensor([[0, 3], [2, 1], [3, 2]])
WEIGHTS = torch.tensor([[0.75, 0.25], [0.5, 0.5], [0.625, 0.375]])
MODULES = {name: name for name in ("mlp", "mlp.gate", "mlp.experts")}
STACKED = torch.arange(float(COUNT * 6)).reshape(COUNT, 2, 3)


def run(style: str, *, shift: int = 0) -> list[RankCapture]:
    """Run a router and the experts, two on each of two ranks; the second numbers its own `shift` too high."""
    captures = []
    for rank in range(2):
        recorder = Recorder(rank)
        recorder.parameter("mlp.experts.down_proj", STACKED[2 * rank : 2 * rank + 2])
        is_own = (CHOSEN // 2).eq(rank)
        local = CHOSEN - 2 * rank + shift * rank
        ids: dict[str, Tensor] = {
            "sentinel": torch.where(is_own, local, 2),
            "zero": torch.where(is_own, local, 0),
            "global": CHOSEN,
        }
        with recorder.call("mlp", {"x": torch.ones(3, 3)}) as out:
            recorder.leaf("mlp.gate", torch.ones(3, 3), {"1": WEIGHTS, "2": CHOSEN})
            weights = WEIGHTS.masked_fill(~is_own, 0.0)
            given = {"x": torch.ones(3, 3), "top_k_index": ids[style], "top_k_weights": weights}
            recorder.leaf("mlp.experts", given, torch.ones(3, 3))
            out[""] = torch.ones(3, 3)
        capture = recorder.capture()
        captures.append(replace(capture, calls=tuple(replace(c, end=c.start) for c in capture.calls)))
    return captures


def numbered(captures: list[RankCapture]) -> list[dict[str, Tensor]]:
    recorder = Recorder()
    recorder.parameter("mlp.experts.down_proj", STACKED)
    joined = join_parameters(cand=captures, ref=recorder.capture(), rename=lambda name: name)
    return [
        {path: value.read() for path, value in call.inputs.items()}
        for capture in number_experts(captures, joined.edges, MODULES)
        for call in capture.calls
        if call.module == "mlp.experts"
    ]


@pytest.mark.parametrize("style", ["sentinel", "zero", "global"])
def test_choices_of_own_experts_are_the_routers_on_every_rank(style: str) -> None:
    for inputs in numbered(run(style)):
        assert torch.equal(inputs["top_k_index"], CHOSEN)
        assert torch.equal(inputs["top_k_weights"], WEIGHTS)


def test_a_rank_that_numbers_its_experts_wrongly_differs_from_the_others() -> None:
    first, second = numbered(run("sentinel", shift=-1))
    assert torch.equal(first["top_k_index"], CHOSEN)
    assert second["top_k_index"][1, 0] == CHOSEN[1, 0] or not torch.equal(second["top_k_index"], CHOSEN)
    assert second["top_k_index"][0, 1] == CHOSEN[0, 1] - 1


def test_experts_that_are_given_the_routers_choice_are_left_as_they_are() -> None:
    captures = run("global")
    plain = []
    for capture in captures:
        gate = next(call for call in capture.calls if call.module == "mlp.gate")
        calls = tuple(
            replace(call, inputs=call.inputs | {"top_k_weights": gate.outputs["1"]})
            if call.module == "mlp.experts"
            else call
            for call in capture.calls
        )
        plain.append(replace(capture, calls=calls))
    recorder = Recorder()
    recorder.parameter("mlp.experts.down_proj", STACKED)
    joined = join_parameters(cand=plain, ref=recorder.capture(), rename=lambda name: name)
    assert number_experts(plain, joined.edges, MODULES) == tuple(plain)


def test_calls_of_modules_of_other_names_are_found_by_the_references() -> None:
    renamed = [
        replace(capture, calls=tuple(replace(c, module=f"module.{c.module}") for c in capture.calls))
        for capture in run("sentinel")
    ]
    recorder = Recorder()
    recorder.parameter("mlp.experts.down_proj", STACKED)
    joined = join_parameters(cand=renamed, ref=recorder.capture(), rename=lambda name: name)
    modules = {f"module.{name}": name for name in MODULES}
    for capture in number_experts(renamed, joined.edges, modules):
        (experts,) = (call for call in capture.calls if call.module == "module.mlp.experts")
        assert torch.equal(experts.inputs["top_k_index"].read(), CHOSEN)


def test_ranks_of_another_stage_that_run_no_experts_are_not_waited_for() -> None:
    captures = [*run("sentinel"), Recorder(2).capture()]
    assert all(torch.equal(inputs["top_k_index"], CHOSEN) for inputs in numbered(captures))


def test_a_rank_whose_experts_do_not_follow_each_other_keeps_its_numbers() -> None:
    captures = [
        replace(
            capture,
            parameters={
                name: replace(p, ref=tensor_ref(STACKED[capture.rank :: 2]))
                for name, p in capture.parameters.items()
            },
        )
        for capture in run("sentinel")
    ]
    recorder = Recorder()
    recorder.parameter("mlp.experts.down_proj", STACKED)
    layouts = {"mlp.experts": parse_layout("down_proj=experts[ep:interleaved] rows columns")}
    joined = join_parameters(cand=captures, ref=recorder.capture(), rename=lambda name: name, layouts=layouts)
    assert number_experts(captures, joined.edges, MODULES) == tuple(captures)
