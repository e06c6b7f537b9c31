"""The shadow arithmetic: float64 in truth, the device's dtypes in appearance, its rounding on request."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from validator.checks.arithmetic import Arithmetic
from validator.checks.roundings import Rounding
from validator.checks.shadow import ShadowTensor
from validator.errors import TargetError
from validator.numerics.formats import FORMATS, format_of
from validator.numerics.recipes import EAGER, FUSED
from validator.numerics.rounding import round_nearest
from validator.numerics.ulp import ulp

Op = Callable[[Tensor, Tensor], Any]
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))


def rms_norm(x: Tensor, y: Tensor) -> Tensor:
    hidden = x.to(torch.float32)
    hidden = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-6)
    return y[0, 0] * hidden.to(x.dtype)


def mul_out(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    torch.mul(x, y, out=out)
    return out


def index_put(x: Tensor, y: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    out[torch.tensor([1, 0])] = x * y
    return out


def augmented(x: Tensor, y: Tensor) -> Tensor:
    out = x.clone()
    out += y
    out *= y
    return out


def through_views(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    whole = x * y
    column = whole[:, 1]
    column.mul_(y[:, 1])
    whole.view(-1).add_(0.25)
    return whole, column, whole * y, column + x[:, 0]


def filled_halves(x: Tensor, y: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    out[..., :2] = x[..., :2] * y[..., :2]
    out[..., 2:] = y[..., 2:]
    return out


def swapped(x: Tensor, y: Tensor) -> Tensor:
    out = x * y
    out[:, 0], out[:, 1] = out[:, 1].clone(), out[:, 0].clone()
    return out


def buffer_of_its_own(x: Tensor, y: Tensor) -> Tensor:
    scale = torch.zeros(4)
    scale.add_(x[0, 0].float())
    scale[1] = 3
    return scale.to(x.dtype) * y


def rotated(x: Tensor, y: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1) * y + x


# Elementwise arithmetic, moves, and code of them: correctly rounded in 16 bits on a CPU.
SIMPLE: dict[str, Op] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "one minus": lambda x, y: 1 - x,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "python scalars": lambda x, y: x * 0.1 + 3,
    "int scalar": lambda x, y: x * 2,
    "square": lambda x, y: x.pow(2),
    "sqrt": lambda x, y: x.abs().sqrt(),
    "item": lambda x, y: y * x[0, 0, 0].item(),
    "float()": lambda x, y: y * float(x[0, 0, 1]),
    "branch on a value": lambda x, y: x * y if x.sum() > 0 else x + y,
    "upcast": lambda x, y: x.float() * y,
    "downcast": lambda x, y: (x.float() * y.float()).to(x.dtype),
    "type_as": lambda x, y: (x.float() * 3).type_as(y),
    "to another tensor": lambda x, y: (x.float() / 3).to(y),
    "relu": lambda x, y: functional.relu(x),
    "silu": lambda x, y: functional.silu(x),
    "gelu": lambda x, y: functional.gelu(x),
    "gelu tanh": lambda x, y: functional.gelu(x, approximate="tanh"),
    "quick gelu": lambda x, y: x * torch.sigmoid(1.702 * x),
    "squared relu": lambda x, y: functional.relu(x).square(),
    "soft cap": lambda x, y: torch.tanh(x / 30.0) * 30.0,
    "swiglu": lambda x, y: functional.silu(x) * y,
    "softmax": lambda x, y: functional.softmax(x, dim=-1),
    "softmax in float32, cast back": lambda x, y: functional.softmax(x, dim=-1, dtype=torch.float32).to(
        x.dtype
    ),
    "sum": lambda x, y: x.sum(-1),
    "mean": lambda x, y: x.mean(-1, keepdim=True),
    "rms norm": rms_norm,
    "layer norm": lambda x, y: functional.layer_norm(x, (4,), y[0, 0], y[0, 1]),
    "matmul": lambda x, y: x @ y.mT,
    "linear with bias": lambda x, y: functional.linear(x, y[0], y[0, :, 0]),
    "einsum": lambda x, y: torch.einsum("bij,bkj->bik", x, y),
    "cat": lambda x, y: torch.cat([x, y], -1),
    "cat of two dtypes": lambda x, y: torch.cat([x, y.float()], -1),
    "stack": lambda x, y: torch.stack([x, y]),
    "where": lambda x, y: torch.where(x > 0, x, y),
    "where with a scalar": lambda x, y: torch.where(x > 0, x, 0.0),
    "split": lambda x, y: x.split(2, -1),
    "chunk": lambda x, y: x.chunk(2, -1),
    "unbind": lambda x, y: x.unbind(0),
    "topk": lambda x, y: x.topk(2, -1),
    "sort": lambda x, y: x.sort(-1, descending=True),
    "argmax": lambda x, y: x.argmax(-1),
    "max with indices": lambda x, y: x.max(-1),
    "clamp": lambda x, y: x.clamp(-0.5, 0.5),
    "masked_fill": lambda x, y: x.masked_fill(x > 0, float("-inf")),
    "masked_fill with finfo": lambda x, y: x.masked_fill(x > 0, torch.finfo(x.dtype).min),
    "gather": lambda x, y: x.gather(-1, x.argsort(-1)),
    "scatter": lambda x, y: x.scatter(-1, x.topk(1, -1).indices, float("-inf")),
    "index": lambda x, y: x[:, [0, 2]],
    "boolean index": lambda x, y: x[x > 0],
    "rotate half": rotated,
    "repeat kv": lambda x, y: x[:, None].expand(2, 5, 3, 4).reshape(2, 15, 4),
    "pad": lambda x, y: functional.pad(x, (1, 1)),
    "inverted mask": lambda x, y: (1.0 - (x > 0).to(x.dtype)) * torch.finfo(x.dtype).min,
    "boolean times": lambda x, y: (x > 0) * y,
    "integers": lambda x, y: (x * 4).long(),
    "comparison": lambda x, y: x > y,
    "embedding": lambda x, y: functional.embedding(torch.tensor([0, 1]), y[0]),
    "dropout": lambda x, y: functional.dropout(x, 0.1, training=False),
    "arange": lambda x, y: torch.arange(4, dtype=x.dtype) * x,
    "arange of integers": lambda x, y: torch.arange(4).float() * x,
    "zeros": lambda x, y: torch.zeros(4, dtype=x.dtype) + x,
    "zeros by default": lambda x, y: torch.zeros(4) + x,
    "full and tril": lambda x, y: torch.full((3, 4), -2.0, dtype=x.dtype).tril() + x,
    "tensor of a number": lambda x, y: x * torch.tensor(0.3, dtype=x.dtype),
    "inverse frequencies": lambda x, y: 10000.0 ** -(torch.arange(0, 8, 2).float() / 8) * x,
    "division of integers": lambda x, y: (x > 0).sum(-1) / 4,
    "add_": lambda x, y: x.clone().add_(y),
    "mul_": lambda x, y: x.clone().mul_(y),
    "div_": lambda x, y: x.clone().div_(3),
    "copy_": lambda x, y: torch.empty_like(x).copy_(y),
    "copy_ into a narrower dtype": lambda x, y: torch.empty_like(x).copy_(y.float() / 3),
    "masked_fill_": lambda x, y: x.clone().masked_fill_(x > 0, 0.25),
    "index_put_": index_put,
    "index_add_": lambda x, y: torch.zeros_like(x).index_add_(1, torch.tensor([0, 2, 1]), y),
    "scatter_": lambda x, y: torch.zeros_like(x).scatter_(-1, x.argsort(-1), y),
    "clamp_": lambda x, y: x.clone().clamp_(-0.5, 0.5),
    "silu_": lambda x, y: functional.silu(x.clone(), inplace=True),
    "augmented assignment": augmented,
    "out=": mul_out,
    "in place through views": through_views,
    "halves filled through slices": filled_halves,
    "swapped through slices": swapped,
    "a buffer of the code's own": buffer_of_its_own,
}
# Whose inner order or approximations a device chooses: the dtype is certain, the last bit is not.
FREE: dict[str, Op] = {
    "rsqrt": lambda x, y: torch.rsqrt(x.abs() + 1),
    "cube": lambda x, y: x.pow(3),
    "exp": lambda x, y: x.exp(),
    "log_softmax": lambda x, y: functional.log_softmax(x, -1),
    "softmax in float32": lambda x, y: functional.softmax(x, -1, dtype=torch.float32),
    "sum in float32": lambda x, y: x.sum(-1, dtype=torch.float32),
    "norm": lambda x, y: x.norm(dim=-1),
    "variance": lambda x, y: x.var(-1),
    "cumsum": lambda x, y: x.cumsum(-1),
    "logsumexp": lambda x, y: torch.logsumexp(x, -1),
    "float64 constant": lambda x, y: x * torch.ones(4, dtype=torch.float64),
    "float64 number": lambda x, y: x * torch.tensor(2.0, dtype=torch.float64),
    "rms_norm": lambda x, y: functional.rms_norm(x, (4,), y[0, 0], 1e-6),
    "group norm": lambda x, y: functional.group_norm(x, 3),
    "conv1d": lambda x, y: functional.conv1d(x, y[:1, :, :3]),
    "attention": lambda x, y: functional.scaled_dot_product_attention(x[:, None], y[:, None], y[:, None]),
    "complex rotation": lambda x, y: torch.view_as_real(
        torch.view_as_complex(x.float().reshape(2, 3, 2, 2)) * torch.polar(torch.ones(2), torch.ones(2))
    ),
    "new_full": lambda x, y: x.new_full((3,), 0.3),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "scaled add": lambda x, y: torch.add(x, y, alpha=0.3),
    "remainder": lambda x, y: torch.remainder(x, 0.5),
    "baddbmm": lambda x, y: torch.baddbmm(x @ y.mT, x, y.mT),
    "one hot": lambda x, y: functional.one_hot(x.argmax(-1), 4),
    "bincount": lambda x, y: torch.bincount(x.argmax(-1).flatten(), minlength=4),
}
simple = pytest.mark.parametrize("op", SIMPLE.values(), ids=SIMPLE.keys())
every_op = pytest.mark.parametrize("op", (SIMPLE | FREE).values(), ids=(SIMPLE | FREE).keys())


def pair(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(2, 3, 4, generator=generator) for _ in range(2))
    return x.to(dtype), y.to(dtype)


def shadowed(op: Op, x: Tensor, y: Tensor, rounding: Rounding) -> list[Tensor]:
    """Run code on shadows, and return the tensors that it made."""
    arithmetic = Arithmetic(rounding)
    shadows = arithmetic.shadow(x), arithmetic.shadow(y)
    with arithmetic:
        made = op(*shadows)
    return [leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]


def run_real(op: Op, x: Tensor, y: Tensor) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(op(x, y)) if isinstance(leaf, Tensor)]


def values(tensor: Tensor) -> Tensor:
    if isinstance(tensor, ShadowTensor):
        return tensor.data64
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def one(op: Op, x: Tensor, y: Tensor, rounding: Rounding) -> ShadowTensor:
    (made,) = shadowed(op, x, y, rounding)
    assert isinstance(made, ShadowTensor)
    return made


@every_dtype
@every_op
def test_code_sees_the_dtypes_and_shapes_of_the_device(op: Op, dtype: torch.dtype) -> None:
    x, y = pair(dtype)
    real = run_real(op, x.clone(), y.clone())
    for rounding in (Rounding.none(), Rounding.nearest(EAGER), Rounding.nearest(FUSED)):
        made = shadowed(op, x, y, rounding)
        assert [(t.dtype, t.shape) for t in made] == [(t.dtype, t.shape) for t in real]


@every_dtype
@every_op
def test_values_are_held_in_float64_whatever_the_code_asks_for(op: Op, dtype: torch.dtype) -> None:
    for made in shadowed(op, *pair(dtype), Rounding.none()):
        if made.is_floating_point():
            assert isinstance(made, ShadowTensor)
            assert type(made.data64) is Tensor
            assert made.data64.dtype == torch.float64


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=["bfloat16", "float16"])
@simple
def test_rounding_to_nearest_is_the_device_bit_for_bit_in_16_bits(op: Op, dtype: torch.dtype) -> None:
    x, y = pair(dtype)
    real = run_real(op, x.clone(), y.clone())
    made = shadowed(op, x, y, Rounding.nearest(EAGER))
    for ours, theirs in zip(made, real, strict=True):
        assert torch.equal(values(ours), values(theirs))


@pytest.mark.parametrize("op", (SIMPLE | FREE).values(), ids=(SIMPLE | FREE).keys())
def test_rounding_to_nearest_is_float32_code_within_a_few_ulp(op: Op) -> None:
    x, y = pair(torch.float32)
    real = run_real(op, x.clone(), y.clone())
    for ours, theirs in zip(shadowed(op, x, y, Rounding.nearest(EAGER)), real, strict=True):
        if not theirs.is_floating_point():
            assert torch.equal(ours, theirs)
            continue
        exact = theirs.to(torch.float64)
        finite = exact.isfinite()
        assert torch.equal(finite, values(ours).isfinite())
        error = (values(ours) - exact)[finite].abs()
        # Results of cancellation (a norm, a remainder) are off by ulps of what went in.
        assert bool((error <= 8 * ulp(exact[finite].abs().clamp_min(0.5), FORMATS["float32"])).all())


def without_lower_precision(op: Op, x: Tensor, y: Tensor, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Run code in float64, casts and all."""
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    monkeypatch.setattr(torch, "float32", torch.float64)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return run_real(op, x.double(), y.double())
    finally:
        torch.set_default_dtype(default)
        monkeypatch.undo()


