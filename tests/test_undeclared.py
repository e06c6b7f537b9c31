"""Less precision than declared is named: the recipe, the module and the operator; declared it is aligned.

Each case is a small candidate that computes one thing more coarsely than its reference does.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.checks.build import check
from tests.selecting import cases
from validator.checks.findings import Arm, Finding, Verdict
from validator.emulate import Emulation, emulate_module
from validator.numerics.recipes import RECIPES

WIDTH = 64
HEADS = 4


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def hidden(dtype: torch.dtype, tokens: int = 48) -> Tensor:
    return seeded(4, tokens, WIDTH).to(dtype)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up_proj = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down_proj = nn.Linear(4 * WIDTH, WIDTH, bias=False)
        for seed, layer in enumerate((self.up_proj, self.down_proj)):
            layer.weight.data = seeded(*layer.weight.shape, seed=seed) / layer.in_features**0.5

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.up_proj(x)))


class NarrowLinear(nn.Linear):
    """Multiplies in bfloat16."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x.bfloat16(), self.weight.bfloat16()).to(x.dtype)


class NarrowMlp(Mlp):
    def __init__(self) -> None:
        super().__init__()
        self.down_proj = NarrowLinear(4 * WIDTH, WIDTH, bias=False)


class Attention(nn.Module):
    """Attention in separate operators, with the softmax in float32."""

    scaling = (WIDTH // HEADS) ** -0.5

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )
        for seed, layer in enumerate((self.q_proj, self.k_proj, self.v_proj, self.o_proj)):
            scale = 1.5 if seed < 2 else 1.0
            layer.weight.data = scale * seeded(WIDTH, WIDTH, seed=seed) / WIDTH**0.5

    def heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    def probabilities(self, scores: Tensor) -> Tensor:
        return functional.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.heads(layer(x)) for layer in (self.q_proj, self.k_proj, self.v_proj))
        p = self.probabilities(q @ k.transpose(-2, -1) * self.scaling)
        return self.o_proj(self.attended(p, v).transpose(1, 2).flatten(2))

    def attended(self, p: Tensor, v: Tensor) -> Tensor:
        return p @ v


def one_by_one(values: Tensor) -> Tensor:
    """Sum along the last dim, every partial sum rounded to the values' dtype."""
    total = torch.zeros_like(values[..., :1])
    for term in values.split(1, -1):
        total = total + term
    return total


class NarrowSums(Attention):
    """Its softmax sums up in bfloat16, one after the other."""

    def probabilities(self, scores: Tensor) -> Tensor:
        wide = scores.float()
        numerators = torch.exp(wide - wide.amax(-1, keepdim=True))
        return (numerators / one_by_one(numerators.bfloat16()).float()).to(scores.dtype)


class BlockedOutput(Attention):
    """Adds up its output over blocks of keys in bfloat16, and rounds its scores as eager code does."""

    def attended(self, p: Tensor, v: Tensor) -> Tensor:
        total = torch.zeros_like(v)
        for p_block, v_block in zip(p.split(16, -1), v.split(16, -2), strict=True):
            total = total + p_block @ v_block
        return total


class GemmaNorm(nn.Module):
    eps = 1e-6

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * seeded(WIDTH, seed=5))

    def shifted(self) -> Tensor:
        return 1.0 + self.weight.float()

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (normed * self.shifted()).type_as(x)


class NarrowShift(GemmaNorm):
    """Adds one to the weight in the weight's own dtype."""

    def shifted(self) -> Tensor:
        return (1.0 + self.weight).float()


class EarlyCast(GemmaNorm):
    """Rounds before it multiplies by 1 + weight, and rounds that sum."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return normed.type_as(x) * (1.0 + self.weight)


class Router(nn.Module):
    """Weights of the best experts for each token, as Qwen3-MoE's router computes them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 8, bias=False)
        self.gate.weight.data = seeded(8, WIDTH, seed=6) / WIDTH**0.5

    def probabilities(self, logits: Tensor) -> Tensor:
        return functional.softmax(logits, dim=-1, dtype=torch.float32)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        values, chosen = torch.topk(self.probabilities(self.gate(x)), 2, dim=-1)
        return (values / values.sum(-1, keepdim=True)).to(x.dtype), chosen


