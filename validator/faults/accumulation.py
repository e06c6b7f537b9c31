"""Faults of how a matrix product is summed: the down projection keeps fewer bits than promised."""

import torch

from validator.emulate import Emulation, emulate_module
from validator.faults.common import LAYER, MLP, RANK
from validator.faults.decoder import Decoder, local
from validator.faults.fault import Fault

__all__ = ["FAULTS"]

_BLOCK = 32
"""Terms that a kernel sums before it adds them to a bfloat16 accumulator."""


def _gemm_bf16_blocks(decoder: Decoder, *, layer: int) -> None:
    """Add blocks of the sum up in bfloat16."""
    projection = decoder.layer(layer).mlp.down_proj
    blocks = max(local(projection.weight).shape[1] // _BLOCK, 2)
    emulate_module(projection, Emulation(split_k=blocks, partials="bfloat16"))


def _gemm_13_bits(decoder: Decoder, *, layer: int) -> None:
    """Cut the accumulator off after 13 bits."""
    emulation = Emulation(accumulate="float32", accumulator_bits=13)
    emulate_module(decoder.layer(layer).mlp.down_proj, emulation)


def _gemm_fp16(decoder: Decoder, *, layer: int) -> None:
    """Accumulate in float16."""
    emulate_module(decoder.layer(layer).mlp.down_proj, Emulation(accumulate="float16"))


def _gemm_tf32(decoder: Decoder, *, layer: int) -> None:
    """Round the factors to TF32."""
    emulate_module(decoder.layer(layer).mlp.down_proj, Emulation(factors="tf32"))


FAULTS = (
    Fault(
        name="gemm-bf16-blocks",
        what="The down projection adds up blocks of 32 terms in bfloat16.",
        module=f"{MLP}.down_proj",
        apply=_gemm_bf16_blocks,
        parameters=(LAYER, RANK),
        needs=("layer.mlp.down_proj.weight",),
        zoo=("acc-triton-bf16",),
    ),
    Fault(
        name="gemm-13-bits",
        what="The down projection's accumulator keeps 13 bits and cuts the rest off.",
        module=f"{MLP}.down_proj",
        apply=_gemm_13_bits,
        parameters=(LAYER, RANK),
        needs=("layer.mlp.down_proj.weight",),
        zoo=("q-fp8-accum-14bit",),
    ),
    Fault(
        name="gemm-fp16",
        what="The down projection accumulates in float16.",
        module=f"{MLP}.down_proj",
        apply=_gemm_fp16,
        parameters=(LAYER, RANK),
        needs=("layer.mlp.down_proj.weight",),
        zoo=("acc-fp16-gemm",),
    ),
    Fault(
        name="gemm-tf32",
        what="The down projection rounds float32 factors to TF32.",
        module=f"{MLP}.down_proj",
        apply=_gemm_tf32,
        parameters=(LAYER, RANK),
        needs=("layer.mlp.down_proj.weight",),
        dtypes=(torch.float32,),
    ),
)
