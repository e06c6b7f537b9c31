"""Which operator is named, by planted faults and healthy twins."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.checks.inside.build import HEAD, Attention, Block, Halves, Mlp, Norm, captured, inside
from validator.checks.edges import EdgeJudge
from validator.checks.findings import Verdict
from validator.checks.module_code import Code


class WrongScale(Attention):
    def scaled(self, scores: Tensor) -> Tensor:
        return scores * (self.scale * 1.05)


class NoScale(Attention):
    def scaled(self, scores: Tensor) -> Tensor:
        return scores


class ScaledTwice(Attention):
    def scaled(self, scores: Tensor) -> Tensor:
        return scores * self.scale * 1.25


class ShiftedMask(Attention):
    def masked(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores + mask.to(scores.dtype).roll(1, -1)


class SoftmaxOfQueries(Attention):
    def probabilities(self, scores: Tensor) -> Tensor:
        return F.softmax(scores.float(), dim=-2).to(scores.dtype)


class TurnedBackwards(Attention):
    def half_turned(self, x: Tensor) -> Tensor:
        first, second = x[..., : HEAD // 2], x[..., HEAD // 2 :]
        return torch.cat((second, -first), dim=-1)


class WrongFusedScale(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.scale * 1.2)


class ValuesOffAfterCopies(Attention):
    """Copies and casts that change nothing, and a fault behind them."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        q, k = q.float().contiguous().clone().to(q.dtype), k.clone()
        scores = self.masked(self.scaled(torch.matmul(q, k.transpose(2, 3).contiguous())), mask)
        return self.probabilities(scores.clone()) @ v.clone().roll(1, 2)


class ScaledQueries(Attention):
    """Scales the queries, and rounds them once more, where the reference scales the scores."""

    factor = 1.0

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        q = (q.float() * (self.scale * self.factor)).to(q.dtype)
        return self.probabilities(self.masked(q @ k.transpose(2, 3), mask)) @ v


class ScaledQueriesAndRolledValues(ScaledQueries):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return super().attend(q, k, v.roll(1, 2), mask)


class QueriesScaledWrongly(ScaledQueries):
    factor = 1.2


class OtherOrder(Attention):
    """The channels of queries and keys are in another order, which scores do not show."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        order = torch.arange(HEAD).reshape(2, -1).t().reshape(-1)
        return super().attend(q[..., order], k[..., order], v, mask)


class OtherOrderAndRolledValues(OtherOrder):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return super().attend(q, k, v.roll(1, 2), mask)


class LargeEpsilon(Norm):
    def __init__(self) -> None:
        super().__init__()
        self.epsilon = 0.05


class UnbiasedVariance(Norm):
    def variance(self, x: Tensor) -> Tensor:
        return x.pow(2).sum(-1, keepdim=True) / (x.shape[-1] - 1)


class NarrowRoot(Norm):
    def forward(self, hidden_states: Tensor) -> Tensor:
        x = hidden_states.float()
        root = torch.rsqrt(self.variance(x) + self.epsilon)
        x = x * root.to(torch.float8_e4m3fn).float()
        return self.weight * x.to(hidden_states.dtype)


class OneAdded(Norm):
    def forward(self, hidden_states: Tensor) -> Tensor:
        x = hidden_states.float()
        x = x * torch.rsqrt(self.variance(x) + self.epsilon)
        return (1 + self.weight) * x.to(hidden_states.dtype)


class Gelu(Mlp):
    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        return F.gelu(gate) * up


class NoActivation(Mlp):
    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        return gate * up


class Clamped(Mlp):
    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(gate).clamp(max=0.5) * up


class OffByPart(Mlp):
    """A factor too small for any element to show."""

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        product = F.silu(gate).float() * up.float()
        return (product * 1.0015).to(gate.dtype)


class NoResidual(Block):
    def joined(self, residual: Tensor, branch: Tensor) -> Tensor:
        return branch


class GeluHalf(Halves):
    def first(self, x: Tensor) -> Tensor:
        return F.gelu(x)


class OtherFactor(Halves):
    factor = 2.05


FUSED = "_scaled_dot_product_flash_attention_for_cpu"

FAULTS = [
    (WrongScale, "mul"),
    (NoScale, "mul"),
    (ScaledTwice, "mul"),
    (ShiftedMask, "roll"),
    (SoftmaxOfQueries, "_softmax"),
    (TurnedBackwards, "neg"),
    (WrongFusedScale, FUSED),
    (ValuesOffAfterCopies, "roll"),
    (ScaledQueriesAndRolledValues, "roll"),
    (QueriesScaledWrongly, "mul"),
    (OtherOrderAndRolledValues, "roll"),
    (LargeEpsilon, "add"),
    (UnbiasedVariance, "mean"),
    (NarrowRoot, "_to_copy"),
    (OneAdded, "add"),
    (Gelu, "silu"),
    (NoActivation, "silu"),
    (Clamped, "clamp"),
    (OffByPart, "mul"),
    (GeluHalf, "silu"),
    (OtherFactor, "mul"),
]


@pytest.mark.parametrize(("fault", "op"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_the_operator_of_a_planted_fault_is_named(fault: type[nn.Module], op: str, tmp_path: Path) -> None:
    outcome = captured(fault, tmp_path).check()
    first = outcome.findings[0]
    assert first.verdict is Verdict.DIVERGENT
    assert first.module == "inner"
    assert first.op == op
    assert f"{op} is the first operator inside that is wrong" in first.summary


class Joined(Halves):
    """The halves are joined in place of being written."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        first, second = hidden_states.chunk(2, dim=-1)
        return torch.cat((self.first(first), second * self.factor), dim=-1)


