"""Faults of weights and of the kernels that multiply by them."""

from typing import Any

from torch import Tensor
from torch.nn.functional import linear

from validator.errors import UsageError
from validator.faults.common import ATTENTION, LAYER, MLP, RANK, factor_parameter
from validator.faults.decoder import Decoder, bias_of, local
from validator.faults.fault import Fault, Parameter
from validator.wrapping import wrap

__all__ = ["FAULTS"]


_ROW = Parameter(name="row", kind=int, default=40, what="the index of a row of the rank's weight")


def _weight_row(decoder: Decoder, *, layer: int, row: int, factor: float) -> None:
    """Scale one row of a weight."""
    weight = local(decoder.layer(layer).mlp.up_proj.weight)
    _demand_row(weight, row)
    weight[row] *= factor


def _kernel_row(decoder: Decoder, *, layer: int, row: int, factor: float) -> None:
    """Compute with one row of a weight scaled."""
    projection = decoder.layer(layer).mlp.up_proj
    _demand_row(local(projection.weight), row)

    def forward(inner: Any, x: Tensor) -> Tensor:
        weight = local(projection.weight).clone()
        weight[row] *= factor
        return linear(x, weight, bias_of(projection))

    wrap(projection, forward)


def _weight_scale(decoder: Decoder, *, layer: int, factor: float) -> None:
    """Scale a weight."""
    local(decoder.layer(layer).mlp.down_proj.weight).mul_(factor)


def _kernel_scale(decoder: Decoder, *, layer: int, factor: float) -> None:
    """Scale what a projection computes."""
    projection = decoder.layer(layer).self_attn.v_proj

    def forward(inner: Any, x: Tensor) -> Tensor:
        # In float32 before the one rounding: in bf16 a product with 1.001 rounds back to where it was.
        bias = bias_of(projection)
        y = linear(x.float(), local(projection.weight).float(), None if bias is None else bias.float())
        return (y * factor).to(x.dtype)

    wrap(projection, forward)


def _layer_twice(decoder: Decoder, *, layer: int) -> None:
    """Load a layer with the weights of the one before."""
    if layer == 0:
        raise UsageError(
            "layer=0 has no layer before it whose weights could be loaded twice: give layer=1 or more"
        )
    before = decoder.layer(layer - 1).state_dict()
    if before.keys() != decoder.layer(layer).state_dict().keys():
        raise UsageError(f"layers[{layer}] has other weights than layers[{layer - 1}]: give another layer")
    decoder.layer(layer).load_state_dict(before)


def _demand_row(weight: Tensor, row: int) -> None:
    if row >= len(weight):
        raise UsageError(f"row={row} is not in the weight: it has {len(weight)} rows, 0 to {len(weight) - 1}")


FAULTS = (
    Fault(
        name="weight-row",
        what="One row of the up projection's weight was loaded wrongly scaled.",
        module=f"{MLP}.up_proj",
        apply=_weight_row,
        parameters=(LAYER, _ROW, factor_parameter(1.02), RANK),
        needs=("layer.mlp.up_proj.weight",),
    ),
    Fault(
        name="kernel-row",
        what="The up projection's kernel scales one row; the weight is right.",
        module=f"{MLP}.up_proj",
        apply=_kernel_row,
        parameters=(LAYER, _ROW, factor_parameter(1.02), RANK),
        needs=("layer.mlp.up_proj.weight",),
    ),
    Fault(
        name="weight-scale",
        what="The down projection's weight, or one rank's part of it, was loaded wrongly scaled.",
        module=f"{MLP}.down_proj",
        apply=_weight_scale,
        parameters=(LAYER, factor_parameter(1.01), RANK),
        needs=("layer.mlp.down_proj.weight",),
    ),
    Fault(
        name="kernel-scale",
        what="The value projection's kernel scales its result, by less than an ulp of bfloat16.",
        module=f"{ATTENTION}.v_proj",
        apply=_kernel_scale,
        parameters=(LAYER, factor_parameter(1.001), RANK),
        needs=("layer.self_attn.v_proj.weight",),
    ),
    Fault(
        name="layer-twice",
        what="A layer was loaded with the weights of the one before it.",
        module="*layers.{layer}.*",
        apply=_layer_twice,
        parameters=(LAYER,),
        needs=("layer",),
        zoo=("pp-layer-offset",),
    ),
)
