"""What must be said of the faults of the head."""

from tests.planted.expectation import Expectation, GuiltyEdge
from validator.checks.findings import Check, Verdict

__all__ = ["FAULTS"]

FAULTS = (
    Expectation(
        fault="head-is-embedding",
        guilty=(GuiltyEdge(module="lm_head"),),
        checks=(Check.FUNCTION,),
    ),
    Expectation(
        fault="head-random",
        guilty=(GuiltyEdge(module="lm_head"),),
        checks=(Check.PARAMETER,),
    ),
    Expectation(
        fault="head-bf16",
        guilty=(GuiltyEdge(module="lm_head"),),
        checks=(Check.FUNCTION,),
        verdict=Verdict.UNDECLARED_PRECISION,
        dtypes=("float32",),
    ),
    Expectation(
        fault="logits-multiplied",
        guilty=(GuiltyEdge(module=""),),
        checks=(Check.WIRING,),
        signature="factor",
        families=("granite",),
    ),
)
