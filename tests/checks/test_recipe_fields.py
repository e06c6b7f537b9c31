"""Every field of a recipe moves the band: of a single operator, and of several, where it is measured."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.checks.build import check
from validator.checks.findings import Outcome, Verdict
from validator.emulate import Emulation, emulate_module
from validator.numerics.recipes import FUSED, Recipe

WIDTH = 64


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Projection(nn.Module):
    """One product: its band is analytic."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(seeded(WIDTH, 4 * WIDTH, seed=1) / (4 * WIDTH) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight)


class Chained(Projection):
    """Two products: the band of the second is measured."""

    def forward(self, x: Tensor) -> Tensor:
        y = functional.linear(x, self.weight) * 1.3
        return functional.linear(y, self.weight.T) * 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A recipe with an emulation of what it allows, in a dtype in which it shows."""

    recipe: Recipe
    emulation: Emulation
    dtype: torch.dtype = torch.float32


CASES = {
    "accumulate in bfloat16": Case(
        recipe=Recipe(name="r", inner="storage", accumulate="bfloat16"),
        emulation=Emulation(accumulate="bfloat16"),
        dtype=torch.bfloat16,
    ),
    "accumulate in float16": Case(
        recipe=Recipe(name="r", accumulate="float16"), emulation=Emulation(accumulate="float16")
    ),
    "accumulate in blocks": Case(
        recipe=Recipe(name="r", accumulate="bfloat16", block=16),
        emulation=Emulation(accumulate="bfloat16", order="blocked", block=16),  # type: ignore[arg-type]
    ),
    "accumulator_bits": Case(
        recipe=Recipe(name="r", accumulator_bits=13),
        emulation=Emulation(accumulate="float32", accumulator_bits=13),
    ),
    "partials": Case(
        recipe=Recipe(name="r", inner="storage", split_k=8, partials="bfloat16"),
        emulation=Emulation(split_k=8, partials="bfloat16"),
        dtype=torch.bfloat16,
    ),
    "bfloat16 factors": Case(
        recipe=Recipe(name="r", factors="bfloat16"), emulation=Emulation(factors="bfloat16")
    ),
    "tf32": Case(recipe=Recipe(name="r", factors="tf32"), emulation=Emulation(factors="tf32")),
    "fp8": Case(
        recipe=Recipe(name="r", inner="storage", fp8=True),
        emulation=Emulation(fp8=True),
        dtype=torch.bfloat16,
    ),
}


def outcome(kind: type[nn.Module], case: Case, recipe: Recipe) -> Outcome:
    candidate = kind().to(case.dtype)
    emulate_module(candidate, case.emulation)
    return check(kind(), candidate, {"x": seeded(4, 32, 4 * WIDTH).to(case.dtype)}, recipe=recipe)


@pytest.mark.parametrize("kind", [Projection, Chained])
@pytest.mark.parametrize("name", CASES)
def test_what_a_field_allows_is_explained_where_it_is_declared_and_only_there(
    name: str, kind: type[nn.Module]
) -> None:
    case = CASES[name]
    assert outcome(kind, case, case.recipe).verdict is Verdict.ALIGNED
    assert outcome(kind, case, FUSED).verdict is not Verdict.ALIGNED


@pytest.mark.parametrize("kind", [Projection, Chained])
def test_flushed_subnormals_are_explained_where_they_are_declared(kind: type[nn.Module]) -> None:
    candidate = kind()
    emulate_module(candidate, Emulation(flush_subnormals=True))
    x = seeded(4, 32, 4 * WIDTH) * 2.0**-128
    declared = Recipe(name="r", flush_subnormals=True)
    assert check(kind(), candidate, {"x": x}, recipe=declared).verdict is Verdict.ALIGNED
    (finding,) = check(kind(), candidate, {"x": x}, recipe=FUSED).findings
    assert (finding.verdict, finding.recipe) == (Verdict.UNDECLARED_PRECISION, "flush-subnormals")


def test_a_declared_block_is_held_to() -> None:
    """Sums of 256 terms one by one have four times the noise of sums of 16 blocks of 16."""
    unknown = Recipe(name="r", accumulate="bfloat16")
    case = Case(recipe=unknown, emulation=Emulation(accumulate="bfloat16"))
    assert outcome(Projection, case, unknown).verdict is Verdict.ALIGNED
    assert outcome(Projection, case, replace(unknown, block=16)).verdict is not Verdict.ALIGNED