class NarrowRouter(Router):
    """Computes its softmax, and what follows, in the logits' own dtype."""

    def probabilities(self, logits: Tensor) -> Tensor:
        return functional.softmax(logits, dim=-1)


class InPlaceRouter(Router):
    """Normalises the values that it chose in place."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        values, chosen = torch.topk(self.probabilities(self.gate(x)), 2, dim=-1)
        values /= values.sum(-1, keepdim=True)
        return values.to(x.dtype), chosen


class NarrowInPlaceRouter(InPlaceRouter):
    """The same in the logits' own dtype."""

    def probabilities(self, logits: Tensor) -> Tensor:
        return functional.softmax(logits, dim=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Something that is computed more coarsely than declared.

    Attributes:
        reference, candidate: make the two modules, in float32.
        recipe: name that must be said.
        guilty: module and child that must be named.
        ops: aten operators of which one must be named.
        emulation: what the candidate's `emulated` child computes with.
        dtype: the candidate's.
    """

    reference: Callable[[], nn.Module]
    recipe: str
    guilty: tuple[str, str | None]
    ops: tuple[str, ...]
    candidate: Callable[[], nn.Module] | None = None
    emulation: Emulation | None = None
    emulated: str = ""
    dtype: torch.dtype = torch.bfloat16


CASES = {
    "split-K partial sums in bf16": Case(
        reference=Mlp,
        recipe="bf16-partials",
        guilty=("down_proj", None),
        ops=("mm",),
        emulation=Emulation(split_k=4, partials="bfloat16"),
        emulated="down_proj",
    ),
    "split-K partial sums in fp16": Case(
        reference=Mlp,
        recipe="fp16-partials",
        guilty=("down_proj", None),
        ops=("mm",),
        emulation=Emulation(split_k=4, partials="float16"),
        emulated="down_proj",
        dtype=torch.float16,
    ),
    "sums of products in bf16": Case(
        reference=Mlp,
        recipe="bf16-accumulate",
        guilty=("up_proj", None),
        ops=("mm",),
        emulation=Emulation(accumulate="bfloat16"),
        emulated="up_proj",
    ),
    "TF32 inputs": Case(
        reference=Mlp,
        recipe="tf32",
        guilty=("up_proj", None),
        ops=("mm",),
        emulation=Emulation(factors="tf32"),
        emulated="up_proj",
        dtype=torch.float32,
    ),
    "TF32 inputs in attention": Case(
        reference=Attention,
        recipe="tf32",
        guilty=("q_proj", None),
        ops=("mm",),
        emulation=Emulation(factors="tf32"),
        dtype=torch.float32,
    ),
    "bf16 inputs of a float32 product": Case(
        reference=Mlp,
        recipe="bf16-factors",
        guilty=("up_proj", None),
        ops=("mm",),
        emulation=Emulation(factors="bfloat16"),
        emulated="up_proj",
        dtype=torch.float32,
    ),
    "a float32 product in bf16": Case(
        reference=Mlp,
        candidate=NarrowMlp,
        recipe="bf16-factors",
        guilty=("down_proj", None),
        ops=("mm",),
        dtype=torch.float32,
    ),
    "13-bit accumulator in bf16": Case(
        reference=Mlp,
        recipe="truncated-accumulator",
        guilty=("down_proj", None),
        ops=("mm",),
        emulation=Emulation(accumulate="float32", accumulator_bits=13),
        emulated="down_proj",
    ),
    "13-bit accumulator in float32": Case(
        reference=Mlp,
        recipe="truncated-accumulator",
        guilty=("down_proj", None),
        ops=("mm",),
        emulation=Emulation(accumulate="float32", accumulator_bits=13, order="blocked", block=16),  # type: ignore[arg-type]
        emulated="down_proj",
        dtype=torch.float32,
    ),
    "fp8 GEMM": Case(
        reference=Mlp,
        recipe="fp8",
        guilty=("down_proj", None),
        ops=("mm",),
        emulation=Emulation(fp8=True),
        emulated="down_proj",
    ),
    "softmax accumulates in bf16": Case(
        reference=Attention,
        candidate=NarrowSums,
        recipe="bf16-sums",
        guilty=("", "o_proj"),
        ops=("_softmax",),
    ),
    "attention accumulates its output in bf16 over blocks": Case(
        reference=Attention,
        candidate=BlockedOutput,
        recipe="bf16-partials",
        guilty=("", "o_proj"),
        ops=("bmm",),
    ),
    "1 + w added in bf16": Case(
        reference=GemmaNorm, candidate=NarrowShift, recipe="bf16-inside", guilty=("", None), ops=("add",)
    ),
    "cast before 1 + w": Case(
        reference=GemmaNorm, candidate=EarlyCast, recipe="bf16-inside", guilty=("", None), ops=("add", "mul")
    ),
    "router in bf16": Case(
        reference=Router,
        candidate=NarrowRouter,
        recipe="bf16-inside",
        guilty=("", None),
        ops=("_softmax", "div", "sum"),
    ),
    "router in bf16, in place": Case(
        reference=InPlaceRouter,
        candidate=NarrowInPlaceRouter,
        recipe="bf16-inside",
        guilty=("", None),
        ops=("_softmax", "div", "sum"),
    ),
}


def built(case: Case) -> nn.Module:
    """Build a case's candidate, which computes with less precision."""
    candidate = (case.candidate or case.reference)()
    candidate.load_state_dict(case.reference().state_dict())
    candidate.to(case.dtype)
    if case.emulation is not None:
        emulate_module(candidate.get_submodule(case.emulated), case.emulation)
    return candidate


def findings(case: Case, recipe: str | None = None) -> tuple[Finding, ...]:
    candidate = built(case)
    declared = None if recipe is None else RECIPES[recipe]
    outcome = check(case.reference(), candidate, {"x": hidden(case.dtype)}, recipe=declared)
    assert not outcome.why_inconclusive
    return outcome.findings


@pytest.mark.parametrize("name", CASES)
def test_less_precision_than_declared_is_named_with_its_operator(name: str) -> None:
    case = CASES[name]
    found = findings(case)
    assert {f.verdict for f in found} == {Verdict.UNDECLARED_PRECISION}
    first = found[0]
    assert (first.module, first.into) == case.guilty
    assert first.recipe == case.recipe
    assert first.op in case.ops
    assert f"the recipe {case.recipe!r} alone (in {first.op}), which was not declared" in first.summary


@pytest.mark.parametrize("name", CASES)
def test_what_was_declared_is_aligned(name: str) -> None:
    assert findings(CASES[name], CASES[name].recipe) == ()


class Scaled(nn.Linear):
    """A projection that multiplies what it computes by a factor, before the one rounding."""

    factor = 1.001
    row: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        y = functional.linear(x.float(), self.weight.float())
        if self.row is None:
            return (y * self.factor).to(x.dtype)
        y[..., self.row] *= self.factor
        return y.to(x.dtype)


class ScaledDown(Scaled):
    factor = 0.999


class ScaledRow(Scaled):
    factor = 1.02
    row = 40


class SlightlyScaledRow(ScaledRow):
    factor = 1.003


class ScaledMlp(Mlp):
    kind: type[Scaled] = Scaled

    def __init__(self) -> None:
        super().__init__()
        self.up_proj = self.kind(WIDTH, 4 * WIDTH, bias=False)


class ScaledDownMlp(ScaledMlp):
    kind = ScaledDown


class ScaledRowMlp(ScaledMlp):
    kind = ScaledRow


class SlightlyScaledRowMlp(ScaledMlp):
    kind = SlightlyScaledRow


class GeluMlp(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.gelu(self.up_proj(x)))


class ScaledScores(Attention):
    scaling = Attention.scaling * 1.01


class WideScores(Attention):
    """Rounds its probabilities, but not its scores: neither as fused kernels nor as eager code do."""

    def probabilities(self, scores: Tensor) -> Tensor:
        raise AssertionError("the scores are never rounded")

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.heads(layer(x)) for layer in (self.q_proj, self.k_proj, self.v_proj))
        scores = q.float() @ k.float().transpose(-2, -1) * self.scaling
        p = functional.softmax(scores, dim=-1).to(x.dtype)
        return self.o_proj((p @ v).transpose(1, 2).flatten(2))


