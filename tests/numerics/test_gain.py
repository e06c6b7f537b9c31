import math

import mpmath
import pytest
import scipy.stats
import torch
from torch import Tensor

from validator.numerics.formats import FORMATS, Format
from validator.numerics.gain import MINIMUM_CLUSTERS, Gain, gain, normal_score, slice_gains, student_t
from validator.numerics.rounding import round_nearest
from validator.numerics.ulp import ulp

BF16 = FORMATS["bfloat16"]


@pytest.mark.parametrize("degrees", [15, 16, 30, 100, 1000, 1e5])
@pytest.mark.parametrize("t", [0.1, 1.0, 3.0, 6.0, 10.0])
def test_a_t_becomes_the_normal_deviate_of_equal_probability(t: float, degrees: float) -> None:
    known = scipy.stats.norm.isf(scipy.stats.t.sf(t, degrees))
    assert float(normal_score(t, degrees)) == pytest.approx(known, rel=3e-3, abs=1e-4)


@pytest.mark.parametrize(("t", "degrees"), [(60.0, 40.0), (200.0, 200.0)])
def test_extreme_values_do_not_underflow(t: float, degrees: float) -> None:
    """The tail of t by its incomplete beta function, in 400 digits; its normal deviate by root finding."""
    with mpmath.workdps(400):
        v = mpmath.mpf(degrees)
        tail = mpmath.betainc(v / 2, mpmath.mpf(1) / 2, 0, v / (v + mpmath.mpf(t) ** 2), regularized=True) / 2
        guess = mpmath.sqrt(-2 * mpmath.log(tail))
        known = mpmath.findroot(
            lambda z: mpmath.log(mpmath.erfc(z / mpmath.sqrt(2)) / 2) - mpmath.log(tail), guess
        )
    assert float(normal_score(t, degrees)) == pytest.approx(float(known), rel=0.01)


def test_the_score_is_odd_and_takes_tensors() -> None:
    t = torch.tensor([-3.0, 0.0, 3.0], dtype=torch.float64)
    scores = normal_score(t, torch.tensor([20.0, 20.0, 20.0]))
    assert float(scores[0]) == -float(scores[2])
    assert float(scores[1]) == 0.0


