"""Kinds of faults: each is named when it is there, and not when it is nearly there."""

from typing import Any

import pytest
import torch
from torch import Tensor

from validator.checks.signatures import Subject, edge_signature, parameter_signature
from validator.numerics.formats import FORMATS
from validator.numerics.rounding import round_nearest
from validator.numerics.ulp import ulp

BF16 = FORMATS["bfloat16"]
BIAS = torch.linspace(-3, 3, 32, dtype=torch.float64) + 0.1


def values(seed: int = 0) -> Tensor:
    return torch.randn(4, 16, 32, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def named(
    exact: Tensor, cand: Tensor, judged: Tensor | None = None, **options: Any
) -> tuple[str, dict[str, Any]] | None:
    """Return the kind of fault and its parameters for a candidate that is rounded to bfloat16."""
    spacing = ulp(exact, BF16)
    subject = Subject(
        exact=exact,
        cand=round_nearest(cand, BF16),
        allowed=spacing * 0.6,
        fmt=BF16,
        judged=torch.ones(exact.shape, dtype=torch.bool) if judged is None else judged,
        **options,
    )
    found = edge_signature(subject)
    if found is None:
        return None
    assert found.residual_ulp is not None
    assert 0 <= found.residual_ulp < 20
    return found.kind, dict(found.parameters)


@pytest.mark.parametrize("world", [2, 4, 8])
def test_a_bias_added_on_every_rank(world: int) -> None:
    y = values() + BIAS
    found = named(y, y + (world - 1) * BIAS, bias=BIAS, world_size=world, reductions=1)
    assert found == ("bias_per_rank", {"times": world, "world_size": world})


def test_a_bias_left_out() -> None:
    y = values() + BIAS
    assert named(y, y - BIAS, bias=BIAS) == ("bias_missing", {})


def test_a_bias_added_twice_on_one_rank_is_not_per_rank() -> None:
    y = values() + BIAS
    found = named(y, y + BIAS, bias=BIAS)
    assert found is not None
    assert found[0] == "constant_vector"


def test_a_bias_of_another_shape_or_of_zeros_explains_nothing() -> None:
    y = values()
    assert named(y, y * 1.5, bias=torch.ones(7, dtype=torch.float64)) is not None
    found = named(y, y * 1.5, bias=torch.zeros(32, dtype=torch.float64), world_size=2)
    assert found is not None
    assert found[0] == "factor"


@pytest.mark.parametrize("world", [2, 4])
def test_a_sum_taken_twice_and_one_left_out(world: int) -> None:
    y = values()
    assert named(y, world * y, world_size=world, reductions=1) == (
        "double_reduction",
        {"factor": float(world), "reductions": 1},
    )
    assert named(y, y / world, world_size=world, reductions=1) == (
        "missing_reduction",
        {"factor": 1 / world, "reductions": 1},
    )


def test_without_a_sum_over_ranks_twice_the_value_is_a_factor() -> None:
    y = values()
    for options in ({"world_size": 2}, {"reductions": 1}, {}):
        found = named(y, 2 * y, **options)
        assert found is not None
        assert found[0] == "factor"


@pytest.mark.parametrize("factor", [1.1, 0.5, 3.0, -2.0])
def test_a_factor(factor: float) -> None:
    found = named(values(), values() * factor)
    assert found is not None
    kind, parameters = found
    assert kind == "factor"
    assert parameters["factor"] == pytest.approx(factor, rel=1e-3)


def test_a_sign_is_a_factor_of_minus_one_or_named_as_such() -> None:
    found = named(values(), -values())
    assert found is not None
    assert found[0] in ("factor", "sign")


def test_a_factor_on_some_elements_is_none_of_the_whole() -> None:
    y = values()
    cand = y.clone()
    cand[..., 3] *= 1.5
    assert named(y, cand) is None


def test_a_constant_vector_on_every_row() -> None:
    y = values()
    found = named(y, y + 5 * BIAS)
    assert found is not None
    kind, parameters = found
    assert kind == "constant_vector"
    assert parameters["norm"] == pytest.approx(float((5 * BIAS).norm()), rel=0.02)


def test_a_vector_that_differs_by_row_is_not_constant() -> None:
    y = values()
    assert named(y, y + BIAS * torch.arange(16, dtype=torch.float64)[:, None]) is None


@pytest.mark.parametrize("kind", ["noise", "permuted", "another tensor"])
def test_an_arbitrary_difference_has_no_name(kind: str) -> None:
    y = values()
    cand = {
        "noise": y + 0.3 * values(1),
        "permuted": y.roll(1, -1),
        "another tensor": values(2),
    }[kind]
    assert named(y, cand, bias=BIAS, world_size=2, reductions=1) is None


def test_one_row_of_channels_has_no_constant_vector() -> None:
    """A single row differs by a vector whatever is wrong with it."""
    y = values()[0, :1]
    assert named(y, y + BIAS) is None


@pytest.mark.parametrize("seed", range(8))
def test_what_two_rows_have_in_common_by_chance_is_no_constant_vector(seed: int) -> None:
    y, noise = (values(seed)[0, :2], values(seed + 100)[0, :2])
    assert named(y, y + 0.3 * noise) is None


def test_padding_and_special_values_are_left_out() -> None:
    y = values()
    cand = y * 1.5
    cand[0, 0] = 77.0
    cand[1, 1, 1] = float("nan")
    judged = torch.ones(y.shape, dtype=torch.bool)
    judged[0, 0] = False
    found = named(y, cand, judged)
    assert found is not None
    assert found[0] == "factor"
    assert named(y, cand) is None
    assert named(y, cand, torch.zeros(y.shape, dtype=torch.bool)) is None


def test_an_oracle_of_zeros_has_no_factor() -> None:
    zeros = torch.zeros(4, 16, 32, dtype=torch.float64)
    found = named(zeros, zeros + BIAS)
    assert found is None or found[0] == "constant_vector"


def weight() -> Tensor:
    return round_nearest(values()[0], BF16)


def parameter(
    candidate: Tensor, others: dict[str, Tensor] | None = None
) -> tuple[str, dict[str, Any]] | None:
    found = parameter_signature(reference=weight(), candidate=candidate, others=(others or {}).items)
    return None if found is None else (found.kind, dict(found.parameters))


def test_the_values_of_another_parameter() -> None:
    others = {"k_proj.weight": values(3)[0], "v_proj.weight": values(4)[0]}
    assert parameter(values(4)[0], others) == ("other_parameter", {"name": "v_proj.weight"})
    assert parameter(values(5)[0], others) is None


def test_rows_and_columns_in_another_order() -> None:
    swapped = {"is": "the second half first (up, then gate)", "should_be": "halves (gate, then up)"}
    found = parameter(weight().roll(8, 0))
    assert found == ("permutation", {"dim": 0, "blocks": 2, "block_size": 8} | swapped)
    found = parameter(weight().roll(16, 1))
    assert found == ("permutation", {"dim": 1, "blocks": 2, "block_size": 16} | swapped)
    found = parameter(weight().flip(0))
    assert found == ("permutation", {"dim": 0, "blocks": 16, "block_size": 1})


def test_a_transposed_or_incomplete_order_is_no_permutation() -> None:
    twice = weight().roll(8, 0)
    twice[0] = twice[1]
    assert parameter(twice) is None


def test_equal_rows_can_not_be_told_apart_but_are_counted() -> None:
    reference = torch.ones(4, 3, dtype=torch.float64)
    candidate = reference.clone()
    candidate[0] = 2
    found = parameter_signature(reference=reference, candidate=candidate, others=list)
    assert found is None or found.kind != "permutation"


@pytest.mark.parametrize("factor", [2.0, 0.25, 1.25, -1.0])
def test_a_parameters_factor(factor: float) -> None:
    found = parameter(round_nearest(weight() * factor, BF16))
    assert found is not None
    assert found[0] == "factor"
    assert found[1]["factor"] == pytest.approx(factor, rel=2**-7)


def test_values_that_scatter_around_a_factor_are_none() -> None:
    assert parameter(weight() * (1 + 0.1 * values(6)[0])) is None
