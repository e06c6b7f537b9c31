"""The port of windowed.py with a window that is one key too long."""

import torch
import windowed  # a target may import from its own folder
from torch import nn

reference = windowed.reference
inputs = windowed.inputs


def candidate(dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    model = windowed.candidate(dtype)
    model.config.sliding_window += 1
    return model
