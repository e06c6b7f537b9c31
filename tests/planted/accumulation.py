"""What must be said of the faults of how a matrix product is summed."""

from tests.planted.expectation import MLP, Expectation, GuiltyEdge
from tests.stimuli import Stimulus
from validator.checks.findings import Check, Verdict

__all__ = ["FAULTS"]

FAULTS = (
    *(
        Expectation(
            fault=fault,
            guilty=(GuiltyEdge(module=f"{MLP}.down_proj"),),
            checks=(Check.FUNCTION,),
            verdict=Verdict.UNDECLARED_PRECISION,
            dtypes=dtypes,
            stimulus=Stimulus.LONG_SUMS,
        )
        for fault, dtypes in (
            ("gemm-bf16-blocks", ("bfloat16",)),
            ("gemm-13-bits", ("bfloat16", "float16")),
            ("gemm-fp16", ("float16",)),
            ("gemm-tf32", ("float32",)),
        )
    ),
)
