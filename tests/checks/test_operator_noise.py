"""No healthy kernel of torch is outside of what its operator's row allows, and the rows are not wide.

Shape legend: x = [4, 12, 16], w = [16, 16].
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.checks.build import check
from validator.checks.arithmetic import Arithmetic, Rounding
from validator.checks.findings import Check, Verdict
from validator.checks.shadow import ShadowTensor
from validator.numerics.bands import normal_lambda, tail_lambda
from validator.numerics.formats import Format, format_of
from validator.numerics.ulp import ulp

Code = Callable[[Tensor, Tensor], Tensor]

ROWS = torch.tensor([0, 3, 3, 5, 1, 0, 2, 5, 5, 4, 1, 3])
BAGS = ROWS.reshape(3, 4)
EDGES = torch.linspace(-2, 2, 15)


def _at_rows(x: Tensor) -> Tensor:
    return ROWS[:, None].expand(12, 16)


ANY: dict[str, Code] = {
    # One element at a time.
    "add number": lambda x, w: x + 0.1,
    "add scaled": lambda x, w: torch.add(x, w[0], alpha=0.3),
    "addcmul": lambda x, w: torch.addcmul(x, x, w[0], value=0.5),
    "asinh": lambda x, w: torch.asinh(x),
    "atan": lambda x, w: torch.atan(x),
    "atan2": lambda x, w: torch.atan2(x, w[0]),
    "cos": lambda x, w: torch.cos(x),
    "div": lambda x, w: x / w[0],
    "div number": lambda x, w: x / 0.1,
    "elu": lambda x, w: functional.elu(x),
    "erf": lambda x, w: torch.erf(x),
    "exp": lambda x, w: torch.exp(x),
    "expm1": lambda x, w: torch.expm1(x),
    "fmod": lambda x, w: torch.fmod(x, 0.75),
    "gelu": lambda x, w: functional.gelu(x),
    "gelu tanh": lambda x, w: functional.gelu(x, approximate="tanh"),
    "glu": lambda x, w: functional.glu(x),
    "hardshrink": lambda x, w: functional.hardshrink(x),
    "hardsigmoid": lambda x, w: functional.hardsigmoid(x),
    "hardswish": lambda x, w: functional.hardswish(x),
    "hypot": lambda x, w: torch.hypot(x, w[0]),
    "leaky_relu": lambda x, w: functional.leaky_relu(x),
    "lerp": lambda x, w: torch.lerp(x, w[0], 0.3),
    "logaddexp": lambda x, w: torch.logaddexp(x, w[0]),
    "logsigmoid": lambda x, w: functional.logsigmoid(x),
    "mish": lambda x, w: functional.mish(x),
    "mul number": lambda x, w: x * 0.1,
    "nan_to_num": lambda x, w: torch.nan_to_num(x),
    "number less x": lambda x, w: 0.3 - x,
    "number to x": lambda x, w: torch.pow(10000.0, w[0]),
    "pow 3": lambda x, w: x**3,
    "prelu": lambda x, w: functional.prelu(x, w[0, :1]),
    "remainder": lambda x, w: torch.remainder(x, 0.75),
    "remainder of a rounded number": lambda x, w: torch.remainder(x, 0.7),
    "sigmoid": lambda x, w: torch.sigmoid(x),
    "silu": lambda x, w: functional.silu(x),
    "sin": lambda x, w: torch.sin(x),
    "sinc": lambda x, w: torch.sinc(x),
    "softplus": lambda x, w: functional.softplus(x),
    "softshrink": lambda x, w: functional.softshrink(x),
    "tanh": lambda x, w: torch.tanh(x),
    # Many to one.
    "cdist": lambda x, w: torch.cdist(x, w),
    "cdist by differences": lambda x, w: torch.cdist(x, w, compute_mode="donot_use_mm_for_euclid_dist"),
    "cdist p=1": lambda x, w: torch.cdist(x, w, p=1),
    "complex abs": lambda x, w: torch.view_as_complex(x.reshape(4, 12, 8, 2)).abs(),
    "cumprod": lambda x, w: w.cumprod(-1),
    "cumsum": lambda x, w: x.cumsum(-1),
    "log_softmax": lambda x, w: functional.log_softmax(x, -1),
    "logcumsumexp": lambda x, w: torch.logcumsumexp(x, -1),
    "mean": lambda x, w: x.mean(-1),
    "mse": lambda x, w: functional.mse_loss(x, w[0].expand_as(x)),
    "nansum": lambda x, w: x.nansum(-1),
    "nll": lambda x, w: functional.nll_loss(x[0], ROWS),
    "norm": lambda x, w: x.norm(dim=-1),
    "norm p=1": lambda x, w: x.norm(p=1, dim=-1),
    "norm p=3": lambda x, w: torch.linalg.vector_norm(x, 3, dim=-1),
    "softmax": lambda x, w: functional.softmax(x, -1),
    "std": lambda x, w: x.std(-1),
    "std_mean": lambda x, w: torch.std_mean(x, -1)[0],
    "sum": lambda x, w: x.sum(-1),
    "sum of all": lambda x, w: x.sum(),
    "var": lambda x, w: x.var(-1),
    "var_mean": lambda x, w: torch.var_mean(x, -1)[1],
    # Products.
    "baddbmm": lambda x, w: torch.baddbmm(w[:12, :12], x, x.mT, beta=0.5, alpha=0.2),
    "bilinear": lambda x, w: functional.bilinear(x[0], x[1], w.expand(3, 16, 16)),
    "bmm": lambda x, w: x @ x.mT,
    "conv1d": lambda x, w: functional.conv1d(x, w[:, :12].unsqueeze(-1).expand(16, 12, 3), w[0]),
    "conv1d by channel": lambda x, w: functional.conv1d(x, w[:12, None, :4], w[0, :12], groups=12, padding=3),
    "conv2d": lambda x, w: functional.conv2d(x.unsqueeze(1), w.view(4, 1, 8, 8)[:, :, :3, :3], w[0, :4]),
    "conv3d": lambda x, w: functional.conv3d(x.view(4, 1, 12, 4, 4), w.view(4, 1, 4, 4, 4), w[0, :4]),
    "conv_transpose1d": lambda x, w: functional.conv_transpose1d(
        x, w[:12, None, :8].expand(12, 2, 8), w[0, :2], stride=2
    ),
    "conv_transpose2d": lambda x, w: functional.conv_transpose2d(
        x.view(4, 12, 4, 4), w[:12, :9].view(12, 1, 3, 3), stride=2
    ),
    "dot": lambda x, w: torch.dot(x[0, 0], w[0]),
    "einsum": lambda x, w: torch.einsum("bti,ij->btj", x, w),
    "einsum of one": lambda x, w: torch.einsum("bti->i", x),
    "linear": lambda x, w: functional.linear(x, w, w[0]),
    "mv": lambda x, w: torch.mv(w, x[0, 0]),
    "tensordot": lambda x, w: torch.tensordot(x, w, dims=([2], [0])),
    "triangular solve": lambda x, w: torch.linalg.solve_triangular(w, x.mT, upper=False, unitriangular=True),
    # Norms.
    "batch_norm of a batch": lambda x, w: functional.batch_norm(
        x, None, None, w[2, :12], w[3, :12], training=True
    ),
    "group_norm": lambda x, w: functional.group_norm(x, 3, w[0, :12], w[1, :12]),
    "instance_norm": lambda x, w: functional.instance_norm(x),
    "layer_norm": lambda x, w: functional.layer_norm(x, (16,), w[0], w[1]),
    # Neighbours.
    "adaptive_avg_pool1d": lambda x, w: functional.adaptive_avg_pool1d(x, 5),
    "adaptive_avg_pool2d": lambda x, w: functional.adaptive_avg_pool2d(x, 5),
    "adaptive_avg_pool3d": lambda x, w: functional.adaptive_avg_pool3d(x.view(4, 1, 12, 4, 4), (5, 2, 3)),
    "avg_pool1d": lambda x, w: functional.avg_pool1d(x, 4),
    "avg_pool2d": lambda x, w: functional.avg_pool2d(x, 3, 2, 1),
    "avg_pool2d of what is there": lambda x, w: functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "avg_pool3d": lambda x, w: functional.avg_pool3d(x.view(4, 1, 12, 4, 4), 2),
    "fold": lambda x, w: functional.fold(x, (5, 5), (2, 2)),
    "interpolate area": lambda x, w: functional.interpolate(x.unsqueeze(1), size=(7, 9), mode="area"),
    "interpolate bicubic": lambda x, w: functional.interpolate(x.unsqueeze(1), size=(17, 21), mode="bicubic"),
    "interpolate bilinear": lambda x, w: functional.interpolate(
        x.unsqueeze(1), size=(17, 21), mode="bilinear"
    ),
    "interpolate by corners": lambda x, w: functional.interpolate(
        x.unsqueeze(1), size=(17, 21), mode="bilinear", align_corners=True
    ),
    "interpolate down": lambda x, w: functional.interpolate(
        x.unsqueeze(1), size=(7, 9), mode="bilinear", antialias=True
    ),
    "interpolate linear": lambda x, w: functional.interpolate(x, scale_factor=1.5, mode="linear"),
    "interpolate nearest": lambda x, w: functional.interpolate(x, scale_factor=1.5),
    "interpolate trilinear": lambda x, w: functional.interpolate(
        x.view(4, 1, 12, 4, 4), size=(17, 5, 7), mode="trilinear"
    ),
    "max_pool2d": lambda x, w: functional.max_pool2d(x, 2),
    "pixel_shuffle": lambda x, w: functional.pixel_shuffle(x.view(4, 12, 4, 4), 2),
    "unfold": lambda x, w: functional.unfold(x.view(4, 12, 4, 4), 2),
    # At indices.
    "bucketize": lambda x, w: functional.embedding(torch.bucketize(w[0].clamp(-2, 2), EDGES), w),
    "embedding_bag max": lambda x, w: functional.embedding_bag(BAGS, x[0], mode="max"),
    "embedding_bag mean": lambda x, w: functional.embedding_bag(BAGS, x[0], mode="mean"),
    "embedding_bag sum": lambda x, w: functional.embedding_bag(BAGS, x[0], mode="sum"),
    "index_add": lambda x, w: torch.zeros(6, 16, dtype=x.dtype).index_add(0, ROWS, x[0]),
    "index_put": lambda x, w: torch.zeros(6, 16, dtype=x.dtype).index_put((ROWS,), x[0], accumulate=True),
    "index_reduce": lambda x, w: torch.zeros(6, 16, dtype=x.dtype).index_reduce(0, ROWS, x[0], "mean"),
    "scatter_add": lambda x, w: torch.zeros(6, 16, dtype=x.dtype).scatter_add(0, _at_rows(x), x[0]),
    "scatter_reduce": lambda x, w: torch.zeros(6, 16, dtype=x.dtype).scatter_reduce(
        0, _at_rows(x), x[0], "mean"
    ),
}
"""Operators that take any numbers."""

POSITIVE: dict[str, Code] = {
    "acosh": lambda x, w: torch.acosh(x),
    "log": lambda x, w: torch.log(x),
    "log1p": lambda x, w: torch.log1p(x),
    "log2": lambda x, w: torch.log2(x),
    "pow 1.7": lambda x, w: x**1.7,
    "pow -0.5": lambda x, w: x**-0.5,
    "prod": lambda x, w: x[..., :4].prod(-1),
    "reciprocal": lambda x, w: torch.reciprocal(x),
    "rsqrt": lambda x, w: torch.rsqrt(x),
    "sqrt": lambda x, w: torch.sqrt(x),
    "xlogy": lambda x, w: torch.xlogy(x, x),
}
"""Operators that take positive numbers."""

UNIT: dict[str, Code] = {
    "acos": lambda x, w: torch.acos(x),
    "asin": lambda x, w: torch.asin(x),
    "atanh": lambda x, w: torch.atanh(x),
    "grid_sample": lambda x, w: functional.grid_sample(
        w.view(4, 1, 8, 8), x[:, :8].reshape(4, 8, 8, 2), align_corners=False
    ),
}
"""Operators that take numbers between -0.9 and 0.9."""

REGIMES: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda x: x,
    "large": lambda x: 30 * x,
    "with a large offset": lambda x: x + 100,
    "tiny": lambda x: x * 2.0**-110,
    "many equal": lambda x: (2 * x).round() / 2,
    "all equal": lambda x: torch.full_like(x, 0.3),
    "mostly zero": lambda x: torch.where(x.abs() > 1.5, x, 0.0),
}

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

IN_STORAGE = frozenset(
    (
        "adaptive_avg_pool3d",
        "bilinear",
        "conv_transpose1d",
        "conv_transpose2d",
        "fold",
        "index_add",
        "index_put",
        "index_reduce",
        "interpolate bicubic",
        "interpolate trilinear",
        "log_softmax",
        "mse",
        "nll",
        "prod",
        "scatter_add",
        "scatter_reduce",
    )
)
"""Operators that torch computes in 16 bits inside where the input has no more."""

UNSEEN = frozenset(("grid_sample", "remainder of a rounded number"))
"""Operators that may give another result altogether where 16 bits hold a position or a divisor."""

OPERATORS = ANY | POSITIVE | UNIT


def given(name: str, regime: str, dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = REGIMES[regime](torch.randn(4, 12, 16, generator=generator))
    if name in POSITIVE:
        x = x.abs() + (1 if name == "acosh" else 0.5)
    if name in UNIT:
        x = 0.9 * torch.tanh(x)
    w = torch.randn(16, 16, generator=generator)
    if name == "triangular solve":
        w = w.tril() / 4
    return x.to(dtype), w.to(dtype)


def run(code: Code, x: Tensor, w: Tensor) -> Tensor:
    """Run a kernel, or skip where torch has none for the format."""
    try:
        return code(x.clone(), w.clone())
    except (NotImplementedError, RuntimeError) as error:
        if not any(said in str(error) for said in ("not implemented", "support", "Unsupported dtype")):
            raise
        pytest.skip(f"torch has no such kernel: {error}")


def band(oracle: ShadowTensor, fmt: Format) -> Tensor:
    """Return how far a kernel's result may be from the oracle's."""
    elements = 10**6
    multiplier = tail_lambda(elements) if fmt.precision >= 24 else normal_lambda(elements)
    sigma = 0.0 if oracle.sigma64 is None else oracle.sigma64
    bound = 0.0 if oracle.bound64 is None else oracle.bound64
    # What a bound moves is rounded where it is then.
    half: Tensor = ulp(oracle.data64.nan_to_num(0.0).abs() + bound, fmt) / 2
    return (half if oracle.depth else torch.zeros_like(half)) + bound + multiplier * sigma


def oracle_of(code: Code, x: Tensor, w: Tensor) -> ShadowTensor:
    arithmetic = Arithmetic(Rounding.none())
    shadows = arithmetic.shadow(x), arithmetic.shadow(w)
    with arithmetic:
        made = code(*shadows)
    assert isinstance(made, ShadowTensor)
    return made


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("name", OPERATORS)
def test_no_healthy_kernel_is_outside_of_its_row(name: str, dtype: torch.dtype) -> None:
    for regime in REGIMES:
        for seed in range(2):
            x, w = given(name, regime, dtype, seed)
            made, oracle = run(OPERATORS[name], x, w), oracle_of(OPERATORS[name], x, w)
            assert oracle.unknown == ""
            assert oracle.dtype == made.dtype
            fmt = format_of(made.dtype)
            judged = oracle.data64.abs() <= 0.99 * fmt.max
            outside = judged & ((made.double() - oracle.data64).abs() > band(oracle, fmt))
            assert int(outside.sum()) == 0, f"{regime}, seed {seed}: {made[outside][:3]}"


@pytest.mark.parametrize("name", OPERATORS)
def test_no_row_hides_an_error_of_some_bits(name: str) -> None:
    """A float32 kernel that keeps the 11 bits of TF32 is seen, and a bfloat16 one that is off by some ulp."""
    visible = {torch.float32: 2.0**-11, torch.bfloat16: 2.0 ** (-2 if name in IN_STORAGE else -6)}
    for dtype, share in visible.items():
        if dtype is torch.bfloat16 and name in UNSEEN:
            continue
        x, w = (operand.to(dtype) for operand in given(name, "normal", torch.bfloat16, seed=0))
        oracle = oracle_of(OPERATORS[name], x, w)
        largest = max(float(value.abs().max()) for value in (oracle.data64, x))
        assert float(band(oracle, format_of(dtype)).max()) < share * largest


def test_a_large_value_widens_no_other_elements_row_of_a_gated_unit() -> None:
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    outlier = x.clone()
    outlier[0, 0] = 1e4
    alone, beside = (
        oracle_of(lambda x, _: functional.glu(x), given, given).sigma64 for given in (x, outlier)
    )
    assert alone is not None
    assert beside is not None
    assert torch.equal(alone[1:], beside[1:])


class Computing(nn.Module):
    """A module that is one piece of code, wrong in one element where an error is planted."""

    def __init__(self, code: Code) -> None:
        super().__init__()
        self.code = code
        self.planted: tuple[tuple[int, ...], float] | None = None

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        made = self.code(x, w)
        if self.planted is not None:
            place, value = self.planted
            made = made.clone()
            made[place] = value
        return made


def _recurrent(kind: type[nn.Module], **options: Any) -> Code:
    """Return a recurrent layer or cell with its parameters in x and w."""
    layer = kind(16, 8, **options).eval()
    generator = torch.Generator().manual_seed(5)
    parameters = {name: torch.randn(p.shape, generator=generator) / 4 for name, p in layer.named_parameters()}

    def code(x: Tensor, w: Tensor) -> Tensor:
        given = x[:, :4] if isinstance(layer, nn.RNNBase) else x[:, 0]
        made = torch.func.functional_call(layer, {n: p.to(x.dtype) for n, p in parameters.items()}, (given,))
        return made[0] if isinstance(made, tuple) else made

    return code


COMPOSED: dict[str, Code] = {
    name: ANY[name]
    for name in ("cumsum", "logcumsumexp", "var", "conv1d by channel", "group_norm", "avg_pool2d", "cdist")
} | {
    "attention": lambda x, w: functional.scaled_dot_product_attention(x, x @ w, x),
    "cosine_similarity": lambda x, w: functional.cosine_similarity(x, w[0].expand_as(x), -1),
    "einsum of three": lambda x, w: torch.einsum("bti,ij,btj->bt", x, w, x),
    "fft": lambda x, w: torch.view_as_real(torch.fft.rfft(x)),
    "grouped softmax": lambda x, w: functional.softmax(x.masked_fill(x > 1, -math.inf), -1),
    "gru": _recurrent(nn.GRU, batch_first=True),
    "gru cell": _recurrent(nn.GRUCell),
    "logsumexp": lambda x, w: torch.logsumexp(x, -1),
    "lstm": _recurrent(nn.LSTM, batch_first=True),
    "lstm cell": _recurrent(nn.LSTMCell),
    "normalize": lambda x, w: functional.normalize(x, dim=-1),
    "rms_norm": lambda x, w: functional.rms_norm(x, (16,), w[0], 1e-6),
}


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("name", COMPOSED)
def test_healthy_code_is_aligned_and_an_error_of_eight_bands_diverges(name: str, dtype: torch.dtype) -> None:
    x, w = given(name, "normal", dtype, seed=0)
    candidate = Computing(COMPOSED[name])
    run(COMPOSED[name], x, w)
    healthy = check(Computing(COMPOSED[name]), candidate, {"x": x, "w": w})
    assert healthy.unchecked == ()
    assert [finding.summary for finding in healthy.findings] == []
    assert healthy.verdict is Verdict.ALIGNED

    (output,) = [judgement for judgement in healthy.judgements if judgement.check is Check.FUNCTION]
    evidence = output.evidence
    assert evidence.worst_index is not None
    assert evidence.reference is not None
    assert evidence.worst_allowed_ulp is not None
    spacing = float(ulp(torch.tensor(evidence.reference, dtype=torch.float64), format_of(dtype)))
    candidate.planted = evidence.worst_index, evidence.reference + 8 * evidence.worst_allowed_ulp * spacing
    spoilt = check(Computing(COMPOSED[name]), candidate, {"x": x, "w": w})
    assert spoilt.verdict in (Verdict.DIVERGENT, Verdict.UNDECLARED_PRECISION)
    assert spoilt.findings[0].evidence.worst_index == evidence.worst_index
