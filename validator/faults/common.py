"""Names of modules, and parameters, that several faults share."""

import torch

from validator.faults.fault import Parameter

__all__ = ["ATTENTION", "HALF", "LAYER", "MLP", "NORM", "PROJECTIONS", "RANK", "factor_parameter"]

NORM, ATTENTION, MLP = (f"*layers.{{layer}}.{name}" for name in ("input_layernorm", "self_attn", "mlp"))
"""Globs of parts of the decoder layer that a fault is planted in."""

PROJECTIONS = tuple(f"layer.mlp.{name}_proj.weight" for name in ("gate", "up", "down"))
"""Parts of a gated MLP, as `Fault.needs` names them."""

HALF = (torch.bfloat16, torch.float16)
"""Formats in which storing a value loses what float32 would keep."""

LAYER = Parameter(name="layer", kind=int, default=1, what="the index of a decoder layer")
RANK = Parameter(name="rank", kind=int, default=None, what="the only rank that has the fault")


def factor_parameter(default: float) -> Parameter:
    """Return the parameter of faults that scale something."""
    return Parameter(name="factor", kind=float, default=default, what="what to multiply by")
