"""What must be said of the faults of weights and their kernels."""

from tests.planted.expectation import ATTENTION, DENSE, MLP, Expectation, GuiltyEdge
from validator.checks.findings import Check

__all__ = ["FAULTS"]

FAULTS = (
    Expectation(
        fault="weight-row:row=40,factor=1.02",
        guilty=(GuiltyEdge(module=f"{MLP}.up_proj"),),
        checks=(Check.PARAMETER,),
        signature="factor",
        families=DENSE,
    ),
    Expectation(
        fault="kernel-row:row=40,factor=1.02",
        guilty=(GuiltyEdge(module=f"{MLP}.up_proj"),),
        checks=(Check.FUNCTION,),
        families=DENSE,
    ),
    Expectation(
        fault="layer-twice",
        guilty=(GuiltyEdge(module=f"{ATTENTION}.q_proj"), GuiltyEdge(module="model.layers.{layer}.*")),
        checks=(Check.PARAMETER,),
        signature="other_parameter",
        families=DENSE,
    ),
    Expectation(
        fault="kernel-scale:factor=1.001",
        guilty=(GuiltyEdge(module=f"{ATTENTION}.v_proj"),),
        checks=(Check.FUNCTION,),
        signature="factor",
        families=DENSE,
    ),
)