LIMITS_OF_A_DTYPE = {"masked_fill with finfo", "inverted mask"}


@every_dtype
@pytest.mark.parametrize("name", [name for name in (SIMPLE | FREE) if name not in LIMITS_OF_A_DTYPE])
def test_the_oracle_is_the_same_code_in_float64(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = (SIMPLE | FREE)[name]
    x, y = pair(dtype)
    made = shadowed(op, x, y, Rounding.none())
    truth = without_lower_precision(op, x, y, monkeypatch)
    for ours, theirs in zip(made, truth, strict=True):
        if not theirs.is_floating_point():
            assert torch.equal(ours, theirs)
            continue
        # A constant that the code itself makes in 16 bits is what the device has.
        allowed = 2.0**-8 if name == "tensor of a number" else 1e-14
        assert float((values(ours) - theirs).nan_to_num().abs().max()) <= allowed


def test_the_oracle_does_not_fall_into_autocast() -> None:
    def code(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ y.mT

    x, y = pair(torch.float32)
    made = one(code, x, y, Rounding.none())
    assert made.dtype == torch.bfloat16
    assert torch.allclose(made.data64, x.double() @ y.double().mT, rtol=1e-14)


def test_the_oracle_keeps_what_float32_code_would_lose() -> None:
    """1 + 2^-30 - 1 is 0 in float32."""
    x = torch.ones(4)
    made = one(lambda x, y: (x.float() + 2.0**-30) - 1, x, x, Rounding.none())
    assert torch.equal(made.data64, torch.full((4,), 2.0**-30, dtype=torch.float64))
    rounded = one(lambda x, y: (x.float() + 2.0**-30) - 1, x, x, Rounding.nearest(EAGER))
    assert torch.equal(rounded.data64, torch.zeros(4, dtype=torch.float64))


def test_division_of_integers_is_in_float64() -> None:
    made = one(lambda x, y: torch.arange(1, 4) / 3, *pair(torch.float32), Rounding.none())
    assert torch.equal(made.data64, torch.arange(1, 4, dtype=torch.float64) / 3)
    assert made.dtype == torch.float32


def test_finfo_and_branches_are_those_of_the_reported_dtype() -> None:
    seen = []

    def code(x: Tensor, y: Tensor) -> Tensor:
        seen.append((torch.finfo(x.dtype).min, x.dtype, x.element_size(), x.is_floating_point()))
        return x

    shadowed(code, *pair(torch.float16), Rounding.none())
    assert seen == [(-65504.0, torch.float16, 2, True)]


@pytest.mark.parametrize("recipe", [EAGER, FUSED], ids=["eager", "fused"])
def test_exact_is_the_value_before_the_last_rounding(recipe: Any) -> None:
    x, y = pair(torch.bfloat16)
    made = one(lambda x, y: (x * y) * y, x, y, Rounding.nearest(recipe))
    inner = format_of("bfloat16" if recipe is EAGER else "float32")
    before = round_nearest(x.double() * y.double(), inner) * y.double()
    assert torch.equal(made.exact64, before)
    assert torch.equal(made.data64, round_nearest(before, inner))


@pytest.mark.parametrize(
    "move",
    [
        lambda x: x.transpose(0, 1),
        lambda x: x[..., 1:],
        lambda x: torch.cat([x, x], -1),
        lambda x: x.reshape(-1),
        lambda x: x.contiguous().clone(),
        lambda x: -x,
    ],
    ids=["transpose", "slice", "cat", "reshape", "clone", "neg"],
)
def test_exact_and_sigma_move_with_the_values(move: Callable[[Tensor], Tensor]) -> None:
    x, y = pair(torch.bfloat16)
    made = one(lambda x, y: move(x * y), x, y, Rounding.nearest(EAGER))
    assert torch.equal(made.exact64, move(x.double() * y.double()))
    oracle = one(lambda x, y: move(functional.silu(x)), x, y, Rounding.none())
    plain = one(lambda x, y: functional.silu(x), x, y, Rounding.none())
    if oracle.sigma64 is not None:
        assert plain.sigma64 is not None
        assert torch.equal(oracle.sigma64, move(plain.sigma64).abs())
    else:
        assert oracle.depth > 1


@pytest.mark.parametrize(
    ("op", "depth", "is_cast"),
    [
        (lambda x, y: x.view(-1)[2:], 0, False),
        (lambda x, y: torch.where(x > 0, x, y), 0, False),
        (lambda x, y: x.float(), 0, False),
        (lambda x, y: x.float().to(torch.bfloat16), 0, True),
        (lambda x, y: x * y, 1, False),
        (lambda x, y: (x * y).transpose(0, 1), 1, False),
        (lambda x, y: (x.float() * y).to(torch.bfloat16), 1, True),
        (lambda x, y: (x.float() * y).to(torch.bfloat16) + y, 3, False),
        (lambda x, y: (x * y) + y, 2, False),
        (lambda x, y: functional.silu(x) * y, 2, False),
        (lambda x, y: x.clone().add_(y).mul_(y), 3, False),
    ],
)
def test_depth_counts_the_operators_that_round(op: Op, depth: int, is_cast: bool) -> None:
    made = one(op, *pair(torch.bfloat16), Rounding.none())
    assert (made.depth, made.is_cast) == (depth, is_cast)


@pytest.mark.parametrize("op", [filled_halves, swapped, through_views], ids=["halves", "swapped", "views"])
def test_a_write_through_a_view_is_known_to_all_who_share_it(op: Op) -> None:
    x, y = pair(torch.bfloat16)
    for made in shadowed(op, x, y, Rounding.none()):
        assert isinstance(made, ShadowTensor)
        assert made.depth >= 1
        assert made.sigma64 is None or made.depth == 1
    for made in shadowed(op, x, y, Rounding.nearest(EAGER)):
        assert isinstance(made, ShadowTensor)
        half = ulp(made.exact64, FORMATS["bfloat16"]) / 2
        assert bool(((made.exact64 - made.data64).abs() <= half).all())


def test_a_copy_is_out_of_reach_of_in_place_operators() -> None:
    arithmetic = Arithmetic(Rounding.none())
    shadow = arithmetic.shadow(torch.ones(3))
    copy = shadow.copied()
    with arithmetic:
        shadow.add_(1)
    assert torch.equal(copy.data64, torch.ones(3, dtype=torch.float64))
    assert torch.equal(shadow.data64, torch.full((3,), 2.0, dtype=torch.float64))


def test_the_codes_own_plain_tensor_keeps_an_in_place_change() -> None:
    counter = torch.zeros(3)
    arithmetic = Arithmetic(Rounding.none())
    with arithmetic:
        counter.add_(1)
    assert torch.equal(counter, torch.ones(3))


def test_parameters_are_what_lift_says() -> None:
    weight = torch.nn.Parameter(torch.full((4,), 1 / 3))
    rounded = round_nearest(weight.detach().double(), FORMATS["bfloat16"])
    arithmetic = Arithmetic(
        Rounding.none(),
        lift=lambda t: (rounded, torch.bfloat16) if t is weight else (t.detach().double(), t.dtype),
    )
    x = arithmetic.shadow(torch.ones(4, dtype=torch.bfloat16))
    with torch.no_grad(), arithmetic:
        made = x * weight
    assert made.dtype == torch.bfloat16
    assert torch.equal(made.data64, rounded)


def test_a_shadow_outside_of_the_arithmetic_is_refused() -> None:
    shadow = Arithmetic(Rounding.none()).shadow(torch.ones(2))
    with pytest.raises(TargetError, match="between two calls of the model"):
        shadow + 1


def test_suspended_leaves_the_arithmetic_and_comes_back() -> None:
    arithmetic = Arithmetic(Rounding.none())
    x = arithmetic.shadow(torch.ones(2))
    with arithmetic:
        with arithmetic.suspended():
            plain = torch.ones(2) + 1
        back = x + 1
    assert type(plain) is Tensor
    assert plain.dtype == torch.float32
    assert isinstance(back, ShadowTensor)


def noisy(op: Op, x: Tensor, y: Tensor, runs: int, recipe: Any = EAGER) -> Tensor:
    cache: dict[int, Tensor | None] = {}
    return torch.stack(
        [one(op, x, y, Rounding.stochastic(recipe, seed, cache)).data64 for seed in range(runs)]
    )


def test_stochastic_runs_are_unbiased_with_the_spread_of_stochastic_rounding() -> None:
    """A value at fraction f between its neighbours lands above with probability f: variance f(1-f) ulp^2."""
    x = torch.full((4096,), 1.0, dtype=torch.bfloat16)
    y = torch.full((4096,), 1.0 + 2.0**-7, dtype=torch.bfloat16)
    factor = 77 / 256  # a number of the format: one that is not may be rounded first
    exact = (1 + 2.0**-7) * factor
    runs = noisy(lambda x, y: (x * y) * factor, x, y, 8).flatten()
    spacing = 2.0**-9
    fraction = math.modf(exact / spacing)[0]
    deviation = spacing * math.sqrt(fraction * (1 - fraction))
    assert abs(float(runs.mean()) - exact) < 5 * deviation / math.sqrt(runs.numel())
    assert float(runs.std()) == pytest.approx(deviation, rel=0.03)
    assert set(torch.unique(runs / spacing).tolist()) == {
        math.floor(exact / spacing),
        math.ceil(exact / spacing),
    }


def test_stochastic_runs_of_the_fused_recipe_spread_in_float32() -> None:
    x, y = pair(torch.bfloat16)
    op: Op = lambda x, y: (x / y) * x  # noqa: E731
    exact = one(op, x, y, Rounding.none()).data64
    spread = (noisy(op, x, y, 16, FUSED) - exact).abs().max(0).values
    assert bool((spread <= 4 * ulp(exact, FORMATS["float32"])).all())
    assert bool((spread > 0).any())


def test_a_runs_noise_depends_on_its_seed_alone() -> None:
    x, y = pair(torch.bfloat16)
    op: Op = lambda x, y: functional.silu(x @ y.mT)  # noqa: E731
    first, again, other = (one(op, x, y, Rounding.stochastic(EAGER, seed, {})).data64 for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_noise_inside_an_operator_is_added_in_stochastic_runs() -> None:
    """A float32 sum of 2^20 ones and small values has an error of its own, far above its last rounding."""
    x = torch.rand(1 << 16)
    runs = noisy(lambda x, y: x.sum() * 1.0, x, x, 64, FUSED)
    sigma = one(lambda x, y: x.sum(), x, x, Rounding.none()).sigma64
    assert sigma is not None
    assert float(runs.std()) == pytest.approx(float(sigma), rel=0.4)


def test_the_label_float32_keeps_float32_inside_eager_code() -> None:
    """Code that casts up by itself is not rounded to the storage format inside."""
    x, y = pair(torch.bfloat16)
    made = one(lambda x, y: x.float() / 3, x, y, Rounding.nearest(EAGER))
    assert torch.equal(made.data64, round_nearest(x.double() / 3, FORMATS["float32"]))


def attention_inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    shape = ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8))
    q, k, v = (torch.randn(s, generator=generator).to(dtype) for s in shape)
    return q, k, v


def masks() -> dict[str, dict[str, Any]]:
    keep = torch.ones(5, 7, dtype=torch.bool).tril(2)
    return {
        "plain": {},
        "causal": {"is_causal": True},
        "boolean mask": {"attn_mask": keep},
        "float mask": {"attn_mask": torch.zeros(5, 7).masked_fill(~keep, -math.inf)},
        "bias": {"attn_mask": torch.linspace(-1, 1, 35).reshape(5, 7)},
        "scale": {"scale": 0.3},
        "scale of one": {"scale": 1.0},
    }


@pytest.mark.parametrize("name", masks())
@pytest.mark.parametrize("grouped", [True, False], ids=["grouped", "one to one"])
def test_attention_is_torchs_in_float64(name: str, grouped: bool) -> None:
    q, k, v = attention_inputs(torch.float32)
    if not grouped:
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    options = masks()[name]
    wide = {
        n: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for n, x in options.items()
    }
    truth = functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), enable_gqa=grouped, **wide
    )
    arithmetic = Arithmetic(Rounding.none())
    shadows = [arithmetic.shadow(x) for x in (q, k, v)]
    with arithmetic:
        made = functional.scaled_dot_product_attention(*shadows, enable_gqa=grouped, **options)
    assert isinstance(made, ShadowTensor)
    assert made.dtype == torch.float32
    assert torch.allclose(made.data64, truth, rtol=1e-13, atol=1e-14)


