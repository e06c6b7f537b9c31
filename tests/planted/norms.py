"""What must be said of the faults of norms."""

from tests.planted.expectation import NORM, Expectation, GuiltyEdge
from tests.stimuli import Stimulus
from validator.checks.findings import Check, Verdict

__all__ = ["FAULTS"]

FAULTS = (
    Expectation(
        fault="norm-eps-after-root",
        guilty=(GuiltyEdge(module=NORM),),
        checks=(Check.FUNCTION,),
        stimulus=Stimulus.SMALL,
    ),
    Expectation(
        fault="norm-eps-after-max",
        guilty=(GuiltyEdge(module=NORM),),
        checks=(Check.FUNCTION,),
        stimulus=Stimulus.SPIKY,
    ),
    Expectation(
        # Squares of values above 255 are infinite in float16, and the row is erased.
        fault="norm-half-squares",
        guilty=(GuiltyEdge(module=NORM),),
        checks=(Check.FUNCTION,),
        dtypes=("float16",),
        stimulus=Stimulus.SPIKY,
    ),
    Expectation(
        fault="norm-early-cast",
        guilty=(GuiltyEdge(module=NORM),),
        checks=(Check.FUNCTION,),
        verdict=Verdict.UNDECLARED_PRECISION,
        families=("gemma2",),
        dtypes=("bfloat16",),
    ),
    Expectation(
        fault="norm-plus-two",
        guilty=(GuiltyEdge(module=NORM),),
        checks=(Check.PARAMETER,),
        families=("gemma2",),
    ),
)
