"""Choices: the candidate's are followed, and judged by their margin.

Shape legend: N = tokens, D = channels, E = experts, K = chosen of them, G = groups.
"""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.checks.build import check
from validator.checks.findings import Arm, Check, Outcome, Verdict

TOKENS, WIDTH, EXPERTS = 96, 32, 8


def hidden(seed: int = 0) -> Tensor:
    return torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed))


class Router(nn.Module):
    """Scores experts, and chooses the best of each token.

    Args:
        nudge: added to the score of every other expert where one is chosen, not where it is used.
        scattered: whether it returns scores of all experts, zero where one was not chosen.
        ordered: whether the chosen come in the order of their scores.
    """

    def __init__(self, nudge: float = 0.0, *, scattered: bool = False, ordered: bool = True) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH, generator=generator) / WIDTH**0.5)
        self.nudge, self.scattered, self.ordered = nudge, scattered, ordered

    def forward(self, x_ND: Tensor) -> tuple[Tensor, Tensor]:
        logits_NE = functional.linear(x_ND, self.weight)
        choosing_NE = logits_NE
        if self.nudge:
            choosing_NE = logits_NE + self.nudge * (torch.arange(EXPERTS) % 2).to(logits_NE.dtype)
        indices_NK = torch.topk(choosing_NE, 2, dim=-1, sorted=self.ordered).indices
        scores_NK = functional.softmax(logits_NE.gather(-1, indices_NK), -1)
        if self.scattered:
            return torch.zeros_like(logits_NE).scatter(-1, indices_NK, scores_NK), indices_NK
        return scores_NK, indices_NK


class Grouped(nn.Module):
    """Chooses groups of experts by their best two, and experts among those of the groups, as DeepSeek-V3.

    Args:
        rule: how it does that.
        nudge: added to the scores of every other group.
    """

    def __init__(self, rule: str = "best two", nudge: float = 0.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH, generator=generator) / WIDTH**0.5)
        self.bias = nn.Parameter(torch.randn(EXPERTS, generator=generator) / 4)
        self.rule, self.nudge = rule, nudge

    def forward(self, x_ND: Tensor) -> tuple[Tensor, Tensor]:
        scores_NE = functional.linear(x_ND, self.weight).float().sigmoid()
        choosing_NE = scores_NE if self.rule == "unbiased" else scores_NE + self.bias.float()
        members = choosing_NE.view(-1, 4, 2)
        groups_NG = members.amax(-1) if self.rule == "best one" else members.topk(2, -1)[0].sum(-1)
        groups_NG = groups_NG + self.nudge * (torch.arange(4) % 2)
        chosen = torch.topk(groups_NG, 2, dim=-1, sorted=False)[1]
        mask_NG = torch.zeros_like(groups_NG).scatter_(1, chosen, 1)
        mask_NE = mask_NG.unsqueeze(-1).expand(-1, 4, 2).reshape(-1, EXPERTS)
        if self.rule != "no groups":
            choosing_NE = choosing_NE.masked_fill(~mask_NE.bool(), float("-inf"))
        indices_NK = torch.topk(choosing_NE, 2, dim=-1, sorted=False)[1]
        weights_NK = scores_NE.gather(1, indices_NK)
        return weights_NK / (weights_NK.sum(-1, keepdim=True) + 1e-20), indices_NK


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH, generator=generator) / WIDTH**0.5)
        self.act = nn.SiLU()

    def forward(self, x_ND: Tensor, weights: Tensor, indices_NK: Tensor) -> Tensor:
        out_ND = torch.zeros_like(x_ND)
        for expert in range(EXPERTS):
            tokens, places = torch.where(indices_NK == expert)
            if not len(tokens):
                continue
            made = self.act(x_ND[tokens] @ self.up[expert])
            column = expert if weights.shape[-1] == EXPERTS else places
            weighted = made * weights[tokens, column, None]
            out_ND.index_add_(0, tokens, weighted.to(out_ND.dtype))
        return out_ND


