"""A small checkpoint whose experts are MXFP4, and a port that multiplies with its codes, written anew here.

Shape legend: E = experts, N = rows, K = columns, G = groups of 32 columns.
"""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

__all__ = ["CodedExperts", "inputs", "port", "write"]

GROUP = 32
MAGNITUDES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
BIAS = 127
QUANTISED = ("gate_up_proj", "down_proj")


def config() -> Any:
    return transformers.GptOssConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        head_dim=16,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=64,
        sliding_window=12,
    )


def inputs() -> dict[str, Tensor]:
    return {"input_ids": torch.arange(48).view(2, 24) * 5 % 64}


def write(folder: Path) -> Path:
    """Write a random bfloat16 model whose experts' matrices are quantised."""
    torch.manual_seed(0)
    model = transformers.GptOssForCausalLM(config()).to(torch.bfloat16)
    model.save_pretrained(folder)
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if name.endswith(QUANTISED):
            blocks, scales = encode(tensor.float().mT)
            tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        else:
            tensors[name] = tensor.clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    described = json.loads((folder / "config.json").read_text())
    described["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
    }
    (folder / "config.json").write_text(json.dumps(described))
    return folder


def encode(weight_ENK: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes `[E, N, G, 16]`, two to a byte, and the exponents of their scales `[E, N, G]`."""
    groups = weight_ENK.unflatten(-1, (-1, GROUP))
    exponents = groups.abs().amax(-1).log2().floor() - 2
    scaled = groups / exponents.exp2().unsqueeze(-1)
    magnitudes = (scaled.abs().unsqueeze(-1) - MAGNITUDES).abs().argmin(-1)
    codes = (magnitudes + 8 * (scaled < 0)).to(torch.uint8)
    return codes[..., ::2] | (codes[..., 1::2] << 4), (exponents + BIAS).to(torch.uint8)


class CodedExperts(nn.Module):
    """Holds the codes of a checkpoint, and makes of them a bfloat16 matrix for each expert that is hit."""

    def __init__(self, tensors: dict[str, Tensor], settings: Any) -> None:
        super().__init__()
        self.alpha, self.limit = settings.swiglu_alpha, settings.swiglu_limit
        for name, tensor in tensors.items():
            self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))

    def matrix(self, name: str, expert: int) -> Tensor:
        """Return an expert's matrix `[K, N]` in bfloat16."""
        own = dict(self.named_parameters())
        packed, exponents = own[f"{name}_blocks"][expert], own[f"{name}_scales"][expert]
        codes = torch.stack([packed & 0xF, packed >> 4], -1).flatten(-2).long()
        values = MAGNITUDES[codes & 7] * torch.where(codes > 7, -1.0, 1.0)
        scaled = values * (exponents.float() - BIAS).exp2().unsqueeze(-1)
        return scaled.flatten(-2).T.to(torch.bfloat16)

    def forward(self, hidden_states: Tensor, router_indices: Tensor, routing_weights: Tensor) -> Tensor:
        own = dict(self.named_parameters())
        summed = torch.zeros_like(hidden_states)
        for expert in router_indices.unique().tolist():
            token, place = torch.where(router_indices == expert)
            both = (
                hidden_states[token] @ self.matrix("gate_up_proj", expert) + own["gate_up_proj_bias"][expert]
            )
            gate, up = both[..., ::2].clamp(max=self.limit), both[..., 1::2].clamp(-self.limit, self.limit)
            gated = (up + 1) * (gate * torch.sigmoid(gate * self.alpha))
            made = gated @ self.matrix("down_proj", expert) + own["down_proj_bias"][expert]
            summed.index_add_(0, token, made * routing_weights[token, place, None])
        return summed


def port(folder: Path) -> Any:
    """Return a bfloat16 model that computes with the codes of a checkpoint."""
    model = transformers.GptOssForCausalLM(config()).to(torch.bfloat16)
    tensors = load_file(folder / "model.safetensors")
    for i, layer in enumerate(model.model.layers):
        prefix = f"model.layers.{i}.mlp.experts."
        own = {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}
        layer.mlp.experts = CodedExperts(own, model.config)
    model.load_state_dict(tensors)
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)  # the cast rounded its frequencies
    return model.eval()