def test_attention_with_no_key_left_gives_zeros_as_torch_does() -> None:
    q, k, v = attention_inputs(torch.float32)
    nothing = torch.ones(5, 7, dtype=torch.bool)
    nothing[2] = False
    arithmetic = Arithmetic(Rounding.none())
    shadows = [arithmetic.shadow(x) for x in (q, k, v)]
    with arithmetic:
        made = functional.scaled_dot_product_attention(*shadows, attn_mask=nothing, enable_gqa=True)
    truth = functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), attn_mask=nothing, enable_gqa=True
    )
    assert torch.allclose(made.data64, truth, atol=1e-14)
    assert bool((made.data64[:, :, 2] == 0).all())


def test_attention_with_dropout_is_refused() -> None:
    q, k, v = attention_inputs(torch.float32)
    arithmetic = Arithmetic(Rounding.none())
    shadows = [arithmetic.shadow(x) for x in (q, k, v)]
    with arithmetic, pytest.raises(RuntimeError, match=r"dropout_p=0\.1"):
        functional.scaled_dot_product_attention(*shadows, dropout_p=0.1, enable_gqa=True)


def test_an_operator_inside_attention_is_not_counted_twice() -> None:
    q, k, v = attention_inputs(torch.bfloat16)
    arithmetic = Arithmetic(Rounding.none())
    shadows = [arithmetic.shadow(x) for x in (q, k, v)]
    with arithmetic:
        made = functional.scaled_dot_product_attention(*shadows, enable_gqa=True)
        after = made + 1
    assert (made.depth, after.depth) == (2, 3)


