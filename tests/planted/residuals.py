"""What must be said of the faults of the residual stream."""

from tests.planted.expectation import Expectation, GuiltyEdge
from validator.checks.findings import Check

__all__ = ["FAULTS"]

FAULTS = (
    Expectation(
        fault="residual-after-norm",
        guilty=(
            GuiltyEdge(module="model.layers.{layer}", into="model.layers.{layer}.post_attention_layernorm"),
            GuiltyEdge(module="model.layers.{layer}"),
        ),
        checks=(Check.WIRING,),
    ),
)
