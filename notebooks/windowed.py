"""A port with a sliding window, for the notebook about long contexts: a trained Llama, read as a Mistral."""

import json

import torch
from torch import Tensor, nn
from transformers import MistralConfig, MistralForCausalLM

from validator.content import find_model

CHECKPOINT = find_model("tiny-dense")  # the modules and weights of both are the same
WINDOW = 16


def build(dtype: torch.dtype) -> nn.Module:
    config = json.loads((CHECKPOINT / "config.json").read_text())
    del config["model_type"], config["architectures"]
    config = MistralConfig(**config, sliding_window=WINDOW)
    return MistralForCausalLM.from_pretrained(CHECKPOINT, config=config, dtype=dtype)


def reference() -> nn.Module:
    return build(torch.float32)


def candidate(dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    return build(dtype)


def inputs() -> dict[str, Tensor]:
    text = b"def window(values, size):\n    return [values[i : i + size] for i in range(len(values))]\n"
    return {"input_ids": torch.tensor([list(text)])}
