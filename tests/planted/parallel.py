"""What must be said of the faults of tensor-parallel ports."""

from tests.planted.expectation import ATTENTION, DENSE, MLP, NORM, Expectation, GuiltyEdge
from tests.stimuli import Stimulus
from validator.checks.findings import Check

__all__ = ["FAULTS"]

FAULTS = (
    Expectation(
        fault="tp-bias-every-rank",
        guilty=(GuiltyEdge(module=f"{ATTENTION}.o_proj"),),
        checks=(Check.FUNCTION,),
        signature="bias_per_rank",
        families=("llama",),
        biases=True,
        tp=2,
    ),
    Expectation(
        fault="tp-heads-in-turn",
        guilty=tuple(GuiltyEdge(module=f"{ATTENTION}.{name}_proj") for name in "qkv"),
        checks=(Check.PARAMETER,),
        signature="permutation",
        families=DENSE,
        tp=2,
    ),
    Expectation(
        fault="tp-reduced-twice",
        guilty=(GuiltyEdge(module=f"{MLP}.down_proj"),),
        checks=(Check.FUNCTION,),
        signature="double_reduction",
        families=DENSE,
        tp=2,
    ),
    Expectation(
        fault="tp-not-reduced",
        guilty=(GuiltyEdge(module=f"{MLP}.down_proj"),),
        checks=(Check.FUNCTION,),
        signature="missing_reduction",
        families=DENSE,
        tp=2,
    ),
    Expectation(
        fault="norm-eps:eps=1e-5,rank=1",
        guilty=(GuiltyEdge(module=NORM),),
        checks=(Check.FUNCTION,),
        stimulus=Stimulus.SMALL,
        tp=2,
    ),
    Expectation(
        # Rounding to bf16 hides it, but what the ranks hold is no longer the same.
        fault="norm-eps:eps=1e-3,rank=1",
        guilty=(GuiltyEdge(module=NORM),),
        checks=(Check.REPLICA, Check.FUNCTION),
        tp=2,
    ),
    Expectation(
        fault="weight-scale:factor=1.01,rank=1",
        guilty=(GuiltyEdge(module=f"{MLP}.down_proj"),),
        checks=(Check.PARAMETER,),
        signature="factor",
        families=DENSE,
        tp=2,
    ),
    Expectation(
        fault="tp-partial-scale:factor=1.01,rank=1",
        guilty=(GuiltyEdge(module=f"{MLP}.down_proj"),),
        checks=(Check.PARTIAL,),
        signature="factor",
        families=DENSE,
        tp=2,
    ),
    Expectation(
        fault="tp-shared-overcount",
        guilty=(GuiltyEdge(module=MLP),),
        checks=(Check.WIRING,),
        families=("deepseek-v3", "qwen2-moe"),
    ),
    Expectation(
        fault="tp-k-norm-overcount",
        guilty=(GuiltyEdge(module=f"{ATTENTION}.k_norm"),),
        checks=(Check.FUNCTION,),
        signature="factor",
        families=("olmo2",),
    ),
    Expectation(
        fault="tp-k-norm-slice",
        guilty=(GuiltyEdge(module=f"{ATTENTION}.k_norm"),),
        checks=(Check.PARAMETER,),
        families=("olmo2",),
    ),
    Expectation(
        fault="tp-qkv-by-head",
        guilty=tuple(GuiltyEdge(module=f"{ATTENTION}.{name}_proj") for name in "qkv"),
        checks=(Check.PARAMETER,),
        families=("llama", "qwen2"),
    ),
)