def test_constants_of_rounding_operators_are_noted_in_order() -> None:
    arithmetic = Arithmetic(Rounding.none())
    x = arithmetic.shadow(torch.ones(4))
    with arithmetic:
        (x * 0.5 + 1e-6).clamp(-3.0, 3.0).view(2, 2).rsqrt() / 30.0
    assert [(c.op, c.value) for c in arithmetic.constants] == [("mul", 0.5), ("add", 1e-6), ("div", 30.0)]


def test_one_constant_can_be_altered_in_a_replay() -> None:
    def code(x: Tensor) -> Tensor:
        return torch.rsqrt(x * 0.5 + 1e-2) * 0.5

    arithmetic = Arithmetic(Rounding.none())
    x = arithmetic.shadow(torch.linspace(1, 2, 4))
    with arithmetic:
        code(x)
    epsilon = next(c for c in arithmetic.constants if c.op == "add")
    altered = Arithmetic(Rounding.altering(epsilon, 10.0))
    with altered:
        made = code(x)
    assert isinstance(made, ShadowTensor)
    assert torch.allclose(made.data64, torch.rsqrt(x.data64 * 0.5 + 1e-1) * 0.5, rtol=1e-14)


def test_attentions_scale_is_a_constant() -> None:
    q, k, v = attention_inputs(torch.float32)
    arithmetic = Arithmetic(Rounding.none())
    shadows = [arithmetic.shadow(x) for x in (q, k, v)]
    with arithmetic:
        functional.scaled_dot_product_attention(*shadows, enable_gqa=True)
    (scale,) = [c for c in arithmetic.constants if c.op == "scaled_dot_product_attention"]
    assert scale.value == 1 / math.sqrt(8)


