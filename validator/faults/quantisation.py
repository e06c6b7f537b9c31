"""Faults of loaders that dequantise: each weight is multiplied by another's scale, or is another's.

The weights of the model stand for correctly dequantised ones, each a code times the scale that its group
would have had. Planting multiplies by the wrong scale over the right one, so that nothing but the fault
changes.

Shape legend: N = rows (outputs), K = columns (inputs).
"""

import torch
from torch import Tensor

from validator.errors import UsageError
from validator.faults.common import ATTENTION, LAYER, MLP
from validator.faults.decoder import Decoder, local
from validator.faults.fault import Fault

__all__ = ["FAULTS", "split_nibbles"]

_GROUP = 16
_NIBBLES = 32
_GRID = 4
_E4M3_MAX, _E4M3FNUZ_MAX = 448.0, 240.0


def _q_group_order(decoder: Decoder, *, layer: int) -> None:
    """Take scales by the place of a column, though columns were grouped in the order of their activations."""
    weight_NK = local(decoder.layer(layer).mlp.down_proj.weight)
    columns = weight_NK.shape[1]
    _demand_multiple("down_proj", columns, _GROUP)
    # The order in which activations put the columns has nothing to do with the weights: any will do.
    order = torch.randperm(columns, generator=torch.Generator().manual_seed(0)).to(weight_NK.device)
    group = torch.empty_like(order)
    group[order] = torch.arange(columns, device=order.device) // _GROUP
    scales = weight_NK[:, order].unflatten(1, (-1, _GROUP)).abs().amax(-1)
    in_sequence = torch.arange(columns, device=order.device) // _GROUP
    weight_NK *= scales[:, in_sequence] / scales[:, group]


def _q_nibble_order(decoder: Decoder, *, layer: int) -> None:
    """Unpack the two halves of a byte as neighbours, though they were packed half a group apart."""
    weight_NK = local(decoder.layer(layer).mlp.up_proj.weight)
    weight_NK.copy_(split_nibbles(weight_NK))


def split_nibbles(weight_NK: Tensor) -> Tensor:
    """Return the weight of an up projection as it is with halves of bytes taken for neighbours."""
    _demand_multiple("up_proj", weight_NK.shape[1], _NIBBLES)
    halves: Tensor = weight_NK.unflatten(1, (-1, 2, _NIBBLES // 2))
    return halves.mT.flatten(1)


def _q_scale_transposed(decoder: Decoder, *, layer: int) -> None:
    """Take block scales from the transpose of their grid."""
    weight_NK = local(decoder.layer(layer).mlp.gate_proj.weight)
    for size in weight_NK.shape:
        _demand_multiple("gate_proj", size, _GRID)
    blocks = weight_NK.unflatten(1, (_GRID, -1)).unflatten(0, (_GRID, -1))
    scales = blocks.abs().amax((1, 3), keepdim=True)
    blocks *= scales.transpose(0, 2) / scales


def _q_saturated(decoder: Decoder, *, layer: int) -> None:
    """Scale to the largest value of float8_e4m3fn, and store in float8_e4m3fnuz, which ends before it."""
    weight_NK = local(decoder.layer(layer).mlp.down_proj.weight)
    largest = float(weight_NK.abs().max()) * _E4M3FNUZ_MAX / _E4M3_MAX
    weight_NK.clamp_(-largest, largest)


def _q_block_straddled(decoder: Decoder, *, layer: int) -> None:
    """Cut the keys' rows out of a fused weight, and count their blocks of scales from the first row on."""
    attention = decoder.layer(layer).self_attn
    q, k, v = (local(getattr(attention, f"{name}_proj").weight) for name in "qkv")
    block = max(3 * len(k) // 16, 1)  # does not divide what lies before the keys
    scales = torch.stack([part.abs().max() for part in torch.cat((q, k, v)).split(block)])
    row = torch.arange(len(k), device=k.device)
    right = scales[(len(q) + row) // block]
    wrong = scales[len(q) // block + row // block]
    k *= (wrong / right)[:, None]


def _demand_multiple(name: str, size: int, of: int) -> None:
    if size % of:
        raise UsageError(f"the weight of {name} has a side of {size}, which is no multiple of {of}")


FAULTS = (
    Fault(
        name="q-group-order",
        what="Columns grouped by activation order are given the scales of groups in sequence.",
        module=f"{MLP}.down_proj",
        apply=_q_group_order,
        parameters=(LAYER,),
        needs=("layer.mlp.down_proj.weight",),
        zoo=("q-gptq-actorder-tp",),
    ),
    Fault(
        name="q-nibble-order",
        what="The halves of a packed byte are unpacked as neighbours, where they belong half a group apart.",
        module=f"{MLP}.up_proj",
        apply=_q_nibble_order,
        parameters=(LAYER,),
        needs=("layer.mlp.up_proj.weight",),
        zoo=("q-nibble-split",),
    ),
    Fault(
        name="q-scale-transposed",
        what="A weight was transposed when it was loaded, and its grid of block scales was not.",
        module=f"{MLP}.gate_proj",
        apply=_q_scale_transposed,
        parameters=(LAYER,),
        needs=("layer.mlp.gate_proj.weight",),
        zoo=("q-scale-transposed",),
    ),
    Fault(
        name="q-saturated",
        what="A weight scaled for FP8 values up to 448 is stored in a format that ends at 240.",
        module=f"{MLP}.down_proj",
        apply=_q_saturated,
        parameters=(LAYER,),
        needs=("layer.mlp.down_proj.weight",),
        zoo=("q-fp8-max-448-240",),
    ),
    Fault(
        name="q-block-straddled",
        what="Block scales of a fused weight are counted anew where its keys begin, inside of a block.",
        module=f"{ATTENTION}.k_proj",
        apply=_q_block_straddled,
        parameters=(LAYER,),
        needs=tuple(f"layer.self_attn.{name}_proj.weight" for name in "qkv"),
        zoo=("q-mimo-qkv-block",),
    ),
)
