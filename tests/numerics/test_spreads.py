import math

import pytest
import torch

from validator.numerics.spreads import clustered_se, jsonable, spread_of


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_percentiles_are_values_that_are_there() -> None:
    made = spread_of(torch.arange(1000, 0, -1, dtype=torch.float64))
    assert (made.p50, made.p90, made.p99, made.p999, made.max) == (500, 900, 990, 999, 1000)
    assert made.mean == 500.5
    assert spread_of(tensor(7.0)).p999 == 7.0


def test_infinities_reach_the_figures_above_them_and_no_other() -> None:
    made = spread_of(tensor(1.0, 2.0, 3.0, math.inf))
    assert (made.p50, made.p90, made.max, made.mean) == (2.0, math.inf, math.inf, math.inf)


def test_the_error_of_independent_values_is_the_usual_one() -> None:
    values = torch.randn(50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert clustered_se(values, None) == pytest.approx(float(values.std()) / math.sqrt(50))


def test_the_error_of_the_mean_is_what_repeated_runs_show() -> None:
    generator = torch.Generator().manual_seed(1)
    groups = torch.arange(30).repeat_interleave(20)
    means, claimed = [], []
    for _ in range(400):
        shared = torch.randn(30, dtype=torch.float64, generator=generator)[groups]
        values = shared + torch.randn(600, dtype=torch.float64, generator=generator)
        means.append(float(values.mean()))
        claimed.append(clustered_se(values, groups) or math.nan)
    seen = float(tensor(*means).std())
    # 400 runs tell a standard deviation to 3.5%: four of these.
    assert float(tensor(*claimed).mean()) == pytest.approx(seen, rel=0.14)


def test_one_group_and_infinite_values_have_no_error() -> None:
    assert clustered_se(tensor(1.0, 2.0), torch.tensor([3, 3])) is None
    assert clustered_se(tensor(1.0), None) is None
    assert clustered_se(tensor(1.0, math.inf, 2.0), None) is None


def test_what_json_lacks_becomes_its_name() -> None:
    assert jsonable({"a": (1, math.inf, {"b": -math.inf}), "c": math.nan, "d": None}) == {
        "a": [1, "inf", {"b": "-inf"}],
        "c": "nan",
        "d": None,
    }
