"""The verdict on one edge: every rule with a planted fault and a healthy twin."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from validator.checks.findings import Arm
from validator.checks.judge import MEASURED_FACTOR, Assessment, Band, Bench, judge_edge, judge_equal
from validator.numerics.bands import C, matmul_sigma, normal_lambda, tail_lambda
from validator.numerics.formats import format_of
from validator.numerics.rounding import round_nearest
from validator.numerics.ulp import ulp

BENCH = Bench(elements=10**6)
HIDDEN = ("batch", "token", "channel")
HEADS = ("batch", "head", "token", "channel")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def judged(
    exact: Tensor,
    cand: Tensor,
    *,
    band: Band | None = None,
    control: Tensor | None = None,
    region: Tensor | None = None,
    dims: tuple[str, ...] | None = None,
) -> Assessment:
    dims = dims or {2: ("token", "channel"), 3: HIDDEN, 4: HEADS}.get(exact.dim(), ("",) * exact.dim())
    return judge_edge(
        exact=exact, cand=cand, band=band or Band(), control=control, judged=region, dims=dims, bench=BENCH
    )


def rounded(y: Tensor, dtype: torch.dtype = BF16) -> Tensor:
    """Round once: a cast from float64 rounds twice."""
    return round_nearest(y, format_of(dtype)).to(dtype)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# EXACT


@pytest.mark.parametrize(
    ("exact", "cand"),
    [
        (torch.tensor([1, 2, 3]), torch.tensor([1, 2, 3])),
        (torch.tensor([True, False]), torch.tensor([True, False])),
        (
            torch.tensor([0.5, math.nan, math.inf], dtype=torch.float64),
            torch.tensor([0.5, math.nan, math.inf]),
        ),
        (torch.tensor([0.0], dtype=torch.float64), torch.tensor([-0.0], dtype=BF16)),
        (torch.zeros(0, dtype=torch.float64), torch.zeros(0)),
    ],
    ids=["integers", "booleans", "special values", "signs of zeros", "empty"],
)
def test_equal_values_are_equal(exact: Tensor, cand: Tensor) -> None:
    assessment = judge_equal(exact=exact, cand=cand, judged=None, dims=("",))
    assert assessment.arm is None
    assert assessment.evidence.outside == 0


def test_one_differing_bit_diverges_with_its_place_and_both_values() -> None:
    exact = torch.ones(2, 3, dtype=torch.float64)
    cand = torch.ones(2, 3, dtype=BF16)
    cand[1, 2] = 1 + 2.0**-7
    assessment = judge_equal(exact=exact, cand=cand, judged=None, dims=("token", "channel"))
    evidence = assessment.evidence
    assert assessment.arm is Arm.EXACT
    assert assessment.outside.tolist() == [[1, 2]]
    assert (evidence.worst_index, evidence.reference, evidence.candidate) == ((1, 2), 1.0, 1.0078125)
    assert (evidence.outside, evidence.elements, evidence.ulp_error_max) == (1, 6, 1.0)
    assert evidence.max_over_band == math.inf


def test_a_nan_on_one_side_diverges() -> None:
    exact = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assessment = judge_equal(exact=exact, cand=torch.tensor([1.0, math.nan]), judged=None, dims=("",))
    assert assessment.arm is Arm.EXACT
    assert assessment.evidence.worst_index == (1,)


def test_integers_that_differ_have_no_ulp() -> None:
    assessment = judge_equal(
        exact=torch.tensor([5, 7]), cand=torch.tensor([5, 9]), judged=None, dims=("token",)
    )
    assert assessment.arm is Arm.EXACT
    assert assessment.evidence.ulp_error_max is None
    assert (assessment.evidence.reference, assessment.evidence.candidate) == (7.0, 9.0)


def test_equality_is_asked_of_judged_elements_alone() -> None:
    exact, region = torch.zeros(4, dtype=torch.float64), torch.tensor([True, True, False, False])
    cand = torch.tensor([0.0, 0.0, 1.0, 1.0])
    assert judge_equal(exact=exact, cand=cand, judged=region, dims=("",)).arm is None
    assessment = judge_equal(exact=exact, cand=cand.flip(0), judged=region, dims=("",))
    assert assessment.evidence.outside == assessment.evidence.elements == 2


# CLASS


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_special_value_where_the_oracle_has_a_number_diverges(value: float) -> None:
    y = normal(8, 16)
    cand = rounded(y)
    cand[3, 5] = value
    assessment = judged(y, cand)
    assert assessment.arm is Arm.CLASS
    assert assessment.outside.tolist() == [[3, 5]]
    assert assessment.evidence.worst_index == (3, 5)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_where_the_oracle_has_a_special_value_diverges(value: float) -> None:
    y = normal(8, 16)
    y[3, 5] = value
    cand = rounded(y)
    assert judged(y, cand).arm is None
    cand[3, 5] = 1.0
    assert judged(y, cand).arm is Arm.CLASS


def test_infinity_of_the_other_sign_diverges() -> None:
    y = normal(8, 16)
    y[0, 0] = math.inf
    cand = rounded(y)
    cand[0, 0] = -math.inf
    assert judged(y, cand).arm is Arm.CLASS


def test_saturation_where_the_result_overflows_diverges() -> None:
    """A kernel that clamps to the largest finite value, far beyond it."""
    y = normal(8, 16)
    y[2, 2] = 90000.0
    cand = rounded(y, F16)
    assert cand[2, 2].item() == math.inf
    assert judged(y, cand).arm is None
    cand[2, 2] = 65504.0
    assert judged(y, cand).arm is Arm.CLASS


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e4m3fnuz])
def test_overflow_of_a_format_without_infinity_is_the_devices_own(dtype: torch.dtype) -> None:
    y = normal(8, 16)
    y[2, 2] = -5000.0
    cand = rounded(y, dtype).float()
    for made in (-format_of(dtype).max, math.nan):
        cand[2, 2] = made
        assert judged(y, cand.to(dtype)).arm is None
    cand[2, 2] = -format_of(dtype).max / 2
    assert judged(y, cand.to(dtype)).arm is not None


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("value", [65504.0, math.inf])
def test_at_the_edge_of_overflow_both_are_right(value: float, sign: float) -> None:
    """65519.99 and 65520.01 are the same to a kernel whose float32 noise is 0.02; the tie is at 65520."""
    for y_value in (65519.99, 65520.0, 65520.01):
        y = torch.full((4, 4), sign * y_value, dtype=torch.float64)
        cand = torch.full((4, 4), sign * value, dtype=F16)
        assert judged(y, cand, band=Band(sigma=0.02)).arm is None


@pytest.mark.parametrize("value", [65504.0, math.inf])
def test_away_from_the_edge_only_one_is_right(value: float) -> None:
    y = torch.full((4, 4), 65600.0 if value == 65504.0 else 65440.0, dtype=torch.float64)
    assert judged(y, torch.full((4, 4), value, dtype=F16), band=Band(sigma=0.02)).arm in (Arm.CLASS, Arm.MAX)


def test_infinity_of_the_wrong_sign_diverges_at_the_edge_as_well() -> None:
    y = torch.full((4, 4), 65520.0, dtype=torch.float64)
    assert judged(y, torch.full((4, 4), -math.inf, dtype=F16)).arm is Arm.CLASS


def test_a_nan_diverges_at_the_edge_as_well() -> None:
    y = torch.full((4, 4), 65520.0, dtype=torch.float64)
    assert judged(y, torch.full((4, 4), math.nan, dtype=F16)).arm is Arm.CLASS


# MAX


@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
def test_one_rounding_is_explained_and_one_ulp_is_not(dtype: torch.dtype) -> None:
    y = normal(8, 16)
    cand = rounded(y, dtype)
    assert judged(y, cand).arm is None
    error = (cand[4, 7].double() - y[4, 7]).sign() or torch.tensor(1.0)
    cand[4, 7] += error * ulp(y[4, 7], format_of(dtype)).item()
    assessment = judged(y, cand)
    assert assessment.arm is Arm.MAX
    assert assessment.outside.tolist() == [[4, 7]]
    assert 1 < assessment.evidence.max_over_band <= 3
    assert assessment.evidence.ulp_error_max == pytest.approx(assessment.evidence.max_over_band / 2)
    assert assessment.evidence.worst_allowed_ulp == pytest.approx(0.5)
    assert (assessment.evidence.outside, assessment.evidence.elements) == (1, 128)


@pytest.mark.parametrize(
    ("band", "allowed"),
    [
        (Band(), 0.5),
        (Band(bound=2.0**-8), 1.0),
        (Band(sigma=2.0**-10), 0.5 + normal_lambda(10**6) / 8),
        (Band(sigma=2.0**-10, is_measured=True), 0.5 + MEASURED_FACTOR * normal_lambda(10**6) / 8),
        (Band(sigma=2.0**-10, has_tails=True), 0.5 + tail_lambda(10**6) / 8),
    ],
    ids=["half an ulp", "bound", "sigma", "measured sigma", "tails"],
)
def test_the_band_is_half_an_ulp_and_bound_and_lambda_sigma(band: Band, allowed: float) -> None:
    """The ulp at 1.5 is 2^-7 in bfloat16."""
    for inside, arm in ((0.999, None), (1.001, Arm.MAX)):
        y = torch.full((4, 4), 1.5 - inside * allowed * 2.0**-7, dtype=torch.float64)
        assert judged(y, torch.full((4, 4), 1.5, dtype=BF16), band=band).arm is arm


def test_an_element_whose_noise_is_unknown_is_undecided_and_hides_no_other() -> None:
    exact, sigma = torch.ones(1, 4, dtype=torch.float64), torch.tensor([[math.nan, 0.0, 0.0, 0.0]])
    healthy = judged(exact, exact.to(BF16), band=Band(sigma=sigma.double()))
    assert (healthy.arm, healthy.undecided) == (None, 1)
    wrong = judged(exact, torch.tensor([[1.0, 1.0, 1.5, 1.0]], dtype=BF16), band=Band(sigma=sigma.double()))
    assert (wrong.arm, wrong.outside.tolist(), wrong.evidence.worst_index) == (Arm.MAX, [[0, 2]], (0, 2))


def test_a_band_can_differ_by_element() -> None:
    y = torch.full((4, 4), 1.5, dtype=torch.float64)
    sigma = torch.zeros(4, 4, dtype=torch.float64)
    sigma[0, 0] = 1.0
    cand = torch.full((4, 4), 1.5, dtype=BF16)
    cand[0, 0], cand[0, 1] = 2.0, 2.0
    assert judged(y, cand, band=Band(sigma=sigma)).outside.tolist() == [[0, 1]]


def test_padded_positions_are_ignored() -> None:
    y = normal(2, 6, 32)
    cand = rounded(y)
    cand[1, 4:] = math.nan
    region = torch.ones(2, 6, 1, dtype=torch.bool)
    region[1, 4:] = False
    assert judged(y, cand).arm is Arm.CLASS
    assert judged(y, cand, region=region).arm is None
    cand[1, 3, 3] += 1
    assessment = judged(y, cand, region=region)
    assert assessment.outside.tolist() == [[1, 3, 3]]
    assert assessment.evidence.elements == 10 * 32


def test_a_single_number_is_judged() -> None:
    y = torch.tensor(1.0, dtype=torch.float64)
    assert judged(y, y.to(BF16), dims=()).arm is None
    assert judged(y, torch.tensor(1.5, dtype=BF16), dims=()).arm is Arm.MAX


def test_nothing_to_judge_says_so() -> None:
    y = normal(2, 6, 32)
    assessment = judged(y, rounded(y), region=torch.zeros(2, 6, 32, dtype=torch.bool))
    assert assessment.arm is None
    assert assessment.note == "no element to judge"
    assert assessment.evidence.elements == 0


# GAIN


@pytest.mark.parametrize("factor", [1.0005, 0.9995])
def test_a_factor_below_one_ulp_is_found_on_1e5_elements(factor: float) -> None:
    y = normal(4, 80, 320)
    healthy = judged(y, rounded(y))
    assert healthy.arm is None
    band = Band(sigma=2.0**-9)  # Wide enough that no single element stands out.
    assessment = judged(y, rounded(y * factor), band=band)
    assert assessment.arm is Arm.GAIN
    assert assessment.evidence.gain == pytest.approx(factor - 1, rel=0.4)
    assert abs(assessment.evidence.z) > 6
    assert len(assessment.outside) == y.numel()


def wide(y: Tensor) -> Band:
    """A band that no single element of these tests leaves: it leaves GAIN alone with them."""
    return Band(sigma=ulp(y, format_of(BF16)) / 4, is_measured=True)


@pytest.mark.parametrize(
    ("slices", "factor"), [(32, 1.0006), (8, 1.004)], ids=["lost in the whole", "seen in the whole"]
)
@pytest.mark.parametrize("dim", [1, 3], ids=["head", "channel"])
def test_the_factor_of_one_slice_is_found_there(dim: int, slices: int, factor: float) -> None:
    shape = [2, 32, 128, 32]
    shape[dim] = slices
    y = normal(*shape)
    factors = torch.ones_like(y)
    factors.select(dim, 5).fill_(factor)
    assessment = judged(y, rounded(y * factors), band=wide(y))
    assert assessment.arm is Arm.GAIN
    assert assessment.outside[:, dim].unique().tolist() == [5]
    assert assessment.evidence.gain == pytest.approx(factor - 1, rel=0.35)
    assert judged(y, rounded(y), band=wide(y)).arm is None


@pytest.mark.parametrize(("share", "arm"), [(0.9, None), (2.0, Arm.GAIN)], ids=["healthy", "wrong"])
def test_a_kernels_error_in_the_tail_of_an_activation_is_no_factor_of_a_channel(
    share: float, arm: Arm | None
) -> None:
    """Channel 5 is all tail, where terms as large as the input cancel: its errors are large and alike."""
    y = normal(2, 32, 128, 32)
    y[..., 5] = -1e-3 * (1 + y[..., 5].abs())
    sigma = C * 2.0**-24 * 3 * y.abs()
    sigma[..., 5] = C * 2.0**-24 * 8
    made = y.clone()
    made[..., 5] += share * sigma[..., 5] / C
    assert judged(y, made.to(torch.float32), band=Band(sigma=sigma)).arm is arm


def test_a_factor_on_most_slices_is_the_whole_edges() -> None:
    y = normal(2, 8, 128, 32)
    assessment = judged(y, rounded(y * 1.004), band=wide(y))
    assert assessment.evidence.outside == y.numel()


def test_a_gain_that_the_control_shows_as_well_is_the_recipes() -> None:
    """Both the candidate and the reference's own code under the recipe lose 0.2%."""
    y = normal(4, 80, 320)
    cand = rounded(y * 0.998)
    control = cand.to(torch.float64)
    assert judged(y, cand, band=wide(y)).arm is Arm.GAIN
    assert judged(y, cand, band=wide(y), control=control).arm is None


