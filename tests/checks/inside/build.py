"""Small modules in two spellings, captured with their operators, and judged."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.checks.build import copied, feed
from validator.align.builder import build_trace
from validator.align.traces import Trace
from validator.capturing.reader import open_capture
from validator.capturing.session import capture
from validator.checks.edges import EdgeJudge
from validator.checks.engine import policy_of, run_checks
from validator.checks.explaining import Explainer
from validator.checks.findings import Outcome
from validator.checks.inside.culprit import Inside
from validator.checks.judge import Bench
from validator.checks.module_code import Code
from validator.checks.walk import walk

BATCH, TOKENS, WIDTH, HEADS = 2, 16, 32, 4
HEAD = WIDTH // HEADS


class Attention(nn.Module):
    """Attention with rotary embedding, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.scale = HEAD**-0.5

    def forward(self, hidden_states: Tensor, cos: Tensor, sin: Tensor, attention_mask: Tensor) -> Tensor:
        q, k, v = (split(layer(hidden_states)) for layer in (self.q, self.k, self.v))
        q, k = self.turn(q, cos, sin), self.turn(k, cos, sin)
        mixed = self.attend(q, k, v, attention_mask)
        out: Tensor = self.o(mixed.transpose(1, 2).reshape(hidden_states.shape))
        return out

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return x * cos + self.half_turned(x) * sin

    def half_turned(self, x: Tensor) -> Tensor:
        first, second = x[..., : HEAD // 2], x[..., HEAD // 2 :]
        return torch.cat((-second, first), dim=-1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = self.masked(self.scaled(q @ k.transpose(2, 3)), mask)
        return self.probabilities(scores) @ v

    def scaled(self, scores: Tensor) -> Tensor:
        return scores * self.scale

    def masked(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores + mask.to(scores.dtype)

    def probabilities(self, scores: Tensor) -> Tensor:
        return F.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)


class Norm(nn.Module):
    """RMSNorm, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(WIDTH))
        self.epsilon = 1e-5

    def forward(self, hidden_states: Tensor) -> Tensor:
        x = hidden_states.float()
        x = x * torch.rsqrt(self.variance(x) + self.epsilon)
        return self.weight * x.to(hidden_states.dtype)

    def variance(self, x: Tensor) -> Tensor:
        return x.pow(2).mean(-1, keepdim=True)


class Mlp(nn.Module):
    """A gated MLP whose activation is part of its own code."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        out: Tensor = self.down(self.gated(self.gate(hidden_states), self.up(hidden_states)))
        return out

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(gate) * up


class Block(nn.Module):
    """A norm and an MLP around a residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = Norm(), Mlp()

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.joined(hidden_states, self.mlp(self.norm(hidden_states)))

    def joined(self, residual: Tensor, branch: Tensor) -> Tensor:
        return residual + branch


class Halves(nn.Module):
    """Two halves that are written into one tensor in place."""

    factor = 2.0

    def forward(self, hidden_states: Tensor) -> Tensor:
        half = WIDTH // 2
        out = torch.zeros_like(hidden_states)
        out[..., :half] = self.first(hidden_states[..., :half])
        out[..., half:].add_(hidden_states[..., half:]).mul_(self.factor)
        return out

    def first(self, x: Tensor) -> Tensor:
        return F.silu(x)


class Model(nn.Module):
    """One block under a name, so that the guilty module has one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden_states: Tensor, **others: Tensor) -> Tensor:
        out: Tensor = self.inner(hidden_states, **others)
        return out


def split(x: Tensor) -> Tensor:
    """Return `[B, heads, T, D]` of `[B, T, heads * D]`."""
    return x.view(*x.shape[:2], HEADS, HEAD).transpose(1, 2)


def given(kind: type[nn.Module], dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    """Return what a module of a kind is fed."""
    generator = torch.Generator().manual_seed(7)
    inputs = {"hidden_states": torch.randn(BATCH, TOKENS, WIDTH, generator=generator)}
    if issubclass(kind, Attention):
        angle = torch.arange(TOKENS)[:, None] * 0.3 ** torch.arange(HEAD // 2).repeat(2)
        later = torch.ones(TOKENS, TOKENS).triu(1)
        inputs |= {"cos": angle.cos(), "sin": angle.sin()}
        inputs |= {"attention_mask": (later * torch.finfo(torch.bfloat16).min).expand(BATCH, 1, -1, -1)}
    return {name: value.to(dtype) for name, value in inputs.items()}


def pair(candidate: type[nn.Module], dtype: torch.dtype = torch.bfloat16) -> tuple[Model, Model]:
    """Return a reference and a candidate with the same weights, the latter of a subclass."""
    kind = next(k for k in (Attention, Norm, Mlp, Block, Halves) if issubclass(candidate, k))
    torch.manual_seed(11)
    reference = Model(kind())
    for parameter in reference.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=1.5 / parameter.shape[1] ** 0.5)
    other = Model(candidate())
    other.load_state_dict(reference.state_dict())
    return reference.eval(), other.to(dtype).eval()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Both sides, captured."""

    reference: nn.Module
    trace: Trace
    inputs: dict[str, Any]

    def check(self) -> Outcome:
        """Judge the candidate."""
        return run_checks(
            reference=self.reference, trace=self.trace, run=feed(self.inputs), policy=policy_of(None)
        )

    def each(self, look: Callable[[Code, EdgeJudge], object]) -> None:
        """Walk through the code of all calls."""
        view = self.trace.views[0]
        judge = EdgeJudge(trace=self.trace, view=view, policy=policy_of(None), bench=Bench(elements=1 << 20))
        walk(
            reference=self.reference,
            trace=self.trace,
            view=view,
            run=feed(self.inputs),
            judge=lambda code: look(code, judge),  # type: ignore[arg-type, return-value]
            skip=lambda call, why: None,
        )


def inside(code: Code, judge: EdgeJudge) -> Inside:
    """Return the look into a piece of code."""
    explainer = Explainer(policy=judge.policy, bench=judge.bench)
    return Inside(code=code, explainer=explainer, view=judge.view)


def captured(
    candidate: type[nn.Module],
    folder: Path,
    dtype: torch.dtype = torch.bfloat16,
    operators: str | None = "*",
    spoil: Callable[[nn.Module], None] = lambda model: None,
) -> Run:
    """Run a candidate class against what it is derived from, and capture both."""
    reference, other = pair(candidate, dtype)
    spoil(other)
    inputs = given(type(reference.inner), dtype)
    with torch.no_grad():
        with capture(reference, folder / "reference.h5", overwrite=True):
            reference(**copied(inputs, torch.float32))
        with capture(other, folder / "candidate.h5", operators=operators, overwrite=True):
            other(**copied(inputs))
    ref, cand = (open_capture(folder / name).rank(0) for name in ("reference.h5", "candidate.h5"))
    return Run(reference=reference, trace=build_trace(cand=[cand], ref=ref), inputs=inputs)