@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
def test_code_goes_on_with_the_candidates_choice(largest: bool) -> None:
    values = torch.tensor([[1.0, 5.0, 3.0, 4.0]])
    candidates = torch.tensor([[3, 2]])
    arithmetic = Arithmetic(Rounding.none(), choose=lambda name, own: candidates)
    x = arithmetic.shadow(values)
    with arithmetic:
        made = (x * 1).topk(2, -1, largest=largest)
    assert torch.equal(made[1], candidates)
    assert values_of(made[0]) == [[4.0, 3.0]]
    (choice,) = arithmetic.choices
    assert (choice.op, choice.is_followed) == ("topk", True)
    assert choice.values_at(choice.own.indices).tolist() == ([[5.0, 4.0]] if largest else [[3.0, 1.0]])
    assert choice.values_at(choice.indices).tolist() == [[4.0, 3.0]]


def test_an_index_that_is_none_is_not_taken_as_a_choice() -> None:
    arithmetic = Arithmetic(Rounding.none(), choose=lambda name, own: torch.tensor([7]))
    x = arithmetic.shadow(torch.tensor([[1.0, 5.0, 3.0, 4.0]]))
    with arithmetic:
        made = x.argmax(-1)
    assert made.tolist() == [1]
    assert [choice.is_followed for choice in arithmetic.choices] == [False]


