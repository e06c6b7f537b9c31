"""Experts in stacks and in lists, under several names, on one rank and on several."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from tests.align.build import Recorder
from validator.align.experts import restack_experts
from validator.align.rewriting import Rewritten
from validator.capturing.records import RankCapture

EXPERTS, HIDDEN, WIDTH = 4, 6, 3


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


GATE, UP = (random(EXPERTS, HIDDEN, WIDTH, seed=seed) for seed in (0, 1))
DOWN = random(EXPERTS, WIDTH, HIDDEN, seed=2)
BIAS = random(EXPERTS, WIDTH, seed=3)
STACKED = {"gate_up_proj": torch.cat([GATE, UP], 1), "down_proj": DOWN, "down_proj_bias": BIAS}


def captured(parameters: Mapping[str, Tensor], rank: int = 0) -> RankCapture:
    recorder = Recorder(rank)
    for name, tensor in parameters.items():
        recorder.parameter(f"moe.experts.{name}", tensor)
    return recorder.capture()


def listed(
    gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj", first: int = 0, last: int = EXPERTS
) -> dict[str, Tensor]:
    """Return the parameters of experts of a list, numbered as in the whole model."""
    found: dict[str, Tensor] = {}
    for i in range(first, last):
        found |= {f"{i}.{gate}.weight": GATE[i], f"{i}.{up}.weight": UP[i], f"{i}.{down}.weight": DOWN[i]}
        found[f"{i}.{down}.bias"] = BIAS[i]
    return found


def restacked(ref: Mapping[str, Tensor], *cand: Mapping[str, Tensor]) -> Rewritten:
    captures = [captured(parameters, rank) for rank, parameters in enumerate(cand)]
    return restack_experts(captures, ref=captured(ref), modules={"moe.experts": "moe.experts"})


def assert_holds(rewritten: Rewritten, want: Mapping[str, Tensor], rank: int = 0) -> None:
    """Require these parameters, bit for bit, and nothing else."""
    found = rewritten.captures[rank].parameters
    names = {rewritten.parameters.get(name, name): name for name in found}
    assert names.keys() == {f"moe.experts.{name}" for name in want}
    for name, tensor in want.items():
        assert torch.equal(found[names[f"moe.experts.{name}"]].ref.read(), tensor)


@pytest.mark.parametrize("words", [(), ("w1", "w3", "w2"), ("gate", "up", "down")], ids=str)
def test_a_list_becomes_stacks(words: tuple[str, ...]) -> None:
    assert_holds(restacked(STACKED, listed(*words)), STACKED)


@pytest.mark.parametrize(
    "own",
    [
        {"w13_weight": STACKED["gate_up_proj"], "w2_weight": DOWN, "w2_bias": BIAS},
        {"gate_proj": GATE, "up_proj": UP, "down_proj": DOWN, "down_proj_bias": BIAS},
    ],
    ids=["other names", "gate and up apart"],
)
def test_other_stacks_become_the_references(own: Mapping[str, Tensor]) -> None:
    assert_holds(restacked(STACKED, own), STACKED)


@pytest.mark.parametrize("fused", [True, False], ids=["gate and up fused", "apart"])
def test_stacks_become_a_list(fused: bool) -> None:
    own = STACKED if fused else {"w1": GATE, "w3": UP, "w2": DOWN, "w2_bias": BIAS}
    assert_holds(restacked(listed(), own), listed())


def test_each_rank_stacks_the_experts_that_it_holds() -> None:
    rewritten = restacked(STACKED, listed(last=2), listed(first=2))
    for rank in range(2):
        held = {name: tensor[2 * rank : 2 * rank + 2] for name, tensor in STACKED.items()}
        assert_holds(rewritten, held, rank)


def test_each_ranks_stacks_become_the_experts_of_its_place() -> None:
    halves = [{name: tensor[i : i + 2] for name, tensor in STACKED.items()} for i in (0, 2)]
    rewritten = restacked(listed(), *halves)
    assert_holds(rewritten, listed(last=2), 0)
    assert_holds(rewritten, listed(first=2), 1)


def test_what_is_in_the_references_form_stays() -> None:
    for form in (STACKED, listed()):
        assert restacked(form, form).parameters == {}


def test_an_mlp_that_is_not_of_experts_stays() -> None:
    dense = {"gate_proj.weight": GATE[0], "up_proj.weight": UP[0], "down_proj.weight": DOWN[0]}
    assert restacked(STACKED, dense).parameters == {}


def test_a_stack_of_other_sizes_is_none_of_the_references() -> None:
    narrow = STACKED | {"gate_up_proj": STACKED["gate_up_proj"][:, 1:]}
    rewritten = restacked(narrow, listed())
    assert "moe.experts.gate_up_proj" not in rewritten.parameters.values()
    assert "moe.experts.3.gate_proj.weight" in rewritten.captures[0].parameters
    assert "moe.experts.3.down_proj.weight" not in rewritten.captures[0].parameters