def test_a_gain_needs_elements_that_differ_from_the_control() -> None:
    y = normal(4, 80, 320)
    cand = rounded(y * 1.002)
    control = cand.to(torch.float64)
    control.view(-1)[:49] *= 1.1
    assert judged(y, cand, band=wide(y), control=control).arm is None


def test_the_gain_abstains_with_few_rows_and_says_so() -> None:
    y = normal(1, 8, 512)
    assessment = judged(y, rounded(y * 1.002), band=wide(y))
    assert assessment.arm is None
    assert assessment.note == "too few independent elements for the gain test"
    assert assessment.evidence.z is None


def test_one_token_is_judged_by_blocks_of_channels() -> None:
    y = normal(1, 1, 65536)
    assert judged(y, rounded(y)).arm is None
    assessment = judged(y, rounded(y * 1.003), band=wide(y))
    assert assessment.arm is Arm.GAIN


# Healthy data, one after the other

Make = Callable[[torch.Generator], Tensor]


def one_hot(g: torch.Generator) -> Tensor:
    return torch.nn.functional.one_hot(torch.randint(0, 64, (4, 32), generator=g), 64).double() * 0.7


def clamped(g: torch.Generator) -> Tensor:
    return (torch.randn(4, 32, 64, generator=g, dtype=torch.float64) * 3).clamp(-1.013, 1.013)


