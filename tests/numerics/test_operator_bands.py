"""Rows of norms, activations, rotary embedding and attention: healthy kernels are inside, faults are not."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from validator.numerics.bands import U32, C, Noise, is_explained, normal_lambda
from validator.numerics.formats import FORMATS, Format
from validator.numerics.operator_bands import (
    attention_noise,
    gelu_noise,
    layer_norm_noise,
    rms_norm_noise,
    rope_noise,
    silu_noise,
    sum_noise,
)
from validator.numerics.rounding import round_nearest

F32, BF16, F16 = (FORMATS[name] for name in ("float32", "bfloat16", "float16"))
formats = pytest.mark.parametrize("fmt", [F32, BF16, F16], ids=lambda fmt: fmt.name)
EPS = 1e-6


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def stored(values: Tensor, fmt: Format) -> Tensor:
    return round_nearest(values.double(), fmt)


def share_outside(exact: Tensor, cand: Tensor, fmt: Format, noise: Noise) -> float:
    explained = is_explained(
        exact=exact, cand=cand, fmt=fmt, noise=noise, multiplier=normal_lambda(exact.numel())
    )
    return 1 - float(explained.double().mean())


DATA: dict[str, Callable[[], Tensor]] = {
    "normal": lambda: normal(256, 512),
    "large": lambda: normal(256, 512) * 30,
    "shifted": lambda: normal(256, 512) + 4,
    "one outlier channel": lambda: normal(256, 512).index_fill(1, torch.tensor([3]), 200.0),
    "small": lambda: normal(256, 512) * 2.0**-8,
}
regimes = pytest.mark.parametrize("regime", DATA)


def rms(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


@regimes
@formats
def test_rms_norm(fmt: Format, regime: str) -> None:
    x, weight = stored(DATA[regime](), fmt), stored(1 + 0.2 * normal(512, seed=1), fmt)
    exact, noise = rms(x, weight), rms_norm_noise(x, weight, eps=EPS)
    healthy = stored(rms(x.float(), weight.float()), fmt)
    assert share_outside(exact, healthy, fmt, noise) == 0
    faulty = stored(rms(x, weight, eps=EPS + 0.05 * float(x.square().mean())), fmt)
    assert share_outside(exact, faulty, fmt, noise) > 0.5


@regimes
def test_an_rms_norm_that_casts_before_it_multiplies_by_the_weight(regime: str) -> None:
    x, weight = stored(DATA[regime](), BF16), stored(1 + 0.2 * normal(512, seed=1), BF16)
    hat = stored(rms(x.float(), torch.ones(512)), BF16)
    cast = stored(hat * weight, BF16)
    assert share_outside(rms(x, weight), cast, BF16, rms_norm_noise(x, weight, eps=EPS, cast=BF16)) == 0
    assert share_outside(rms(x, weight), cast, BF16, rms_norm_noise(x, weight, eps=EPS)) > 0.01


def test_a_sequential_sum_of_squares_of_constant_rows_has_a_bound() -> None:
    x = torch.full((4, 8192), 1.1, dtype=torch.float64).float().double()
    weight = torch.ones(8192, dtype=torch.float64)
    total = torch.zeros(4, 1)
    for term in x.float().square().split(1, 1):
        total = total + term
    cand = (x.float() * torch.rsqrt(total / 8192 + EPS)).double()
    exact = rms(x, weight)
    assert share_outside(exact, cand, F32, rms_norm_noise(x, weight, eps=EPS)) == 1
    assert share_outside(exact, cand, F32, rms_norm_noise(x, weight, eps=EPS, is_sequential=True)) == 0


@regimes
@formats
@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no bias"])
def test_layer_norm(has_bias: bool, fmt: Format, regime: str) -> None:
    x, weight = stored(DATA[regime](), fmt), stored(1 + 0.2 * normal(512, seed=1), fmt)
    bias = stored(10 * normal(512, seed=2), fmt) if has_bias else None
    exact = functional.layer_norm(x, (512,), weight, bias, EPS)
    noise = layer_norm_noise(x, weight, bias, eps=EPS)
    narrow = functional.layer_norm(
        x.float(), (512,), weight.float(), None if bias is None else bias.float(), EPS
    )
    assert share_outside(exact, stored(narrow, fmt), fmt, noise) == 0
    without_mean = rms(x, weight) if bias is None else rms(x, weight) + bias
    assert share_outside(exact, stored(without_mean, fmt), fmt, noise) > 0.001


def test_a_one_pass_variance_has_to_be_declared() -> None:
    x, weight = stored(normal(256, 512) + 30, F32), torch.ones(512, dtype=torch.float64)
    narrow = x.float()
    mean = narrow.mean(-1, keepdim=True)
    variance = narrow.square().mean(-1, keepdim=True) - mean.square()
    cand = ((narrow - mean) * torch.rsqrt(variance + EPS)).double()
    exact = functional.layer_norm(x, (512,), weight, None, EPS)
    assert share_outside(exact, cand, F32, layer_norm_noise(x, weight, None, eps=EPS)) > 0.1
    one_pass = layer_norm_noise(x, weight, None, eps=EPS, is_one_pass=True)
    assert share_outside(exact, cand, F32, one_pass) == 0
    assert share_outside(exact, exact * 1.02, F32, one_pass) > 0.1


WIDE = torch.cat([torch.linspace(-120, 30, 40001), torch.linspace(-8, 8, 40001)]).double()


@formats
def test_silu(fmt: Format) -> None:
    x = stored(WIDE, fmt)
    exact, noise = functional.silu(x), silu_noise(x)
    assert share_outside(exact, stored(functional.silu(x.float()), fmt), fmt, noise) == 0
    assert share_outside(exact, stored(functional.gelu(x), fmt), fmt, noise) > 0.1


def test_an_eager_silu_rounds_its_sigmoid() -> None:
    x = stored(WIDE, BF16)
    cand = stored(x * stored(torch.sigmoid(x.float()), BF16), BF16)
    assert share_outside(functional.silu(x), cand, BF16, silu_noise(x, eager=BF16)) == 0
    assert share_outside(functional.silu(x), cand, BF16, silu_noise(x)) > 0.01


@formats
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate: str, fmt: Format) -> None:
    x = stored(WIDE, fmt)
    exact = functional.gelu(x, approximate=approximate)
    noise = gelu_noise(x, exact)
    cand = functional.gelu(x.float(), approximate=approximate)
    assert share_outside(exact, stored(cand, fmt), fmt, noise) == 0
    other = functional.gelu(x, approximate="tanh" if approximate == "none" else "none")
    if fmt is not BF16:  # the two are within bfloat16's rounding of each other nearly everywhere
        assert share_outside(exact, stored(other, fmt), fmt, noise) > 0.01
    assert share_outside(exact, stored(functional.silu(x), fmt), fmt, noise) > 0.1


def turned(x: Tensor, angle: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the element that is turned, its signed partner, and the result, for `[S, D]` and `[S, D/2]`."""
    first, second = x.chunk(2, -1)
    partner = torch.cat([-second, first], -1)
    wide = torch.cat([angle, angle], -1)
    return x, partner, x * wide.cos() + partner * wide.sin()