class Mixture(nn.Module):
    def __init__(self, router: nn.Module) -> None:
        super().__init__()
        self.router, self.experts = router, Experts()

    def forward(self, x: Tensor) -> Tensor:
        weights, indices = self.router(x)
        return self.experts(x, weights, indices)


class InOwnCode(nn.Module):
    """Routes in its own code, between children."""

    def __init__(self, nudge: float = 0.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.gate.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH, generator=generator) / WIDTH**0.5)
        self.experts = Experts()
        self.nudge = nudge

    def forward(self, x: Tensor) -> Tensor:
        probabilities = functional.softmax(self.gate(x), dim=-1, dtype=torch.float32)
        choosing = probabilities + self.nudge * (torch.arange(EXPERTS) % 2)
        indices = choosing.topk(2, -1).indices
        weights = probabilities.gather(-1, indices)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        return self.experts(x, weights, indices)


def narrow(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).to(torch.bfloat16)


def chosen(outcome: Outcome) -> list[Any]:
    return [f for f in outcome.findings if f.check is Check.EXACT]


def flips(reference: nn.Module, seed: int) -> int:
    """Count the tokens that bfloat16 sends to other experts, its rounding of the weights included."""
    x = hidden(seed).bfloat16()
    ours, theirs = reference(x.float())[1], narrow(reference)(x)[1]
    return int((ours.sort(-1).values != theirs.sort(-1).values).any(-1).sum())


ROUTERS = {
    "scores of the chosen": Router(),
    "scattered scores": Router(scattered=True),
    "any order": Router(ordered=False),
    "groups": Grouped(),
}


@pytest.mark.parametrize("router", ROUTERS.values(), ids=ROUTERS.keys())
def test_a_near_tie_that_falls_otherwise_is_followed_and_no_fault(router: nn.Module) -> None:
    seeds = [seed for seed in range(40) if flips(router, seed)][:3]
    assert len(seeds) == 3
    for seed in seeds:
        reference = Mixture(router)
        outcome = check(reference, narrow(reference), {"x": hidden(seed).bfloat16()})
        assert [f.summary for f in outcome.findings] == []
        assert outcome.verdict is Verdict.ALIGNED, outcome.why_inconclusive
        assert outcome.unchecked == ()
        assert "router" in {j.module for j in outcome.judgements if j.path == "topk"}


def test_a_choice_in_a_parents_own_code_shows_at_its_childs_input() -> None:
    reference = InOwnCode()
    for seed in range(4):
        outcome = check(reference, narrow(reference), {"x": hidden(seed).bfloat16()})
        assert (outcome.verdict, outcome.unchecked) == (Verdict.ALIGNED, ())
    outcome = check(reference, narrow(InOwnCode(nudge=0.1)), {"x": hidden().bfloat16()})
    assert [(f.module, f.path) for f in outcome.findings] == [("", "topk")]


@pytest.mark.parametrize("scattered", [True, False], ids=["scattered", "of the chosen"])
def test_a_router_that_chooses_other_experts_is_found_by_its_margin(scattered: bool) -> None:
    reference, faulty = (Mixture(Router(nudge, scattered=scattered)) for nudge in (0.0, 0.5))
    outcome = check(reference, narrow(faulty), {"x": hidden().bfloat16()})
    assert [(f.module, f.path, f.arm) for f in outcome.findings] == [("router", "topk", Arm.MAX)]
    assert outcome.findings[0].evidence.max_over_band > 10


def experts_of(router: nn.Module, seed: int) -> Tensor:
    return narrow(router)(hidden(seed).bfloat16())[1].sort(-1).values


