"""Sums of products round where the model of a kernel says: cases worked out by hand.

In bfloat16 neighbours are 2 apart from 256 on, so that 256 + 1 is 256 (a tie, to even).
"""

import pytest
import torch
from torch import Tensor

from validator.errors import ComparisonError
from validator.numerics.contractions import Accumulation, Order, fp8_product, rounded_sum, sum_products
from validator.numerics.formats import FORMATS

BF16 = FORMATS["bfloat16"]


def row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def summed(terms: Tensor, how: Accumulation) -> float:
    return sum_products(terms, torch.ones_like(terms).T, how).item()


@pytest.mark.parametrize(
    ("order", "block", "expected"),
    [
        (Order.SEQUENTIAL, None, 256.0),  # each 1 is lost
        (Order.REVERSED, None, 260.0),  # 3 + 256 = 259, a tie, to even
        (Order.PAIRWISE, None, 258.0),  # (256 + 1) + (1 + 1) = 256 + 2
        (Order.BLOCKED, 2, 258.0),
        (Order.BLOCKED, 3, 256.0),  # (256 + 1 + 1) + 1
    ],
)
def test_the_order_decides_what_rounding_loses(order: Order, block: int | None, expected: float) -> None:
    assert summed(row(256, 1, 1, 1), Accumulation(fmt=BF16, order=order, block=block)) == expected


@pytest.mark.parametrize("order", [Order.SEQUENTIAL, Order.REVERSED, Order.PAIRWISE])
@pytest.mark.parametrize("count", [0, 1, 5, 7, 8])
def test_every_order_adds_every_term_once(order: Order, count: int) -> None:
    terms = torch.arange(1.0, count + 1, dtype=torch.float64)[None]
    assert summed(terms, Accumulation(order=order)) == count * (count + 1) / 2


def test_batches_and_shapes_are_those_of_a_matrix_product() -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randint(-8, 8, (2, 3, 5), generator=generator).double()
    b = torch.randint(-8, 8, (2, 5, 4), generator=generator).double()
    for order, block in ((Order.SEQUENTIAL, None), (Order.PAIRWISE, None), (Order.BLOCKED, 2)):
        assert torch.equal(sum_products(a, b, Accumulation(order=order, block=block)), a @ b)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_an_accumulator_of_13_bits_cuts_off_the_rest(sign: float) -> None:
    how = Accumulation(bits=13)
    assert summed(sign * row(1, 2**-13), how) == sign * (1 + 2**-13)
    assert summed(sign * row(1, 1.75 * 2**-13), how) == sign * (1 + 2**-13)
    assert summed(sign * row(1, *[0.75 * 2**-13] * 8), how) == sign


def test_sums_of_blocks_are_not_cut() -> None:
    how = Accumulation(order=Order.BLOCKED, block=1, bits=13)
    assert summed(row(1, 2**-20), how) == 1 + 2**-20


def test_partial_sums_and_their_running_sum_are_rounded_and_one_alone_is_not() -> None:
    parts = [row(257), row(3), row(1)]
    assert rounded_sum(parts, BF16).item() == 260.0  # 256 + 3 = 259 -> 260; 260 + 1 = 261 -> 260
    assert rounded_sum(parts[:1], BF16).item() == 257.0


def test_fp8_rounds_both_factors_at_their_blocks_scale() -> None:
    x, w = row(448, 1.0625), row(448, 448).T
    # The scales are 1. Neighbours of e4m3 are 0.125 apart at 1, and 1.0625 is a tie, to even: 1.
    assert fp8_product(x, w, Accumulation()).item() == 448.0 * 448 + 448
    assert (
        fp8_product(x, w, Accumulation(bits=8)).item() == 448.0 * 448
    )  # 200,704 + 448, neighbours 512 apart


def test_fp8_scales_each_128_terms_by_themselves() -> None:
    x = torch.zeros(1, 256, dtype=torch.float64)
    x[0, 0], x[0, 128], x[0, 129] = 448.0, 448 * 2.0**-12, 2.0**-12
    w = torch.full((256, 130), 448.0, dtype=torch.float64)
    w[128:, 128:] *= 2.0**-3
    expected = 448.0 * 448 + 449 * 2.0**-12 * 448
    product = fp8_product(x, w, Accumulation())
    assert product[0, 0].item() == torch.tensor(expected, dtype=torch.float32).item()
    assert (
        product[0, 129].item() == torch.tensor(448.0 * 448 + 449 * 2.0**-15 * 448, dtype=torch.float32).item()
    )


def test_a_block_of_zeros_gives_zeros() -> None:
    zeros = torch.zeros(3, 5, dtype=torch.float64)
    assert torch.equal(
        fp8_product(zeros, torch.zeros(5, 2, dtype=torch.float64), Accumulation()), zeros[:, :2]
    )


def test_other_operands_than_float64_are_refused() -> None:
    with pytest.raises(ComparisonError, match=r"b is torch\.float32: give float64"):
        sum_products(row(1), row(1).float(), Accumulation())
