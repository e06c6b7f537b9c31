"""What must be said of the faults of attention."""

from tests.planted.expectation import DENSE, SCORES, Expectation
from tests.stimuli import Stimulus
from validator.checks.findings import Check

__all__ = ["FAULTS"]

FAULTS = (
    Expectation(
        fault="attn-scale:factor=1.01",
        guilty=SCORES,
        checks=(Check.WIRING,),
        families=DENSE,
    ),
    Expectation(
        fault="attn-no-softcap",
        guilty=SCORES,
        checks=(Check.WIRING,),
        families=("gemma2",),
    ),
    Expectation(
        fault="attn-no-sinks",
        guilty=SCORES,
        checks=(Check.WIRING,),
        families=("gpt-oss",),
    ),
    Expectation(
        fault="attn-base2-merge",
        guilty=SCORES,
        checks=(Check.WIRING,),
        families=DENSE,
    ),
    Expectation(
        # Scores above 65504 are infinite in float16, and the softmax of their row is NaN.
        fault="attn-half-scores",
        guilty=SCORES,
        checks=(Check.WIRING,),
        families=("qwen2",),
        dtypes=("float16",),
        stimulus=Stimulus.HUGE_BIASES,
    ),
    *(
        Expectation(
            fault=fault,
            guilty=SCORES,
            checks=(Check.WIRING,),
            families=("gemma2", "gpt-oss"),
            layers=(2, 0),  # the sliding ones
        )
        for fault in ("attn-window-short", "attn-window-long", "attn-no-window")
    ),
)
