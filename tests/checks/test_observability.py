"""Mutations of the code that an input can't show, and inputs that can."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.checks.build import check
from validator.checks.findings import Unobservable, Verdict

WIDTH = 32


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def hidden(
    model: type[nn.Module], dtype: torch.dtype = torch.bfloat16, **inputs: Tensor
) -> list[Unobservable]:
    """Check a healthy port, and return what its run could not have shown."""
    outcome = check(model(), model().to(dtype), {name: x.to(dtype) for name, x in inputs.items()})
    assert outcome.verdict is Verdict.ALIGNED, outcome.findings
    return list(outcome.unobservable)


def shows(
    model: type[nn.Module], name: str, value: Any, dtype: torch.dtype = torch.bfloat16, **inputs: Tensor
) -> bool:
    """Tell whether a candidate with another `name` is found out."""
    candidate = model().to(dtype)
    setattr(candidate, name, value)
    outcome = check(model(), candidate, {key: x.to(dtype) for key, x in inputs.items()})
    return outcome.verdict is not Verdict.ALIGNED


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.2 * normal(WIDTH))
        self.eps = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        x32 = x.float()
        normed = x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * normed.to(x.dtype)


def test_an_epsilon_far_below_what_it_is_added_to_is_unobservable() -> None:
    x = normal(64, WIDTH)
    (said,) = hidden(Norm, x=x)
    assert (said.module, said.what) == ("", "epsilon 1e-06 x10")
    assert said.why == "it is far below what it is added to"
    assert said.propose == "tokens whose mean square is about 1e-06"
    assert said.smallest is not None
    assert said.smallest > 9
    assert not shows(Norm, "eps", 1e-5, x=x)


def test_the_proposed_input_shows_the_epsilon() -> None:
    x = 1e-3 * normal(64, WIDTH)
    assert hidden(Norm, x=x) == []
    assert shows(Norm, "eps", 1e-5, x=x)


def test_a_narrower_format_hides_an_epsilon_that_a_wider_one_shows() -> None:
    x = 0.15 * normal(64, WIDTH)
    assert len(hidden(Norm, x=x)) == 1
    assert hidden(Norm, torch.float32, x=x) == []
    assert shows(Norm, "eps", 1e-5, torch.float32, x=x)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 0.25

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-1, -2) * self.scale
        return torch.softmax(scores.float(), -1).to(q.dtype) @ v


def attended(keys: int, size: float) -> dict[str, Tensor]:
    return {
        "q": size * normal(2, 4, 32, 16),
        "k": size * normal(2, 4, keys, 16, seed=1),
        "v": normal(2, 4, keys, 16, seed=2),
    }


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        (attended(1, 1.0), "nothing depends on it"),
        (attended(32, 0.1), "rounding explains more"),
    ],
    ids=["one key", "uniform"],
)
def test_a_wrong_attention_scale_needs_several_keys_and_uneven_scores(
    inputs: dict[str, Tensor], why: str
) -> None:
    said = next(u for u in hidden(Attention, **inputs) if "0.25" in u.what)
    assert said.what == "constant 0.25 (mul) x1.01"
    assert said.why == why
    assert said.propose == "several keys, and scores whose standard deviation is above 1"
    assert not shows(Attention, "scale", 0.2525, **inputs)


def test_peaked_attention_shows_its_scale() -> None:
    inputs = attended(32, 1.5)
    assert not any("0.25" in u.what for u in hidden(Attention, torch.float16, **inputs))
    assert shows(Attention, "scale", 0.2525, torch.float16, **inputs)


class Capped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.is_capped = True

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(x.float() / 30.0) * 30.0 if self.is_capped else x.float()
        return y.to(x.dtype)


def test_a_cap_far_above_the_scores_is_unobservable() -> None:
    x = 0.01 * normal(64, WIDTH)
    (said,) = hidden(Capped, x=x)
    assert said.what == "soft cap 30 left out"
    assert said.propose == "an input that brings what it caps near 30"


def test_scores_near_the_cap_show_it() -> None:
    x = 20 * normal(64, WIDTH)
    assert hidden(Capped, x=x) == []
    assert shows(Capped, "is_capped", False, x=x)


class Projected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(WIDTH, WIDTH, bias=False)
        with torch.no_grad():
            self.projection.weight.copy_(normal(WIDTH, WIDTH) / 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.projection(x)


def test_an_input_channel_that_no_token_uses_can_be_left_out() -> None:
    x = normal(64, WIDTH)
    assert hidden(Projected, x=x) == []
    x[:, [3, 7]] = 0
    x[:, 11] *= 1e-6
    (said,) = hidden(Projected, x=x)
    assert (said.module, said.what) == ("projection", "an input channel left out")
    assert said.propose == "tokens that use input channels 3, 7, 11"


def test_zeros_show_no_factor() -> None:
    said = [u for u in hidden(Projected, x=torch.zeros(64, WIDTH)) if u.what.startswith("factor")]
    assert [(u.module, u.what, u.why) for u in said] == [
        ("projection", "factor 1.01 on its output", "it is zero everywhere")
    ]


class Rough(nn.Module):
    """Differences of nearly equal numbers: much rounding in each element."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(torch.tanh(x) * 3.0) - torch.exp(torch.tanh(x * 0.5) * 3.0)


def test_a_few_tokens_hide_a_factor_that_many_show() -> None:
    few = [u for u in hidden(Rough, x=normal(1, 3, WIDTH)) if u.what.startswith("factor")]
    assert [(u.module, u.what, u.propose) for u in few] == [
        ("", "factor 1.01 on its output", "16 tokens or more")
    ]
    many = hidden(Rough, x=normal(4, 64, WIDTH))
    assert [u for u in many if u.what.startswith("factor")] == []


def test_nothing_is_said_of_code_that_diverges() -> None:
    x = 1e-3 * normal(64, WIDTH)
    candidate = Norm().bfloat16()
    candidate.eps = 1e-5
    outcome = check(Norm(), candidate, {"x": x.bfloat16()})
    assert outcome.verdict is Verdict.DIVERGENT
    assert outcome.unobservable == ()
    assert [j.smallest_gain for j in outcome.judgements if j.verdict is not Verdict.ALIGNED] == [None]