def test_groups_that_no_edge_shows_are_told_from_the_experts_and_judged_by_their_margin() -> None:
    """A nudge below the rounding of the logits moves near ties of groups alone."""
    reference, nudged, wrong = Grouped(), Grouped(nudge=0.003), Grouped(nudge=0.1)
    seeds = [s for s in range(99) if not torch.equal(experts_of(reference, s), experts_of(nudged, s))][:3]
    assert len(seeds) == 3
    for seed in seeds:
        inputs = {"x": hidden(seed).bfloat16()}
        outcome = check(Mixture(reference), narrow(Mixture(nudged)), inputs)
        assert [f.summary for f in outcome.findings] == []
        assert outcome.verdict is Verdict.ALIGNED, outcome.why_inconclusive
        assert len([j for j in outcome.judgements if j.path == "topk"]) == 2
        faulty = check(Mixture(reference), narrow(Mixture(wrong)), inputs)
        assert {(f.module, f.path) for f in faulty.findings} == {("router", "topk")}


@pytest.mark.parametrize("rule", ["unbiased", "best one", "no groups"])
def test_a_wrong_rule_for_groups_is_found_at_the_router(rule: str) -> None:
    outcome = check(Mixture(Grouped()), narrow(Mixture(Grouped(rule))), {"x": hidden().bfloat16()})
    assert outcome.verdict is Verdict.DIVERGENT
    assert {f.module for f in outcome.findings} == {"router"}
    assert chosen(outcome) == list(outcome.findings)


def test_an_expert_that_no_token_reached_is_no_obstacle() -> None:
    reference = Mixture(Router())
    x = hidden()[:3].bfloat16()
    reached = set(reference.router(x.float())[1].flatten().tolist())
    assert len(reached) < EXPERTS
    outcome = check(reference, narrow(reference), {"x": x})
    assert (outcome.verdict, outcome.unchecked) == (Verdict.ALIGNED, ())


class AtOnce(Experts):
    """The same, with one call of the activation for all experts."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x_ND: Tensor, weights: Tensor, indices_NK: Tensor) -> Tensor:
        up = torch.einsum("nd,ndf->nf", x_ND.repeat_interleave(2, 0), self.up[indices_NK.flatten()])
        made = self.act(up) * weights.reshape(-1, 1) * self.factor
        return made.view(-1, 2, WIDTH).sum(1).to(x_ND.dtype)


@pytest.mark.parametrize("seed", range(3))
def test_experts_are_judged_through_children_whose_calls_do_not_line_up(seed: int) -> None:
    reference, candidate = Mixture(Router()), Mixture(Router())
    candidate.experts = AtOnce()
    outcome = check(reference, narrow(candidate), {"x": hidden(seed).bfloat16()})
    assert (outcome.verdict, outcome.unchecked) == (Verdict.ALIGNED, ())
    rows = [j for j in outcome.judgements if j.module == "experts" and j.check is not Check.PARAMETER]
    assert rows
    assert all("judged through experts.act" in row.note for row in rows)
    candidate.experts = AtOnce(1.1)
    faulty = check(reference, narrow(candidate), {"x": hidden(seed).bfloat16()})
    assert [(f.module, f.into) for f in faulty.findings] == [("experts", None)]


class Twice(nn.Module):
    """Chooses twice with indices of one shape, of which one alone leaves the module."""

    def __init__(self, first: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))
        self.first = first

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * self.weight
        lowest = y[:, :4].topk(2, -1).indices
        highest = y[:, 4:8].topk(2, -1).indices
        return y.gather(-1, lowest) * 2 + y[:, 4:8].gather(-1, highest), highest


def test_of_two_choices_of_one_shape_the_one_that_is_shown_is_followed() -> None:
    """With one token the indices of one choice can pass for those of the other."""
    for seed in range(12):
        x = hidden(seed)[:1].bfloat16()
        outcome = check(Twice(), narrow(Twice()), {"x": x})
        assert [f.summary for f in outcome.findings] == []
        assert outcome.verdict is Verdict.ALIGNED, outcome.why_inconclusive