@formats
@pytest.mark.parametrize("first_position", [0, 100_000], ids=["short context", "long context"])
def test_rope(first_position: int, fmt: Format) -> None:
    positions = torch.arange(first_position, first_position + 512, dtype=torch.float64)
    # The frequencies are the candidate's own float32 buffer.
    frequencies = (10000.0 ** -(torch.arange(32, dtype=torch.float64) / 32)).float()
    x = stored(normal(512, 64), fmt)
    angle = positions[:, None] * frequencies.double()
    a, b, exact = turned(x, angle)
    both = torch.cat([angle, angle], -1)
    noise = rope_noise(a, b, both)
    narrow = turned(x.float(), positions.float()[:, None] * frequencies)[2]
    assert share_outside(exact, stored(narrow, fmt), fmt, noise) == 0
    assert share_outside(exact, stored(turned(x, -angle)[2], fmt), fmt, noise) > 0.5
    late = turned(x, angle + frequencies.double())[2]
    assert share_outside(exact, stored(late, fmt), fmt, noise) > 0.1


def test_an_eager_rope_rounds_its_products() -> None:
    angle = torch.arange(256, dtype=torch.float64)[:, None] * 10000.0 ** -(torch.arange(32).double() / 32)
    x = stored(normal(256, 64), BF16)
    a, b, exact = turned(x, angle)
    both = torch.cat([angle, angle], -1)
    cos, sin = (stored(f(both.float()), BF16) for f in (torch.cos, torch.sin))
    cand = stored(stored(a * cos, BF16) + stored(b * sin, BF16), BF16)
    assert share_outside(exact, cand, BF16, rope_noise(a, b, both, eager=BF16)) == 0
    assert share_outside(exact, cand, BF16, rope_noise(a, b, both)) > 0.1


