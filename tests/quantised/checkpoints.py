"""Small checkpoints in quantised formats, and ports that multiply with their codes, written anew here.

Shape legend: N = rows, K = columns, G = groups of columns.
"""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn

__all__ = ["FORMATS", "CodedLinear", "inputs", "port", "write"]

FORMATS = ("int4", "int4-asymmetric", "int8", "fp8")
GROUP, BLOCK = 32, 32
LAYERS = 2
LEFT_DENSE = "down_proj"  # so that only some layers are quantised


SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}


def inputs() -> dict[str, Tensor]:
    return {"input_ids": torch.arange(24).view(1, 24) * 5 % 64}


def write(folder: Path, fmt: str, **changes: int) -> Path:
    """Write a random bfloat16 model whose linear layers, but for `LEFT_DENSE` and the head, are quantised.

    Args:
        folder: where.
        fmt: one of `FORMATS`, or `"packed-int8"`.
        **changes: of `SIZES`.
    """
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**SIZES, **changes})
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        owner, _, leaf = name.rpartition(".")
        if _is_quantised(owner, model.get_submodule(owner)):
            tensors |= {f"{owner}.{part}": x.contiguous() for part, x in encode(tensor.float(), fmt).items()}
        else:
            tensors[f"{owner}.{leaf}"] = tensor.clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    described = json.loads((folder / "config.json").read_text())
    described["quantization_config"] = _described(fmt)
    (folder / "config.json").write_text(json.dumps(described))
    return folder


def encode(weight_NK: Tensor, fmt: str) -> dict[str, Tensor]:
    """Quantise a weight: tensors by the names that the format has for them."""
    rows, columns = weight_NK.shape
    if fmt == "fp8":
        padded = nn.functional.pad(weight_NK, (0, -columns % BLOCK, 0, -rows % BLOCK))
        scale = padded.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK)).abs().amax((1, 3)) / 448
        codes = (weight_NK / _of_blocks(scale, rows, columns)).to(torch.float8_e4m3fn)
        return {"weight": codes, "weight_scale_inv": scale}
    if fmt == "int8":
        scale = (weight_NK.abs().amax(1, keepdim=True) / 127).to(torch.bfloat16)
        codes = (weight_NK / scale.float()).round().clamp(-128, 127).to(torch.int8)
        return {"weight": codes, "weight_scale": scale}
    groups = weight_NK.unflatten(1, (-1, GROUP))
    low, high = groups.amin(-1), groups.amax(-1)
    shape = torch.tensor([rows, columns])
    if fmt in ("int4", "packed-int8"):
        bits = 4 if fmt == "int4" else 8
        half = 2 ** (bits - 1)
        scale = (groups.abs().amax(-1) / (half - 1)).to(torch.bfloat16)
        codes = (groups / scale.float()[..., None]).round().clamp(-half, half - 1).to(torch.int32) + half
        return {
            "weight_packed": _packed(codes.reshape(rows, columns), bits),
            "weight_scale": scale,
            "weight_shape": shape,
        }
    scale = ((high - low) / 15).to(torch.bfloat16)
    zero = (-8 - low / scale.float()).round().clamp(-8, 7)
    codes = (groups / scale.float()[..., None] + zero[..., None]).round().clamp(-8, 7).to(torch.int32) + 8
    return {
        "weight_packed": _packed(codes.reshape(rows, columns)),
        "weight_scale": scale,
        "weight_zero_point": _packed(zero.to(torch.int32).T + 8).T,
        "weight_shape": shape,
    }


class CodedLinear(nn.Module):
    """Holds the codes of a checkpoint, and makes of them a bfloat16 weight in each call."""

    def __init__(self, tensors: dict[str, Tensor], fmt: str) -> None:
        super().__init__()
        self._format = fmt
        for name, tensor in tensors.items():
            self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))

    def values(self) -> Tensor:
        own = dict(self.named_parameters())
        if self._format == "fp8":
            return own["weight"].float() * _of_blocks(own["weight_scale_inv"], *own["weight"].shape)
        if self._format == "int8":
            return own["weight"].float() * own["weight_scale"].float()
        if self._format == "packed-int8":
            codes = _unpacked(own["weight_packed"], 8) - 128
            return codes.float() * own["weight_scale"].float().repeat_interleave(GROUP, 1)
        codes = _unpacked(own["weight_packed"]) - 8
        zero: Tensor | int = 0
        if "weight_zero_point" in own:
            zero = (_unpacked(own["weight_zero_point"].T).T - 8).repeat_interleave(GROUP, 1)
        return (codes - zero).float() * own["weight_scale"].float().repeat_interleave(GROUP, 1)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name that nn.Linear has
        return nn.functional.linear(input, self.values().to(input.dtype))


def port(folder: Path, fmt: str) -> nn.Module:
    """Return a bfloat16 model that computes with the codes of a checkpoint."""
    from safetensors.torch import load_file

    config = transformers.LlamaConfig.from_pretrained(folder)
    del config.quantization_config
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    tensors = load_file(folder / "model.safetensors")
    for name, module in list(model.named_modules()):
        if _is_quantised(name, module):
            prefix = f"{name}."
            own = {key.removeprefix(prefix): x for key, x in tensors.items() if key.startswith(prefix)}
            model.set_submodule(name, CodedLinear(own, fmt))
    dense = {key: x for key, x in tensors.items() if key in dict(model.named_parameters())}
    model.load_state_dict(dense, strict=False)
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)  # the cast rounded its frequencies
    return model.eval()


def _is_quantised(name: str, module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) and "layers" in name and not name.endswith(LEFT_DENSE)


def _of_blocks(scale: Tensor, rows: int, columns: int) -> Tensor:
    """Return `[N, K]`, the scale of each code; the last blocks may be shorter than the others."""
    return scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[:rows, :columns]


def _packed(codes: Tensor, bits: int = 4) -> Tensor:
    """Pack codes to words of 32 bits, the first in the lowest bits."""
    words = codes.unflatten(-1, (-1, 32 // bits)).to(torch.int64) << (bits * torch.arange(32 // bits))
    total = words.sum(-1)
    return torch.where(total >= 2**31, total - 2**32, total).to(torch.int32)


def _unpacked(words: Tensor, bits: int = 4) -> Tensor:
    places = bits * torch.arange(32 // bits, dtype=torch.int32)
    return ((words.unsqueeze(-1) >> places) & (2**bits - 1)).flatten(-2)


def _described(fmt: str) -> dict[str, Any]:
    if fmt == "fp8":
        return {
            "quant_method": "fp8",
            "weight_block_size": [BLOCK, BLOCK],
            "modules_to_not_convert": ["lm_head", LEFT_DENSE],
        }
    weights: dict[str, Any] = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
    if fmt != "int8":
        bits = 8 if fmt == "packed-int8" else 4
        weights = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": GROUP}
        weights["symmetric"] = fmt != "int4-asymmetric"
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized" if fmt == "int8" else "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head", f"re:.*{LEFT_DENSE}"],
    }
