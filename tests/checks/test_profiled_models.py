"""What profiles tell of attention and of mixtures of experts: heads, experts, and tokens of each sequence."""

from collections.abc import Sequence
from functools import cache

import pytest
import torch
import transformers
from torch import Tensor, nn

import validator
from tests.families import FAMILIES
from validator.checks.findings import Judgement, Outcome, Verdict
from validator.checks.heads import head_sizes
from validator.checks.profiles import Line
from validator.report.figures.positions import token_errors

BATCH, TOKENS = 2, 6
HEADS, KEY_HEADS, HEAD_SIZE, EXPERTS = 8, 4, 16, 8
ATTENTION, GATE, MIXTURE = "model.layers.1.self_attn", "model.layers.0.mlp.gate", "model.layers.1.mlp.experts"
ROW = TOKENS + 4
"""Token 4 of sequence 1, where the sequences follow each other."""


def louder(y: Tensor, *place: int | slice) -> Tensor:
    y = y.clone()
    y[(..., *place)] *= 1.5
    return y


def of_head(number: int) -> slice:
    return slice(number * HEAD_SIZE, (number + 1) * HEAD_SIZE)


def spoil_heads(model: nn.Module) -> None:
    attention = model.get_submodule(ATTENTION)
    for name, head in (("q_proj", 6), ("k_proj", 1), ("v_proj", 2)):
        layer = attention.get_submodule(name)
        layer.register_forward_hook(lambda _, given, y, head=head: louder(y, of_head(head)))
    attention.get_submodule("o_proj").register_forward_pre_hook(
        lambda _, given: (louder(given[0], of_head(5)),)
    )


def spoil_experts(model: nn.Module) -> None:
    gate, experts = map(model.get_submodule, (GATE, MIXTURE))
    gate.register_forward_hook(lambda _, given, made: (louder(made[0], 3), *made[1:]))
    experts.register_forward_hook(lambda _, given, y: louder(y, ROW, slice(None)))


SPOILS = {"llama": spoil_heads, "qwen3-moe": spoil_experts}


@cache
def outcome_of(family: str, *, is_spoiled: bool) -> Outcome:
    config = FAMILIES[family].config(False)
    config.num_hidden_layers = 2
    made = transformers.AutoModelForCausalLM.from_config
    reference, candidate = (made(config, dtype=dtype) for dtype in (torch.float32, torch.bfloat16))
    FAMILIES[family].fill(reference, torch.Generator().manual_seed(0))
    candidate.load_state_dict(reference.state_dict())
    if is_spoiled:
        SPOILS[family](candidate)
    ids = torch.randint(256, (BATCH, TOKENS), generator=torch.Generator().manual_seed(0))
    given = {"input_ids": ids, "use_cache": False}
    return validator.check(reference=reference, candidate=candidate, inputs=given, profiles=True).outcome


def line(outcome: Outcome, axis: str, module: str, *, into: str | None = None, path: str = "") -> Line:
    (judgement,) = (
        j for j in outcome.judgements if (j.module, j.into, j.path) == (module, into, path) and j.profile
    )
    return lines_of(judgement)[axis]


def lines_of(judgement: Judgement) -> dict[str, Line]:
    return {} if judgement.profile is None else {found.axis: found for found in judgement.profile.lines}


def outside(found: Line) -> list[int]:
    return [start for start, error in zip(found.starts, found.largest, strict=True) if error > 1]


def test_a_fault_of_one_head_stands_out_along_the_heads_of_its_edge_alone() -> None:
    outcome = outcome_of("llama", is_spoiled=True)
    found = {name: line(outcome, "head", f"{ATTENTION}.{name}") for name in ("q_proj", "k_proj", "v_proj")}
    found["o_proj"] = line(outcome, "head", ATTENTION, into=f"{ATTENTION}.o_proj", path="input")
    assert {name: (of.size, outside(of)) for name, of in found.items()} == {
        "q_proj": (HEADS, [6]),
        "k_proj": (KEY_HEADS, [1]),
        "v_proj": (KEY_HEADS, [2]),
        "o_proj": (HEADS, [5]),
    }