def slow_cosine(g: torch.Generator) -> Tensor:
    frequencies = 10000.0 ** -(torch.arange(32, dtype=torch.float64) / 32)
    angles = torch.arange(64, dtype=torch.float64)[:, None] * frequencies
    return torch.cat([angles, angles], -1).cos().expand(2, 64, 64).contiguous()


def near_uniform_softmax(g: torch.Generator) -> Tensor:
    return torch.softmax(torch.randn(4, 32, 64, generator=g, dtype=torch.float64) * 0.01, -1)


def levels(g: torch.Generator) -> Tensor:
    values = torch.rand(24, generator=g, dtype=torch.float64) + 1
    return values[torch.randint(0, 24, (4, 32, 64), generator=g)]


HEALTHY: dict[str, Make] = {
    "normal": lambda g: torch.randn(4, 32, 64, generator=g, dtype=torch.float64),
    "positive": lambda g: torch.rand(4, 32, 64, generator=g, dtype=torch.float64),
    "heavy tails": lambda g: torch.randn(4, 32, 64, generator=g, dtype=torch.float64) ** 5,
    "row scales": lambda g: (
        torch.randn(4, 32, 64, generator=g, dtype=torch.float64)
        * torch.exp(2 * torch.randn(4, 32, 1, generator=g, dtype=torch.float64))
    ),
    "channel scales": lambda g: (
        torch.randn(4, 32, 64, generator=g, dtype=torch.float64)
        * torch.exp(3 * torch.randn(64, generator=g, dtype=torch.float64))
    ),
    "zeros": lambda g: torch.randn(4, 32, 64, generator=g, dtype=torch.float64).clamp_min(0.5) - 0.5,
    "subnormal": lambda g: torch.randn(4, 32, 64, generator=g, dtype=torch.float64) * 2.0**-130,
    "softmax": lambda g: torch.softmax(torch.randn(4, 32, 64, generator=g, dtype=torch.float64) * 4, -1),
    "near-uniform softmax": near_uniform_softmax,
    "one hot": one_hot,
    "clamped": clamped,
    "slow cosine": slow_cosine,
    "few levels": levels,
    "constant": lambda g: torch.full((4, 32, 64), float(torch.rand(1, generator=g)), dtype=torch.float64),
    "repeated rows": lambda g: (
        torch.randn(1, 1, 64, generator=g, dtype=torch.float64).expand(4, 32, 64).contiguous()
    ),
    "one token": lambda g: torch.randn(1, 1, 512, generator=g, dtype=torch.float64),
}


@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("kind", HEALTHY)
def test_healthy_rounding_raises_no_alarm(kind: str, dtype: torch.dtype) -> None:
    """One rounding, of a value that carries float32-like noise of a known sigma."""
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        y = HEALTHY[kind](generator)
        sigma = ulp(y, format_of(dtype)) / 8
        noise = sigma * torch.randn(y.shape, generator=generator, dtype=torch.float64)
        assert judged(y, rounded(y, dtype)).arm is None
        assert judged(y, rounded(y + noise, dtype), band=Band(sigma=sigma)).arm is None


def test_real_float32_matmuls_raise_no_alarm() -> None:
    for seed in range(8):
        x, w = normal(2, 48, 96, seed=seed).float(), normal(96, 64, seed=seed + 100).float()
        y = x.double() @ w.double()
        band = Band(sigma=matmul_sigma(x.double(), w.double(), y), has_tails=True)
        assert judged(y, x @ w, band=band).arm is None
        assert judged(y, (x.bfloat16() @ w.bfloat16()).float(), band=band).arm is Arm.MAX
