"""A healthy port: a small trained Llama in bfloat16, tensor-parallel on as many ranks as are launched.

    validator check examples/tiny_dense.py --nproc 2

A target defines three functions. `reference` builds the model that is trusted, `candidate` the port (on every
rank, with torch.distributed ready), and `inputs` the keyword arguments that both are called with.
"""

import os

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig

from validator.content import find_model

CHECKPOINT = find_model("tiny-dense")  # or the path of your own

# The model reads bytes: token ids are the bytes of a text.
TEXT = b'''
def moving_average(values, size):
    """Yield the mean of each window of `size` neighbouring values."""
    window = collections.deque(maxlen=size)
    for value in values:
        window.append(value)
        if len(window) == size:
            yield sum(window) / size
'''


def reference() -> nn.Module:
    return AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)


def candidate(dtype: torch.dtype = torch.bfloat16) -> nn.Module:  # an argument `dtype` is what --dtype sets
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    sharding = DistributedConfig(tp_plan="auto", tp_size=world_size) if world_size > 1 else None
    return AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=dtype, distributed_config=sharding)


def inputs() -> dict[str, Tensor]:
    return {"input_ids": torch.tensor(list(TEXT[:256])).view(2, 128)}
