"""What must be said of the faults of experts."""

from tests.planted.expectation import MLP, Expectation, GuiltyEdge
from tests.stimuli import Stimulus
from validator.checks.findings import Check, Verdict

__all__ = ["FAULTS"]

_FAMILIES = ("qwen3-moe", "deepseek-v3")
_EXPERTS = (GuiltyEdge(module=f"{MLP}.experts"),)
# An expert that gets other tokens activates others too.
_DISPATCH = (*_EXPERTS, GuiltyEdge(module=f"{MLP}.experts", into=f"{MLP}.experts.act_fn"))
_CHECKS = (Check.FUNCTION, Check.WIRING)

FAULTS = (
    *(
        Expectation(fault=fault, guilty=_EXPERTS, checks=_CHECKS, families=_FAMILIES)
        for fault in ("moe-capacity", "moe-half-missing", "moe-tokens-rolled")
    ),
    Expectation(fault="moe-map-shifted", guilty=_DISPATCH, checks=_CHECKS, families=_FAMILIES),
    Expectation(
        # Where experts run one after the other, the reference's own code rounds each partial sum.
        fault="moe-bf16-combine",
        guilty=_EXPERTS,
        checks=_CHECKS,
        verdict=Verdict.UNDECLARED_PRECISION,
        families=("qwen3-moe",),
        dtypes=("bfloat16",),
        stimulus=Stimulus.MANY_EXPERTS,
        experts="grouped_mm",
    ),
    Expectation(
        fault="moe-unwritten",
        guilty=_EXPERTS,
        checks=_CHECKS,
        families=("deepseek-v3",),
        stimulus=Stimulus.IDLE_EXPERT,
    ),
)