class WindowedAttention(Attention):
    """Leaves the oldest key out."""

    def probabilities(self, scores: Tensor) -> Tensor:
        return super().probabilities(scores.index_fill(-1, torch.tensor([0]), -torch.inf))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = GemmaNorm(), Mlp()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x))


class WithoutResidual(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) + self.mlp(self.norm(x))


class ScaledNorm(GemmaNorm):
    def shifted(self) -> Tensor:
        return 1.005 + self.weight.float()


class QuietNorm(GemmaNorm):
    """Has an epsilon that rounding does not hide."""

    eps = 1e-4


class LargeEpsilon(QuietNorm):
    eps = 1e-3


FAULTS = {
    "a factor of 1.001 on a projection": (Mlp, ScaledMlp, ("up_proj", None)),
    "a factor of 0.999 on a projection": (Mlp, ScaledDownMlp, ("up_proj", None)),
    "one row of a projection off by 2%": (Mlp, ScaledRowMlp, ("up_proj", None)),
    "one row of a projection off by 0.3%": (Mlp, SlightlyScaledRowMlp, ("up_proj", None)),
    "GELU for SiLU": (Mlp, GeluMlp, ("", "down_proj")),
    "attention scale off by 1%": (Attention, ScaledScores, ("", "o_proj")),
    "attention window one short": (Attention, WindowedAttention, ("", "o_proj")),
    "residual from behind the norm": (Block, WithoutResidual, ("", None)),
    "norm weights off by 0.005": (GemmaNorm, ScaledNorm, ("", None)),
    "epsilon ten times as large": (QuietNorm, LargeEpsilon, ("", None)),
}


DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@pytest.mark.parametrize("dtype", cases(DTYPES, quick=lambda dtype: dtype is torch.bfloat16))
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_no_precision_that_was_not_declared(name: str, dtype: torch.dtype) -> None:
    reference, spoiled, guilty = FAULTS[name]
    candidate = spoiled()
    candidate.load_state_dict(reference().state_dict())
    given = {"x": hidden(dtype, tokens=128 if "a factor" in name else 48)}
    found = check(reference(), candidate.to(dtype), given).findings
    assert [(f.module, f.into) for f in found] == [guilty]
    assert {f.verdict for f in found} == {Verdict.DIVERGENT}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reference", [Mlp, Attention, GemmaNorm, Router, Block])
def test_what_is_computed_as_in_the_reference_has_no_finding(
    reference: type[nn.Module], dtype: torch.dtype
) -> None:
    assert check(reference(), reference().to(dtype), {"x": hidden(dtype)}).findings == ()


def test_nothing_finite_is_no_precision_that_was_not_declared() -> None:
    candidate = GemmaNorm()
    candidate.weight.data.fill_(torch.nan)
    (found,) = [
        f
        for f in check(GemmaNorm(), candidate.bfloat16(), {"x": hidden(torch.bfloat16)}).findings
        if not f.path
    ]
    assert (found.verdict, found.arm) == (Verdict.DIVERGENT, Arm.CLASS)


def test_a_mixture_of_what_is_allowed_is_no_undeclared_precision() -> None:
    assert check(Attention(), WideScores().bfloat16(), {"x": hidden(torch.bfloat16)}).findings == ()