def test_a_residual_has_nothing_but_its_last_rounding() -> None:
    x, y = stored(normal(64, 256), BF16), stored(normal(64, 256, seed=1), BF16)
    assert share_outside(x + y, stored(x + y, BF16), BF16, Noise()) == 0
    assert share_outside(x + y, stored(x + y * 1.02, BF16), BF16, Noise()) > 0.1


@pytest.mark.parametrize("fmt", [F32, BF16], ids=lambda fmt: fmt.name)
def test_a_sum_in_a_narrow_format_is_sequential_and_loses_small_terms(fmt: Format) -> None:
    terms = stored(normal(512, 2000).abs(), fmt)
    total = torch.zeros(2000, dtype=torch.float64)
    for term in terms:
        total = round_nearest(total + term, fmt)
    exact = terms.sum(0)
    noise = sum_noise(terms.square().sum(0), exact, 512, fmt=fmt)
    assert share_outside(exact, total, fmt, noise) == 0
    if fmt is BF16:
        assert share_outside(exact, total, fmt, sum_noise(terms.square().sum(0), exact, 512, fmt=F32)) > 0.9


def attended(spread: float, keys: int = 128) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(stored(normal(2, keys, 32, seed=s) * (spread if s < 2 else 1.0), BF16) for s in range(3))  # type: ignore[return-value]


def row(q: Tensor, k: Tensor, v: Tensor, *, probabilities: Format | None) -> tuple[Tensor, Noise]:
    scores = q @ k.mT / math.sqrt(32)
    p = torch.softmax(scores, -1)
    magnitude = torch.maximum(scores.abs(), (scores - scores.amax(-1, keepdim=True)).abs())
    ds = C * U32 * (3 * (1 + magnitude) + 32)
    return p @ v, attention_noise(p, v, p @ v, ds=ds, probabilities=probabilities)


@pytest.mark.parametrize("spread", [0.1, 1.0, 2.0], ids=["flat", "normal", "peaked"])
@pytest.mark.parametrize("probabilities", [None, BF16], ids=["P in float32", "P in bf16"])
def test_attention(probabilities: Format | None, spread: float) -> None:
    q, k, v = attended(spread)
    exact, noise = row(q, k, v, probabilities=probabilities)
    p = torch.softmax(q.float() @ k.float().mT / math.sqrt(32), -1)
    kept = p.double() if probabilities is None else stored(p, probabilities)
    assert share_outside(exact, stored((kept.float() @ v.float()), BF16), BF16, noise) == 0
    other = torch.softmax(q @ k.mT * 1.2 / math.sqrt(32), -1) @ v
    if spread > 0.5:
        assert share_outside(exact, stored(other, BF16), BF16, noise) > 0.1
    masked = torch.softmax((q @ k.mT / math.sqrt(32))[..., 1:], -1) @ v[:, 1:]
    assert share_outside(exact, stored(masked, BF16), BF16, noise) > 0.01


@pytest.mark.parametrize("spread", [0.1, 1.0], ids=["flat", "normal"])
def test_an_output_accumulated_in_bf16_over_blocks_leaves_attentions_band(spread: float) -> None:
    q, k, v = attended(spread, keys=512)
    exact, noise = row(q, k, v, probabilities=BF16)
    p = stored(torch.softmax(q @ k.mT / math.sqrt(32), -1), BF16)
    total = torch.zeros_like(exact)
    for p_block, v_block in zip(p.split(16, -1), v.split(16, -2), strict=True):
        total = round_nearest(total + p_block @ v_block, BF16)
    assert share_outside(exact, total, BF16, noise) > 0
    in_float32 = stored((p.float() @ v.float()), BF16)
    assert share_outside(exact, in_float32, BF16, noise) == 0
