"""What must be said of the faults of rotary embeddings."""

from tests.planted.expectation import DENSE, ROTARY, SCORES, Expectation
from tests.stimuli import Stimulus
from validator.checks.findings import Check

__all__ = ["FAULTS"]

FAULTS = (
    Expectation(
        fault="rope-sign",
        guilty=SCORES,
        checks=(Check.WIRING,),
        families=DENSE,
    ),
    Expectation(
        fault="rope-theta:theta=50000",
        guilty=ROTARY,
        checks=(Check.PARAMETER,),
        families=DENSE,
    ),
    Expectation(
        fault="rope-interleaved",
        guilty=SCORES,
        checks=(Check.WIRING,),
        families=DENSE,
    ),
    Expectation(
        fault="rope-bf16-frequencies",
        guilty=ROTARY,
        checks=(Check.FUNCTION,),
        families=DENSE,
    ),
    Expectation(
        fault="rope-halves",
        guilty=SCORES,
        checks=(Check.WIRING,),
        families=("deepseek-v3",),
    ),
    Expectation(
        # At small positions the products are nearly exact.
        fault="rope-bf16-tables",
        guilty=ROTARY,
        checks=(Check.FUNCTION,),
        families=DENSE,
        stimulus=Stimulus.FAR,
    ),
    Expectation(
        fault="rope-unscaled",
        guilty=ROTARY,
        checks=(Check.PARAMETER,),
        families=("llama3",),
    ),
    Expectation(
        fault="rope-yarn-field",
        guilty=SCORES,
        checks=(Check.WIRING,),
        families=("deepseek-v3",),
    ),
    Expectation(
        fault="rope-yarn-inflated",
        guilty=ROTARY,
        checks=(Check.FUNCTION,),
        signature="factor",
        families=("deepseek-v3",),
    ),
    Expectation(
        fault="rope-yarn-collapsed",
        guilty=ROTARY,
        checks=(Check.FUNCTION,),
        signature="factor",
        families=("deepseek-v3",),
    ),
)
