"""The software models of narrow sums: what they round, and what they leave alone."""

import torch

from validator.checks.simulation import simulated
from validator.numerics.formats import FORMATS
from validator.numerics.recipes import RECIPES

BF16 = FORMATS["bfloat16"]


def test_every_partial_sum_is_rounded_to_the_format_of_sums() -> None:
    # 256 + 1 is halfway between two values of bfloat16, and to even is 256 again, every time.
    x = torch.tensor([[256.0, *[1.0] * 16]], dtype=torch.float64)
    assert simulated("sum", (x, [1]), {}, RECIPES["bf16-sums"], BF16).tolist() == [256.0]


def test_numbers_of_things_are_summed_exactly() -> None:
    counts = torch.ones(3, 600, dtype=torch.int64)
    assert simulated("sum", (counts, [1]), {}, RECIPES["bf16-sums"], BF16) is None


def test_a_recipe_with_wide_sums_is_not_simulated() -> None:
    assert simulated("sum", (torch.ones(3, dtype=torch.float64),), {}, RECIPES["eager"], BF16) is None