class CopiedAndCast(Attention):
    """Copies, and casts that change nothing."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        q, k = q.float().contiguous().clone().to(q.dtype), k.clone()
        scores = self.masked(self.scaled(torch.matmul(q, k.transpose(2, 3).contiguous())), mask)
        return self.probabilities(scores.clone()) @ v.clone()


class Fused(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.scale)


class ProbabilitiesInFewerBits(Attention):
    def probabilities(self, scores: Tensor) -> Tensor:
        return F.softmax(scores, dim=-1)


class InPlace(Mlp):
    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(gate.clone(), inplace=True).mul_(up)


class SiluWrittenOut(Mlp):
    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        wide = gate.float()
        return (wide / (1 + (-wide).exp())).to(gate.dtype) * up


@torch.library.custom_op("validator_inside::swiglu", mutates_args=())
def swiglu(gate: Tensor, up: Tensor, factor: float) -> Tensor:
    return (F.silu(gate.float()) * up.float() * factor).to(gate.dtype)


class OwnKernel(Mlp):
    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        return swiglu(gate, up, 1.0)


class WrongOwnKernel(Mlp):
    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        return swiglu(gate, up, 1.02)


HEALTHY = [
    Attention,
    CopiedAndCast,
    Fused,
    ProbabilitiesInFewerBits,
    ScaledQueries,
    OtherOrder,
    Norm,
    Mlp,
    InPlace,
    SiluWrittenOut,
    OwnKernel,
    Block,
    Halves,
    Joined,
]


@pytest.mark.parametrize("twin", HEALTHY, ids=[twin.__name__ for twin in HEALTHY])
def test_inside_of_a_healthy_twin_no_operator_is_guilty(twin: type[nn.Module], tmp_path: Path) -> None:
    guilty: list[str] = []
    captured(twin, tmp_path).each(lambda code, judge: guilty.extend(_guilty(code, judge)))
    assert guilty == []


def test_an_operator_that_the_candidate_left_out_altogether_is_named(tmp_path: Path) -> None:
    first = captured(NoResidual, tmp_path).check().findings[0]
    assert (first.module, first.op) == ("inner", "add")


def test_what_differs_from_all_that_operators_returned_is_none_of_theirs(tmp_path: Path) -> None:
    def look(code: Code, judge: EdgeJudge) -> None:
        if code.log is not None and code.call.module == "inner":
            edge = next(edge for edge in code.edges if edge.into is not None)
            wrong = replace(edge, cand=replace(edge.cand, data=edge.cand.data + 1))
            named.append(inside(code, judge).culprit(wrong, None))

    named: list[object] = []
    captured(Attention, tmp_path).each(look)
    assert named == [None]


def test_a_foreign_kernel_is_named_with_its_namespace(tmp_path: Path) -> None:
    first = captured(WrongOwnKernel, tmp_path).check().findings[0]
    assert (first.module, first.into, first.op) == ("inner", "inner.down", "validator_inside.swiglu")


def test_a_module_that_is_one_operator_needs_no_capture_of_operators(tmp_path: Path) -> None:
    def spoil(model: nn.Module) -> None:
        with torch.no_grad():
            model.get_parameter("inner.up.weight").mul_(1.05)

    found = captured(Mlp, tmp_path, operators=None, spoil=spoil).check().findings
    assert [(f.module, f.check.value, f.op) for f in found] == [
        ("inner.up", "parameter", None),
        ("inner.up", "function", "mm"),
    ]


def test_without_operators_a_module_of_several_is_named_alone(tmp_path: Path) -> None:
    first = captured(Gelu, tmp_path, operators=None).check().findings[0]
    assert (first.module, first.op) == ("inner", None)
    assert "operator" not in first.summary


def _guilty(code: Code, judge: EdgeJudge) -> list[str]:
    if code.log is None:
        return []
    look = inside(code, judge)
    named = [look.culprit(edge, None) for edge in code.edges]
    judge.judge(code)
    return [f"{code.call.module}: {x.op}" for x in named if x is not None] + [
        finding.summary for finding in judge.said.findings
    ]