def values_of(tensor: Tensor) -> Any:
    assert isinstance(tensor, ShadowTensor)
    return tensor.data64.tolist()


def test_what_code_makes_from_nothing_has_the_values_that_the_device_makes() -> None:
    """A grid in bfloat16 is rounded where the code asks for bfloat16: the candidate's code does the same."""
    with Arithmetic(Rounding.none()):
        made = torch.linspace(0, 1, 7, dtype=torch.bfloat16)
    assert isinstance(made, ShadowTensor)
    assert made.data64.tolist() == torch.linspace(0, 1, 7, dtype=torch.bfloat16).tolist()


def test_a_narrower_value_that_is_widened_again_was_rounded_on_the_way() -> None:
    with Arithmetic(Rounding.none()) as arithmetic:
        with arithmetic.suspended():
            x = arithmetic.shadow(torch.randn(4))
        y = (x * 3).to(torch.bfloat16).float()
    assert isinstance(y, ShadowTensor)
    assert (y.depth, y.is_cast) == (2, False)


def test_integers_that_rounded_values_decide_are_known_as_such() -> None:
    with Arithmetic(Rounding.none()) as arithmetic:
        with arithmetic.suspended():
            x = arithmetic.shadow(torch.randn(4, 8))
        chosen = (x * 3).argmax(-1)
        follows = chosen + 1
        free = torch.arange(4)
    assert arithmetic.is_chosen(chosen)
    assert arithmetic.is_chosen(follows)
    assert not arithmetic.is_chosen(free)


def test_an_operator_without_a_row_is_named_by_what_comes_after_it() -> None:
    with Arithmetic(Rounding.none()) as arithmetic:
        with arithmetic.suspended():
            x = arithmetic.shadow(torch.rand(4) + 1)
        y = torch.special.gammaln(x).reshape(2, 2)
        z = x * 2
    assert isinstance(y, ShadowTensor)
    assert isinstance(z, ShadowTensor)
    assert y.unknown == "aten.lgamma" or y.unknown.startswith("aten.")
    assert z.unknown == ""


def test_attention_takes_its_arguments_by_name() -> None:
    q = torch.randn(1, 2, 5, 4)
    with Arithmetic(Rounding.none()) as arithmetic:
        with arithmetic.suspended():
            x = arithmetic.shadow(q)
        y = functional.scaled_dot_product_attention(query=x, key=x, value=x, is_causal=True)
    exact = functional.scaled_dot_product_attention(q.double(), q.double(), q.double(), is_causal=True)
    assert isinstance(y, ShadowTensor)
    assert torch.allclose(y.data64, exact, rtol=1e-12)
