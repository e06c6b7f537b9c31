"""The port of tiny_dense.py with one fault that no threshold on an error can see.

    validator check examples/tiny_dense_faulty.py --nproc 2

Before the down projection of layer 2, rank 1 multiplies its half of the activations by 1.002, as a kernel
with a stale scale would. That is a quarter to a half of a bfloat16 step: less than rounding moves a logit.
"""

import os

import tiny_dense  # a target may import from its own folder
import torch
from torch import Tensor, nn

LAYER, RANK, FACTOR = 2, 1, 1.002

reference = tiny_dense.reference
inputs = tiny_dense.inputs


def candidate(dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    model = tiny_dense.candidate(dtype)
    if int(os.environ.get("RANK", "0")) == RANK:
        down_proj = model.get_submodule(f"model.layers.{LAYER}.mlp.down_proj")
        healthy = down_proj.forward

        def forward(activations: Tensor) -> Tensor:
            return healthy(activations * FACTOR)

        down_proj.forward = forward
    return model
