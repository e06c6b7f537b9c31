import math
from typing import Any

import pytest
import torch
from torch import Tensor

from validator.errors import ComparisonError, UsageError
from validator.testing.tensors import difference_text

BF16 = torch.bfloat16
RAGGED = torch.nested.nested_tensor([torch.ones(3), torch.ones(2)], layout=torch.jagged)


def difference(ref: Tensor, cand: Tensor, max_ulp: float = 0.5) -> str | None:
    return difference_text(ref=ref, cand=cand, max_ulp=max_ulp)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BF16, torch.float8_e4m3fn], ids=str)
def test_a_reference_rounded_once_is_no_difference(dtype: torch.dtype) -> None:
    ref = torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    # A cast from float64 to a 16-bit format rounds twice, which float32 in between spares.
    assert difference(ref.float(), ref.float().to(dtype)) is None


def test_one_ulp_too_many_is_named_with_its_place_and_distance() -> None:
    ref = torch.ones(2, 3, dtype=torch.float64)
    cand = ref.to(BF16)
    cand[1, 2] = 1 + 2**-7  # bfloat16 has 7 bits behind the leading one: the next value after 1
    assert difference(ref, cand) == (
        "1 of 6 elements (16.7%) are not within 0.5 ulp of the reference\n"
        "  worst  [1, 2]: reference 1, candidate 1.0078125, 1 ulp\n"
        "  shape  [2, 3]  bfloat16"
    )
    assert difference(ref, cand, max_ulp=1) is None


@pytest.mark.parametrize(
    ("ref", "cand", "is_same"),
    [
        (math.nan, math.nan, True),
        (math.nan, 1.0, False),
        (1.0, math.nan, False),
        (math.inf, math.inf, True),
        (math.inf, -math.inf, False),
        (3.39e38, math.inf, False),  # bfloat16's largest value and half an ulp are 3.3961e38
        (3.40e38, math.inf, True),
        (0.0, -0.0, True),
    ],
)
def test_what_is_not_finite_must_be_of_the_same_class(ref: float, cand: float, is_same: bool) -> None:
    text = difference(torch.tensor([ref], dtype=torch.float64), torch.tensor([cand], dtype=BF16))
    assert (text is None) == is_same


def test_of_several_differences_another_class_is_shown_first() -> None:
    text = difference(torch.ones(3, dtype=torch.float64), torch.tensor([1.0, 9.0, math.nan]))
    assert text is not None
    assert "  first  [2]: reference 1, candidate nan\n" in text


def test_of_integers_every_bit_counts() -> None:
    assert difference(torch.arange(4), torch.arange(4)) is None
    text = difference(torch.arange(4), torch.tensor([0, 1, 5, 5]))
    assert text is not None
    assert text.startswith(
        "2 of 4 elements (50.0%) are not equal to the reference\n  first  [2]: reference 2"
    )


@pytest.mark.parametrize(
    ("ref", "cand", "message"),
    [
        (torch.ones(2), torch.ones(3), r"ref has the shape \[2\] and cand \[3\]"),
        (torch.ones(0), torch.ones(0), "there is nothing to compare"),
        (torch.ones(2), torch.arange(2), "ref is float32 and cand int64"),
        (torch.ones(2), torch.ones(2, device="meta"), "cand is on the meta device and holds no values"),
        (torch.ones(2).to_sparse(), torch.ones(2), "ref is not dense"),
        (torch.ones(2, 3), RAGGED, "cand is not dense"),
    ],
    ids=["shape", "empty", "kind", "meta", "sparse", "nested"],
)
def test_what_can_not_be_compared_is_refused(ref: Tensor, cand: Tensor, message: str) -> None:
    with pytest.raises(ComparisonError, match=message):
        difference(ref, cand)


def test_less_than_rounding_can_not_be_asked_for() -> None:
    with pytest.raises(UsageError, match=r"max_ulp is 0\.25; rounding alone makes 0\.5"):
        difference(torch.ones(1), torch.ones(1), max_ulp=0.25)


@pytest.mark.parametrize("max_ulp", ["1", math.inf, True, None], ids=repr)
def test_a_limit_that_is_no_finite_number_is_refused(max_ulp: Any) -> None:
    with pytest.raises(UsageError, match=r"max_ulp is .*; it must be a finite number"):
        difference(torch.ones(1), torch.ones(1), max_ulp=max_ulp)


def test_a_limit_that_is_no_number_at_all_is_refused() -> None:
    with pytest.raises(UsageError, match="max_ulp is nan"):
        difference(torch.ones(1), torch.ones(1), max_ulp=math.nan)
