"""The port under test: how to build both sides, and what to feed them.

    validator check port.py

As it stands it tests a small trained model that ships with validator, in bfloat16 against float32. Put your
model into `reference` and your port into `candidate`. Loading this file runs it.
"""

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from validator.content import find_model

CHECKPOINT = find_model("tiny-dense")  # the path of your own: "checkpoints/my-model"


def reference() -> nn.Module:
    """Build the model that is trusted: in one process, in the format that it is stored in or a wider one."""
    return AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)


def candidate(dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    """Build the port. It is called on every rank, with torch.distributed ready where there are several.

    The argument `dtype` is what the option `--dtype` sets; an argument `device` would take `--device`.
    """
    return AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=dtype)


def inputs() -> dict[str, Tensor]:
    """Make the keyword arguments that both models are called with, the same on every rank.

    Feed what you care about: a fault that these tokens don't reach can't show. This model reads bytes.
    """
    text = b"def mean(values):\n    return sum(values) / len(values)\n\n\n"
    return {"input_ids": torch.tensor([list(text)])}


# Where they are needed (validator's README: Check your own port, Names, Layouts):
# def run(model, inputs): ...                          in place of model(**inputs): generation, several steps
# recipe = "tf32"                                      what the device may round, where it is more than usual
# names = {"decoder.blocks.*": "model.layers.*"}       which module is which
# layout = {"*.qkv_proj": "b s (q=32|k=8|v=8)[tp]"}    how ranks hold a tensor
