"""What one rank of a row-parallel layer gives to a sum over ranks, as a piece of code: one product.

Shape legend: * = the term's shape, its last dim the channels; K = terms of the product on this rank.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from validator.align.traces import LogicalTensor
from validator.checks.arithmetic import Step
from validator.checks.execution_order import ExecutionOrder
from validator.checks.module_code import Code, CodeEdge, Key, Spread
from validator.checks.products import multiply
from validator.checks.roundings import Constant
from validator.numerics.bands import Noise, product_noise
from validator.numerics.formats import Format, format_of
from validator.numerics.recipes import FUSED, Recipe
from validator.numerics.rounding import round_nearest

__all__ = ["term_code"]


def term_code(
    code: Code, edge: CodeEdge, *, rank: int, given: Tensor, weight: Tensor, bias: Tensor, cand: Tensor
) -> Code:
    """Return the code behind a rank's term, with one edge.

    Args:
        code: of the layer's call.
        edge: the layer's output.
        rank: whose term it is.
        given: `[*, K]` the rank's slice of the input, in the candidate's dtype.
        weight: `[K, channels]` float64, the rank's slice of the weight.
        bias: `[channels]` float64 or a zero.
        cand: `[*]` what the rank gave.
    """
    key: Key = (None, f"partial/{rank}")
    made = _Product(given=given, weight=weight, bias=bias, key=key, fmt=format_of(cand.dtype))
    noise = made.noise(FUSED)
    return replace(
        code,
        call=replace(code.call, partials=(), outputs={}),
        edges=(
            CodeEdge(
                key=key,
                into=None,
                path=edge.path,
                order=ExecutionOrder.terms(edge.order),
                exact=made.exact + bias,
                depth=1,
                sigma=torch.as_tensor(noise.sigma),
                bound=torch.as_tensor(noise.bound),
                cand=LogicalTensor(data=cand, parts=(), dims=edge.cand.dims),
            ),
        ),
        choices=(),
        constants=(),
        steps=(Step(position=0, op="mm", given=(given.dtype, given.dtype), made=cand.dtype),),
        replays=made,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    """Replays of one product, and of the bias that may be added to it."""

    given: Tensor
    weight: Tensor
    bias: Tensor
    key: Key
    fmt: Format

    @property
    def exact(self) -> Tensor:
        product: Tensor = self.given.to(torch.float64) @ self.weight
        return product

    def noise(self, recipe: Recipe) -> Noise:
        given = self.given.to(torch.float64)
        return product_noise(given, self.weight, self.exact, recipe, format_of(self.given.dtype))

    def rows(self, recipe: Recipe) -> Mapping[Key, Noise]:
        return {self.key: self.noise(recipe)}

    def control(
        self,
        recipe: Recipe,
        *,
        elsewhere: Recipe | None = None,
        positions: frozenset[int] | None = None,
        altered: tuple[Constant, float] | None = None,
    ) -> Mapping[Key, Tensor]:
        chosen = recipe if positions is None or 0 in positions else elsewhere or recipe
        rows = self.given.to(torch.float64).flatten(0, -2)
        product = multiply(rows, self.weight, chosen, format_of(self.given.dtype))
        term = product.unflatten(0, self.given.shape[:-1]) + self.bias
        return {self.key: round_nearest(term, self.fmt)}

    # One product takes no other path, has no constant, and its rows say all of its noise.

    def spread(self, recipe: Recipe, *, is_refined: bool = False) -> Mapping[Key, Spread]:
        return {}

    def reach(self, recipe: Recipe) -> Mapping[Key, Tensor]:
        return {}

    def sensitivity(self, constant: Constant) -> Mapping[Key, Tensor]:
        return {}

    def altered(self, constant: Constant, factor: float) -> Mapping[Key, Tensor]:
        return {}

    def spoilt(self, module: str, factor: float, recipe: Recipe | None = None) -> Mapping[Key, Tensor]:
        return {}
