"""Faults of norms."""

from typing import Any

import torch
from torch import Tensor

from validator.faults.common import HALF, LAYER, NORM, RANK
from validator.faults.decoder import Decoder
from validator.faults.fault import Fault, Parameter
from validator.wrapping import wrap

__all__ = ["FAULTS", "square_in_storage"]


def _norm_eps(decoder: Decoder, *, layer: int, eps: float) -> None:
    """Give a norm another epsilon."""
    decoder.layer(layer).input_layernorm.variance_epsilon = eps


def _norm_eps_after_root(decoder: Decoder, *, layer: int) -> None:
    """Add a norm's epsilon to the root."""
    norm = decoder.layer(layer).input_layernorm

    def forward(inner: Any, x: Tensor) -> Tensor:
        root = x.float().square().mean(-1, keepdim=True).sqrt()
        normed: Tensor = norm.weight * (x.float() / (root + norm.variance_epsilon)).to(x.dtype)
        return normed

    wrap(norm, forward)


def _norm_eps_after_max(decoder: Decoder, *, layer: int) -> None:
    """Add a norm's epsilon to the mean square of what was divided by its largest value."""
    norm = decoder.layer(layer).input_layernorm

    def forward(inner: Any, x: Tensor) -> Tensor:
        x32 = x.float()
        scaled = x32 / x32.abs().amax(-1, keepdim=True)
        root = (scaled.square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt()
        normed: Tensor = norm.weight * (scaled / root).to(x.dtype)
        return normed

    wrap(norm, forward)


def _norm_half_squares(decoder: Decoder, *, layer: int) -> None:
    square_in_storage(decoder.layer(layer).input_layernorm)


def square_in_storage(norm: Any) -> None:
    """Let an RMSNorm square in the activations' dtype."""

    def forward(inner: Any, x: Tensor) -> Tensor:
        variance = x.square().mean(-1, keepdim=True)
        normed: Tensor = norm.weight * (x * torch.rsqrt(variance + norm.variance_epsilon))
        return normed

    wrap(norm, forward)


def _norm_early_cast(decoder: Decoder, *, layer: int) -> None:
    """Round before the multiplication by 1 + weight, and round that sum too."""
    norm = decoder.layer(layer).input_layernorm

    def forward(inner: Any, x: Tensor) -> Tensor:
        x32 = x.float()
        root = (x32.square().mean(-1, keepdim=True) + norm.eps).sqrt()
        normed: Tensor = (x32 / root).to(x.dtype) * (1 + norm.weight)
        return normed

    wrap(norm, forward)


def _norm_plus_two(decoder: Decoder, *, layer: int) -> None:
    """Add one to a weight that the norm adds one to."""
    decoder.layer(layer).input_layernorm.weight += 1


# Norms of Gemma, which multiply by 1 + weight, call their epsilon otherwise than those of Llama.
_GEMMA_NORM = ("layer.input_layernorm.eps", "layer.input_layernorm.weight")
_LLAMA_NORM = ("layer.input_layernorm.variance_epsilon", "layer.input_layernorm.weight")

FAULTS = (
    Fault(
        name="norm-eps",
        what="A norm has another epsilon than the reference's.",
        module=NORM,
        apply=_norm_eps,
        parameters=(
            LAYER,
            Parameter(name="eps", kind=float, default=1e-3, what="the epsilon"),
            RANK,
        ),
        needs=("layer.input_layernorm.variance_epsilon",),
    ),
    Fault(
        name="norm-eps-after-root",
        what="A norm adds its epsilon to the root of the mean square, not under it.",
        module=NORM,
        apply=_norm_eps_after_root,
        parameters=(LAYER, RANK),
        needs=_LLAMA_NORM,
    ),
    Fault(
        name="norm-eps-after-max",
        what="A norm divides by the largest value first, and adds its epsilon after that.",
        module=NORM,
        apply=_norm_eps_after_max,
        parameters=(LAYER, RANK),
        needs=_LLAMA_NORM,
        zoo=("norm-eps-after-rescale",),
    ),
    Fault(
        name="norm-half-squares",
        what="A norm squares in the activations' dtype: in float16, values above 255 overflow.",
        module=NORM,
        apply=_norm_half_squares,
        parameters=(LAYER, RANK),
        needs=_LLAMA_NORM,
        dtypes=HALF,
        zoo=("norm-fp16-overflow-vit",),
    ),
    Fault(
        name="norm-early-cast",
        what="A norm rounds before it multiplies by 1 + weight, and rounds that sum.",
        module=NORM,
        apply=_norm_early_cast,
        parameters=(LAYER, RANK),
        needs=_GEMMA_NORM,
        dtypes=HALF,
        zoo=("norm-missing-plus1-cast",),
    ),
    Fault(
        name="norm-plus-two",
        what="A norm that adds 1 to its weight was loaded with a weight that has it already.",
        module=NORM,
        apply=_norm_plus_two,
        parameters=(LAYER, RANK),
        needs=_GEMMA_NORM,
        zoo=("norm-gemma-double-plus1",),
    ),
)