def test_only_edges_of_heads_have_heads_and_a_healthy_one_is_within_the_band_at_each() -> None:
    outcome = outcome_of("llama", is_spoiled=False)
    assert outcome.verdict is Verdict.ALIGNED
    of_heads = {
        f"{j.into} input" if j.into else j.module: lines["head"]
        for j in outcome.judgements
        if "head" in (lines := lines_of(j)) and ATTENTION in j.module
    }
    outputs = [f"{ATTENTION}.{name}" for name in ("q_proj", "k_proj", "v_proj")]
    assert of_heads.keys() == {*outputs, f"{ATTENTION}.o_proj input"}
    for found in of_heads.values():
        assert outside(found) == []
        assert list(found.counts) == [BATCH * TOKENS * HEAD_SIZE] * found.size


class Attention(nn.Module):
    """Projections of as many channels as `made` says."""

    def __init__(self, *made: int, head_dim: int | None = 4) -> None:
        super().__init__()
        self.num_heads, self.num_key_value_heads, self.head_dim = 4, 2, head_dim
        for name, size in zip(("q_proj", "k_proj", "v_proj"), made, strict=True):
            self.add_module(name, nn.Linear(16, size))
        self.o_proj = nn.Linear(16, 16)


@pytest.mark.parametrize(
    ("attention", "inputs", "outputs"),
    [
        (Attention(16, 8, 8), ["o_proj"], ["q_proj", "k_proj", "v_proj"]),
        (Attention(32, 8, 8), ["o_proj"], ["k_proj", "v_proj"]),
        (Attention(16, 8, 8, head_dim=None), [], []),
    ],
    ids=["heads", "queries and gates", "of unknown size"],
)
def test_heads_are_known_where_a_projection_makes_or_takes_all_of_them(
    attention: nn.Module, inputs: Sequence[str], outputs: Sequence[str]
) -> None:
    found = head_sizes(nn.ModuleDict({"attn": attention}))
    assert found.inputs == {f"attn.{name}": 4 for name in inputs}
    assert found.outputs == {f"attn.{name}": 4 for name in outputs}


def test_a_score_that_is_wrong_for_one_expert_stands_out_along_the_experts() -> None:
    outcome = outcome_of("qwen3-moe", is_spoiled=True)
    found = line(outcome, "expert", GATE, path="0")
    assert (found.size, outside(found)) == (EXPERTS, [3])
    (finding,) = (f for f in outcome.findings if f.module == GATE)
    assert finding.where["experts"] == [3]
    others = [j for j in outcome.judgements if "expert" in lines_of(j) and not j.module.endswith(".gate")]
    assert others == []


def test_tokens_of_sequences_that_follow_each_other_are_told_by_sequence_and_token() -> None:
    outcome = outcome_of("qwen3-moe", is_spoiled=True)
    tokens, sequences = (line(outcome, axis, MIXTURE) for axis in ("token", "batch"))
    assert (tokens.size, outside(tokens)) == (TOKENS, [4])
    assert (sequences.size, outside(sequences)) == (BATCH, [1])


def test_a_fault_of_experts_is_at_its_token_in_the_errors_by_position() -> None:
    outcome = outcome_of("qwen3-moe", is_spoiled=True)
    found = token_errors(outcome)
    assert found is not None
    experts = [f"model.layers.{n}.mlp.experts" for n in range(2)]
    assert found.size == TOKENS
    assert list(found.left_out) == [
        name
        for module in experts
        for name in (f"{module}, into act_fn [input] (wiring)", f"{module}.act_fn (function)")
    ]
    assert [error > 1 for error in found.errors[found.layers.index("1")]] == [n == 4 for n in range(TOKENS)]
