"""What must be said of the faults of routers."""

from tests.planted.expectation import MLP, Expectation, GuiltyEdge
from tests.stimuli import Stimulus
from validator.checks.findings import Check, Verdict

__all__ = ["FAULTS"]

_GATE = (GuiltyEdge(module=f"{MLP}.gate"),)

FAULTS = (
    Expectation(
        fault="moe-no-renorm",
        guilty=_GATE,
        checks=(Check.FUNCTION,),
        families=("mixtral", "qwen3-moe"),
    ),
    Expectation(
        # Where weights are normalised they are softmax's all the same, and probabilities otherwise.
        fault="moe-raw-logits",
        guilty=_GATE,
        checks=(Check.FUNCTION,),
        families=("qwen2-moe",),
    ),
    Expectation(
        fault="moe-softmax-twice",
        guilty=_GATE,
        checks=(Check.FUNCTION,),
        families=("qwen3-moe", "qwen2-moe"),
    ),
    Expectation(
        fault="moe-unscaled",
        guilty=_GATE,
        checks=(Check.FUNCTION,),
        signature="factor",
        families=("deepseek-v3",),
    ),
    Expectation(
        fault="moe-marker-slot",
        guilty=_GATE,
        checks=(Check.FUNCTION,),
        families=("deepseek-v3", "qwen2-moe"),
    ),
    Expectation(
        # Lost are scores that are less than an ulp of the bias.
        fault="moe-bias-cancelled",
        guilty=_GATE,
        checks=(Check.FUNCTION,),
        families=("deepseek-v3",),
        stimulus=Stimulus.LARGE_CORRECTION,
    ),
    Expectation(
        fault="moe-group-max",
        guilty=_GATE,
        checks=(Check.EXACT,),
        families=("deepseek-v3",),
    ),
    Expectation(
        fault="moe-masked-zero",
        guilty=_GATE,
        checks=(Check.EXACT,),
        families=("deepseek-v3",),
        stimulus=Stimulus.NEGATIVE_CORRECTION,
    ),
    Expectation(
        # The bias is a healthy cast by itself; what it makes of the choice is not.
        fault="moe-bf16-bias",
        guilty=_GATE,
        checks=(Check.PARAMETER, Check.EXACT),
        families=("deepseek-v3",),
        stimulus=Stimulus.CLOSE_CORRECTION,
    ),
    Expectation(
        # The choice differs where experts are nearly as good as each other, and all are.
        fault="moe-bf16-choice",
        guilty=_GATE,
        checks=(Check.EXACT, Check.FUNCTION),
        verdict=Verdict.UNDECLARED_PRECISION,
        families=("qwen3-moe",),
        dtypes=("bfloat16",),
        stimulus=Stimulus.FAINT_ROUTER,
    ),
    Expectation(
        # Larger logits leave, by their own rounding to bfloat16, more room than the softmax takes.
        fault="moe-bf16-router",
        guilty=_GATE,
        checks=(Check.EXACT, Check.FUNCTION),
        verdict=Verdict.UNDECLARED_PRECISION,
        families=("qwen3-moe", "qwen2-moe"),
        dtypes=("bfloat16",),
        stimulus=Stimulus.FAINT_ROUTER,
    ),
)
