"""What must be said of the faults of loaders that dequantise."""

from tests.planted.expectation import ATTENTION, MLP, Expectation, GuiltyEdge
from validator.checks.findings import Check

__all__ = ["FAULTS"]

FAULTS = (
    *(
        Expectation(
            fault=fault,
            guilty=(GuiltyEdge(module=module),),
            checks=(Check.PARAMETER,),
            families=("llama", "qwen3", "qwen2"),
            dtypes=("bfloat16", "float16", "float32"),
        )
        for fault, module in (
            ("q-group-order", f"{MLP}.down_proj"),
            ("q-nibble-order", f"{MLP}.up_proj"),
            ("q-scale-transposed", f"{MLP}.gate_proj"),
            ("q-saturated", f"{MLP}.down_proj"),
            ("q-block-straddled", f"{ATTENTION}.k_proj"),
        )
    ),
)
