"""What must be said of faults that show only in decoding, where the run is judged as one prefill."""

from tests.planted.expectation import DENSE, MLP, SCORES, Expectation, GuiltyEdge
from tests.stimuli import Stimulus
from validator.checks.findings import Check

__all__ = ["FAULTS"]

DECODED = 8
"""So many of the tokens are decoded, one at a time."""

# Layers are handed the positions too.
_POSITIONS = tuple(
    GuiltyEdge(module="model", into=f"model.{name}")
    for name in ("rotary_emb", *(f"layers.{i}" for i in range(4)))
)

FAULTS = (
    Expectation(
        fault="step-kv-stale-block",
        guilty=SCORES,
        checks=(Check.WIRING,),
        families=DENSE,
        stimulus=Stimulus.SECOND_REQUEST,
        decode=DECODED,
    ),
    *(
        Expectation(
            fault=fault,
            guilty=SCORES,
            checks=(Check.WIRING,),
            signature=signature,
            families=DENSE,
            decode=DECODED,
        )
        for fault, signature in (
            ("step-kv-misplaced-block", "keys_of_another"),
            ("step-kv-scale:factor=1.25", "cache_scale"),
            ("step-kv-scale:factor=1.05", None),
            ("step-kv-fnuz", None),
        )
    ),
    # What a sliding layer's cache holds moves on from step to step, and so would the blocks.
    *(
        Expectation(
            fault=fault,
            guilty=SCORES,
            checks=(Check.WIRING,),
            signature="keys_of_another",
            families=("llama", "qwen3"),
            decode=DECODED,
        )
        for fault in ("kv-shared-block:tokens=8", "kv-no-block-table:tokens=4")
    ),
    # A block that is outside of the window anyway is not missed.
    Expectation(
        fault="step-kv-evicted:first=20",
        guilty=SCORES,
        checks=(Check.WIRING,),
        signature="keys_left_out",
        families=("llama", "qwen3"),
        decode=DECODED,
    ),
    *(
        Expectation(
            fault=fault,
            guilty=SCORES,
            checks=(Check.WIRING,),
            families=("gemma2", "gpt-oss"),
            layers=(2, 0),  # the sliding ones
            signature=signature,
            decode=DECODED,
        )
        for fault, signature in (
            ("step-kv-window-rolled", "keys_left_out"),
            ("step-kv-window-kept", "keys_not_hidden"),
        )
    ),
    *(
        Expectation(
            fault=fault, guilty=_POSITIONS, checks=(Check.EXACT,), families=("llama", "qwen3"), decode=DECODED
        )
        for fault in ("step-positions-stale", "step-positions-restart")
    ),
    Expectation(
        fault="step-nibble-order",
        guilty=(GuiltyEdge(module=f"{MLP}.up_proj"),),
        checks=(Check.FUNCTION,),
        decode=DECODED,
    ),
)
