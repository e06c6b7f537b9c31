"""What must be said of the faults of MLPs and their activations."""

from tests.planted.expectation import DENSE, MLP, Expectation, GuiltyEdge
from tests.stimuli import Stimulus
from validator.checks.findings import Check

__all__ = ["FAULTS"]

FAULTS = (
    Expectation(
        fault="act-gelu",
        guilty=(GuiltyEdge(module=f"{MLP}.act_fn"),),
        checks=(Check.FUNCTION,),
        families=("llama", "qwen3", "gemma2"),
    ),
    Expectation(
        fault="mlp-swapped",
        guilty=(
            GuiltyEdge(module=MLP, into=f"{MLP}.act_fn"),
            GuiltyEdge(module=MLP, into=f"{MLP}.down_proj"),
        ),
        checks=(Check.WIRING,),
        families=DENSE,
    ),
    Expectation(
        fault="act-no-clamp",
        guilty=(GuiltyEdge(module=f"{MLP}.experts"),),
        checks=(Check.FUNCTION,),
        families=("gpt-oss",),
        stimulus=Stimulus.WIDE_GATES,
    ),
)