def rounded(
    rows: int, columns: int, factor: float = 1.0, seed: int = 0, fmt: Format = BF16
) -> dict[str, Tensor]:
    """Healthy rounding of `[rows, columns]` normal values that a factor may have changed."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    return case(y, round_nearest(y * factor, fmt), fmt)


def case(y: Tensor, c: Tensor, fmt: Format = BF16) -> dict[str, Tensor]:
    spacing = ulp(y, fmt)
    return {
        "difference": (c - y).flatten(),
        "reference": y.flatten(),
        "weight": (12 / spacing.square()).flatten(),
        "rows": torch.arange(len(y)).repeat_interleave(y[0].numel()),
        "values": c.abs().flatten(),
    }


def test_z_of_healthy_rounding_is_a_standard_normal_deviate() -> None:
    scores = torch.tensor([gain(**rounded(64, 32, seed=seed)).z for seed in range(300)])
    assert float(scores.abs().max()) < 4.5
    assert abs(float(scores.mean())) < 4 / math.sqrt(300)
    # The larger of several variances makes it a little smaller than 1, never larger.
    assert 0.6 < float(scores.std()) < 1.1


@pytest.mark.parametrize("factor", [1.0005, 0.9995, 1.002])
def test_a_factor_far_below_one_ulp_is_found_on_1e5_elements(factor: float) -> None:
    found = gain(**rounded(320, 320, factor))
    assert abs(found.z) > 6
    assert found.gain == pytest.approx(factor - 1, rel=0.35)
    assert math.copysign(1, found.z) == math.copysign(1, factor - 1)


def test_the_gain_is_least_squares_by_definition() -> None:
    y = torch.linspace(1, 4, 64, dtype=torch.float64).reshape(32, 2)
    given = case(y, y * 1.25)
    assert gain(**given).gain == pytest.approx(0.25, rel=1e-12)
    assert gain(**given).z > 30


def test_repeated_values_are_no_independent_evidence() -> None:
    """Forty values a thousand times each: their rounding errors repeat, and add up to a gain."""
    generator = torch.Generator().manual_seed(4)
    worst = 0.0
    naive = 0.0
    for _ in range(50):
        levels = torch.rand(40, generator=generator, dtype=torch.float64) + 1
        y = levels[torch.randint(0, 40, (400, 100), generator=generator)]
        given = case(y, round_nearest(y, BF16))
        worst = max(worst, abs(gain(**given).z))
        given["values"] = torch.arange(y.numel())
        naive = max(naive, abs(gain(**given).z))
    assert worst < 6
    assert naive > 20


def test_errors_shared_by_a_row_are_no_independent_evidence() -> None:
    """Each row's factor is its own, as an RMSNorm's rounded scale is."""
    generator = torch.Generator().manual_seed(5)
    worst = 0.0
    for _ in range(50):
        y = torch.randn(64, 256, generator=generator, dtype=torch.float64)
        scale = 1 + 1e-3 * torch.randn(64, 1, generator=generator, dtype=torch.float64)
        worst = max(worst, abs(gain(**case(y, y * scale)).z))
    assert worst < 6


def test_it_abstains_with_few_rows_or_few_values() -> None:
    few_rows = gain(**rounded(8, 1000, 1.01))
    assert few_rows.abstains
    assert few_rows.clusters < MINIMUM_CLUSTERS
    assert few_rows.gain == pytest.approx(0.01, rel=0.05)
    y = torch.ones(100, 100, dtype=torch.float64)
    few_values = gain(**case(y, y * 1.01))
    assert few_values.abstains
    assert few_values.clusters == pytest.approx(1.0)


def test_rows_that_hardly_weigh_do_not_count_as_clusters() -> None:
    """A hundred rows of which one holds nearly all the leverage are one cluster."""
    given = rounded(100, 50, 1.01)
    given["weight"][50:] *= 1e-9
    found = gain(**given)
    assert found.clusters < 1.1
    assert found.abstains


def test_no_difference_is_no_gain() -> None:
    given = rounded(64, 32)
    given["difference"] = torch.zeros_like(given["difference"])
    assert gain(**given) == Gain(gain=0.0, z=0.0, clusters=math.inf)


def test_nothing_to_compare_with_abstains() -> None:
    given = rounded(64, 32)
    given["reference"] = torch.zeros_like(given["reference"])
    assert gain(**given).abstains
    empty = torch.zeros(0, dtype=torch.float64)
    nothing = gain(difference=empty, reference=empty, weight=empty, rows=empty.long(), values=empty)
    assert nothing.abstains
    assert math.isnan(nothing.gain)


def sliced(given: dict[str, Tensor], columns: int) -> dict[str, Tensor]:
    return given | {"slices": torch.arange(columns).repeat(len(given["rows"]) // columns)}


def test_each_slice_has_the_gain_that_it_has_alone() -> None:
    given = sliced(rounded(200, 12, 1.004), 12)
    gains, scores = slice_gains(**given)
    for channel in range(12):
        chosen = given["slices"] == channel
        alone = gain(**{name: t[chosen] for name, t in given.items() if name != "slices"})
        assert float(gains[channel]) == pytest.approx(alone.gain, rel=1e-9)
        assert float(scores[channel]) == pytest.approx(alone.z, rel=1e-9)


def test_one_wrong_channel_stands_out() -> None:
    y = torch.randn(2000, 16, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    factor = torch.ones(16, dtype=torch.float64)
    factor[5] = 1.003
    _, scores = slice_gains(**sliced(case(y, round_nearest(y * factor, BF16)), 16))
    assert int(scores.abs().argmax()) == 5
    assert float(scores[5]) > 6
    scores[5] = 0
    assert float(scores.abs().max()) < 5


def test_a_slice_with_few_rows_abstains_alone() -> None:
    given = sliced(rounded(200, 4, 1.004), 4)
    kept = (given["slices"] != 2) | (given["rows"] < 8)
    _, scores = slice_gains(**{name: t[kept] for name, t in given.items()})
    assert scores.isnan().tolist() == [False, False, True, False]


def test_a_slice_of_zeros_abstains_and_one_without_difference_has_no_gain() -> None:
    given = sliced(rounded(200, 4, 1.004), 4)
    given["reference"] = given["reference"] * (given["slices"] != 1)
    given["difference"] = given["difference"] * (given["slices"] != 3)
    _, scores = slice_gains(**given)
    assert bool(scores[1].isnan())
    assert float(scores[3]) == 0.0
    assert bool((scores[[0, 2]].abs() > 3).all())


def test_no_slices_give_nothing() -> None:
    given = sliced(rounded(4, 4), 4)
    gains, scores = slice_gains(**{name: t[:0] for name, t in given.items()})
    assert gains.shape == scores.shape == (0,)


@pytest.mark.parametrize("degrees", [15.0, 100.0, 1e5])
@pytest.mark.parametrize("t", [-8.0, 0.5, 6.0])
def test_the_t_of_a_score_is_the_scores_inverse(t: float, degrees: float) -> None:
    assert student_t(float(normal_score(t, degrees)), degrees) == pytest.approx(t, rel=1e-9)


def test_the_standard_error_is_the_gain_over_its_t() -> None:
    found = gain(**rounded(64, 128, 1.01))
    assert found.gain / found.error == pytest.approx(student_t(found.z, found.clusters - 1), rel=1e-9)
