"""A healthy port of a mixture of experts: a small trained Qwen3-MoE in bfloat16, tensor-parallel.

    validator check examples/tiny_moe.py --nproc 2

Rounding may send a token that is torn between two experts to the other one. Such a choice is judged by its
margin, and the experts are then judged on the tokens that the port gave them.
"""

import os

import tiny_dense  # a target may import from its own folder
import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig

from validator.content import find_model

CHECKPOINT = find_model("tiny-moe")  # eight experts, two a token; reads bytes as tiny-dense does

inputs = tiny_dense.inputs


def reference() -> nn.Module:
    return AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)


def candidate(dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    sharding = DistributedConfig(tp_plan="auto", tp_size=world_size) if world_size > 1 else None
    return AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=dtype, distributed_config=sharding)
