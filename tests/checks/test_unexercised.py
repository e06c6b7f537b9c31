"""Weights, routing and positions that a run leaves without effect."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.checks.build import check, edge, traced
from validator.align.traces import LeftOut, Trace, TraceCall, View
from validator.checks.unexercised import unexercised

WIDTH = 16
VIEW = View(ranks=(0,))


def said_of(model: nn.Module, **inputs: Tensor) -> list[tuple[str, str, str]]:
    outcome = check(model, model, inputs)
    wanted = ("left out", "wrong")
    return [
        (u.module, u.what, u.why)
        for u in outcome.unobservable
        if any(word in u.what for word in wanted) and "channel" not in u.what
    ]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def block(bias: float, weight: float) -> nn.Module:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.RMSNorm(WIDTH))
    with torch.no_grad():
        model[0].weight.copy_(normal(WIDTH, WIDTH) / 4)
        model[0].bias.copy_(bias * normal(WIDTH))
        model[1].weight.copy_(1 + weight * normal(WIDTH))
    return model


def test_a_bias_of_zeros_and_a_norm_weight_of_ones_can_be_left_out() -> None:
    assert said_of(block(0, 0), input=normal(32, WIDTH)) == [
        ("0", "bias left out", "all its values are 0"),
        ("1", "weight left out", "all its values are 1"),
    ]


def test_random_weights_can_not_be_left_out() -> None:
    assert said_of(block(0.5, 0.2), input=normal(32, WIDTH)) == []


class Experts(nn.Module):
    """The weights of all experts in one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(normal(4, WIDTH, WIDTH) / 4)

    def forward(self, x: Tensor, top_k_index: Tensor) -> Tensor:
        return torch.einsum("ti,toi->to", x, self.up[top_k_index])


@pytest.mark.parametrize(
    ("chosen", "propose"),
    [([0, 1, 2, 3], None), ([0, 2, 0, 0], "a prompt that routes tokens to 1, 3")],
    ids=["all", "some"],
)
def test_experts_that_no_token_reached_are_named(chosen: list[int], propose: str | None) -> None:
    model = Experts()
    outcome = check(model, model, {"x": normal(32, WIDTH), "top_k_index": torch.tensor(chosen).repeat(8)})
    proposals = [u.propose for u in outcome.unobservable if u.what == "a wrong expert"]
    assert proposals == ([] if propose is None else [propose])


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.experts[1](x)


def test_modules_of_a_list_that_were_never_called_are_named_together() -> None:
    model = Mixture()
    outcome = check(model, model, {"x": normal(32, WIDTH)})
    assert [(u.module, u.propose) for u in outcome.unobservable if u.what == "a wrong expert"] == [
        ("experts", "a prompt that routes tokens to 0, 2")
    ]


@pytest.mark.parametrize(
    ("fields", "propose"),
    [
        ({}, ["a prompt that routes tokens to 0, 2"]),
        ({"left_out": LeftOut(modules=("experts.0",))}, ["a prompt that routes tokens to 2"]),
        ({"left_out": LeftOut(modules=("experts.0", "experts.2"))}, []),
        ({"unmatched_reference": ("experts.2",)}, ["a prompt that routes tokens to 0"]),
    ],
    ids=["silent", "one-left-out", "all-left-out", "called-in-the-reference"],
)
def test_that_no_token_reached_a_module_is_not_said_of_one_that_was_left_out_or_called(
    fields: dict[str, Any], propose: list[str]
) -> None:
    model, inputs = Mixture(), {"x": normal(32, WIDTH)}
    trace = replace(traced(model, model, inputs), **fields)
    assert [u.propose for u in unexercised(model, trace, trace.views[0])] == propose


class Windowed(nn.Module):
    def __init__(self, window: int | None) -> None:
        super().__init__()
        self.sliding_window = window


def trace_of(tokens: int, positions: Tensor) -> Trace:
    inputs = {
        "hidden_states": edge(normal(1, tokens, WIDTH), "hidden_states", ("batch", "token", "channel")),
        "position_ids": edge(positions, "position_ids", ("batch", "token")),
    }
    call = TraceCall(
        module="attention",
        candidate_module="attention",
        n=0,
        parent=None,
        order=0,
        inputs=inputs,
        outputs={},
        values={},
    )
    return Trace(
        calls={("attention", 0): call}, parameters={}, candidate_parameters={}, views=(VIEW,), world_size=1
    )


def model_of(window: int | None) -> nn.Module:
    return nn.ModuleDict({"attention": Windowed(window)})


def test_a_window_that_is_longer_than_the_sequences_has_no_effect() -> None:
    trace = trace_of(12, torch.arange(12)[None])
    (said,) = unexercised(model_of(12), trace, VIEW)
    assert (said.module, said.what) == ("attention", "sliding_window 12 left out")
    assert said.why == "the longest sequence has 12 tokens"
    assert said.propose == "a sequence longer than 12"


@pytest.mark.parametrize("window", [11, None], ids=["shorter", "none"])
def test_a_shorter_window_has_one(window: int | None) -> None:
    assert unexercised(model_of(window), trace_of(12, torch.arange(12)[None]), VIEW) == []


def test_decoding_past_the_window_exercises_it() -> None:
    assert unexercised(model_of(12), trace_of(2, torch.tensor([[40, 41]])), VIEW) == []


def test_equal_positions_hide_what_depends_on_them() -> None:
    (said,) = unexercised(model_of(None), trace_of(3, torch.zeros(1, 3, dtype=torch.int64)), VIEW)
    assert said.what == "a wrong rotation or embedding of positions"
    assert said.why == "all positions are 0"
