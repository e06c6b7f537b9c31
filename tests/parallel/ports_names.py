"""A port of Llama-like models with a serving engine's habits: fused projections, fused add and norm.

Everything that names could tell is open: what modules are called, what is fused, and in which order.
Faults are planted by the tests: in the weights, or by another class in place of one of these.

Shape legend: B = batch, S = tokens, D = channels, N = heads, K = kv heads, H = channels of a head.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = [
    "ENGINE",
    "NAMELESS",
    "Attention",
    "Layer",
    "Norm",
    "Port",
    "SeparateExperts",
    "Words",
    "engine_part",
    "fused",
    "swap_keys_and_values",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What the port calls its modules."""

    backbone: str = "model"
    embed: str = "embed_tokens"
    layers: str = "layers"
    attention_norm: str = "input_layernorm"
    attention: str = "self_attn"
    qkv: str = "qkv_proj"
    out: str = "o_proj"
    query_norm: str = "q_norm"
    key_norm: str = "k_norm"
    mlp_norm: str = "post_attention_layernorm"
    mlp: str = "mlp"
    gate_up: str = "gate_up_proj"
    act: str = "act_fn"
    down: str = "down_proj"
    norm: str = "norm"
    head: str = "lm_head"


ENGINE = Words()
"""What vLLM and SGLang call them."""

NAMELESS = Words(
    backbone="transformer",
    embed="wte",
    layers="h",
    attention_norm="ln_1",
    attention="attn",
    qkv="c_attn",
    out="c_proj",
    query_norm="n_a",
    key_norm="n_b",
    mlp_norm="ln_2",
    mlp="ff",
    gate_up="c_fc",
    act="act",
    down="c_proj",
    norm="ln_f",
    head="output",
)
"""Names in the manner of GPT-2, of which none is the reference's."""


class Norm(nn.Module):
    """RMS norm; given a residual, it adds that first, and returns the sum as well."""

    def __init__(self, ref: nn.Module) -> None:
        super().__init__()
        self.weight = nn.Parameter(ref.weight.detach().clone())
        self.epsilon = ref.variance_epsilon

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        """Normalise `[B, S, D]`."""
        if residual is None:
            return self.normed(x)
        total = x + residual
        return self.normed(total), total

    def normed(self, x: Tensor) -> Tensor:
        """Normalise `[*, D]`."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return self.weight * wide.to(x.dtype)


class SiluAndMul(nn.Module):
    """`silu(gate) * up` of both in one tensor."""

    def forward(self, gate_up: Tensor) -> Tensor:
        """Return `[*, D]` of `[*, 2 D]`."""
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate) * up


class Attention(nn.Module):
    """Attention over one projection to queries, keys and values."""

    def __init__(self, ref: nn.Module, words: Words) -> None:
        super().__init__()
        self.words = words
        self.head_size = ref.head_dim
        self.sizes = [linear.out_features for linear in (ref.q_proj, ref.k_proj, ref.v_proj)]
        self.add_module(words.qkv, fused(ref.q_proj, ref.k_proj, ref.v_proj))
        self.add_module(words.out, fused(ref.o_proj))
        self.has_norms = hasattr(ref, "q_norm")
        if self.has_norms:
            self.add_module(words.query_norm, Norm(ref.q_norm))
            self.add_module(words.key_norm, Norm(ref.k_norm))

    def forward(self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> Tensor:
        """Attend over the past, `[B, S, D]`."""
        words = self.words
        batch, tokens, _ = hidden_states.shape
        whole = getattr(self, words.qkv)(hidden_states)
        query, key, value = (x.view(batch, tokens, -1, self.head_size) for x in self.parts(whole))
        if self.has_norms:
            query = getattr(self, words.query_norm)(query)
            key = getattr(self, words.key_norm)(key)
        cos, sin = (x.unsqueeze(1) for x in position_embeddings)
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        query, key = (x * cos + rotated(x) * sin for x in (query, key))
        made = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        out: Tensor = getattr(self, words.out)(made.transpose(1, 2).reshape(batch, tokens, -1))
        return out

    def parts(self, whole: Tensor) -> Sequence[Tensor]:
        """Take the projection's output apart, `[B, S, (N + 2 K) H]`."""
        return whole.split(self.sizes, -1)


class Mlp(nn.Module):
    """SwiGLU over one projection to gate and up."""

    def __init__(self, ref: nn.Module, words: Words) -> None:
        super().__init__()
        self.words = words
        self.add_module(words.gate_up, fused(ref.gate_proj, ref.up_proj))
        self.add_module(words.act, SiluAndMul())
        self.add_module(words.down, fused(ref.down_proj))

    def forward(self, x: Tensor) -> Tensor:
        """Return `[B, S, D]`."""
        words = self.words
        inner = getattr(self, words.act)(getattr(self, words.gate_up)(x))
        out: Tensor = getattr(self, words.down)(inner)
        return out


class Layer(nn.Module):
    """A decoder layer that keeps its output and the residual stream apart."""

    def __init__(self, ref: nn.Module, words: Words) -> None:
        super().__init__()
        self.words = words
        self.add_module(words.attention_norm, Norm(ref.input_layernorm))
        self.add_module(words.attention, Attention(ref.self_attn, words))
        self.add_module(words.mlp_norm, Norm(ref.post_attention_layernorm))
        self.add_module(words.mlp, Mlp(ref.mlp, words))

    def forward(
        self, hidden_states: Tensor, residual: Tensor | None, position_embeddings: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return what the MLP adds, and what it is to be added to."""
        words = self.words
        if residual is None:
            residual = hidden_states
            hidden_states = getattr(self, words.attention_norm)(hidden_states)
        else:
            hidden_states, residual = getattr(self, words.attention_norm)(hidden_states, residual)
        hidden_states = getattr(self, words.attention)(hidden_states, position_embeddings)
        hidden_states, residual = getattr(self, words.mlp_norm)(hidden_states, residual)
        return getattr(self, words.mlp)(hidden_states), residual


class Backbone(nn.Module):
    """The model without its head."""

    def __init__(self, ref: nn.Module, words: Words, layer: Callable[[nn.Module, Words], nn.Module]) -> None:
        super().__init__()
        self.words = words
        self.add_module(words.embed, nn.Embedding.from_pretrained(ref.embed_tokens.weight.detach().clone()))
        self.add_module(words.layers, nn.ModuleList([layer(one, words) for one in ref.layers]))
        self.add_module(words.norm, Norm(ref.norm))
        self.frequencies = ref.rotary_emb.inv_freq.detach().clone()

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return `[B, S, D]`."""
        words = self.words
        hidden_states: Tensor = getattr(self, words.embed)(input_ids)
        angles = torch.arange(input_ids.shape[1])[:, None] * self.frequencies.float()
        angles = torch.cat((angles, angles), -1)[None]
        rotary = angles.cos().to(hidden_states.dtype), angles.sin().to(hidden_states.dtype)
        residual = None
        for layer in getattr(self, words.layers):
            hidden_states, residual = layer(hidden_states, residual, rotary)
        normed, _ = getattr(self, words.norm)(hidden_states, residual)
        return normed


class Port(nn.Module):
    """The whole port of a Llama, Qwen2 or Qwen3 of transformers, in the dtype of its weights.

    Args:
        ref: the model to port; its weights are copied.
        words: what the modules are called.
        dtype: of the port.
        layer: makes a decoder layer.
    """

    def __init__(
        self,
        ref: nn.Module,
        words: Words = ENGINE,
        dtype: torch.dtype = torch.bfloat16,
        layer: Callable[[nn.Module, Words], nn.Module] = Layer,
    ) -> None:
        super().__init__()
        self.words = words
        self.add_module(words.backbone, Backbone(ref.model, words, layer))
        self.add_module(words.head, fused(ref.lm_head))
        self.to(dtype).eval()

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> dict[str, Tensor]:
        """Return logits `[B, S, V]`."""
        hidden_states = getattr(self, self.words.backbone)(input_ids)
        return {"logits": getattr(self, self.words.head)(hidden_states)}


def fused(*linears: nn.Linear) -> nn.Linear:
    """Return one linear map with the outputs of several, one after the other."""
    weights = torch.cat([linear.weight for linear in linears])
    made = nn.Linear(weights.shape[1], weights.shape[0], bias=linears[0].bias is not None)
    with torch.no_grad():
        made.weight.copy_(weights)
        if made.bias is not None:
            made.bias.copy_(torch.cat([linear.bias for linear in linears]))
    return made


def rotated(x: Tensor) -> Tensor:
    """Turn each pair of channels, half a head apart, by a quarter."""
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


class RowParallel(nn.Linear):
    """A linear map whose input channels are split over the ranks."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """Return the sum of what all ranks have."""
        out = super().forward(input)
        dist.all_reduce(out)
        return out


def engine_part(model: nn.Module) -> Port:
    """Return this rank's part of the port: its block of every part of fused projections."""
    port = Port(model)
    rank, world = dist.get_rank(), dist.get_world_size()

    def rows(fused: nn.Linear, sizes: Sequence[int]) -> nn.Linear:
        parts = [part.chunk(world)[rank] for part in fused.weight.split(list(sizes))]
        made = nn.Linear(fused.in_features, sum(map(len, parts)), bias=fused.bias is not None)
        made.weight = nn.Parameter(torch.cat(parts))
        if fused.bias is not None:
            made.bias = nn.Parameter(torch.cat([x.chunk(world)[rank] for x in fused.bias.split(list(sizes))]))
        return made

    def columns(linear: nn.Linear) -> nn.Linear:
        made = RowParallel(linear.in_features // world, linear.out_features, bias=False)
        made.weight = nn.Parameter(linear.weight.chunk(world, 1)[rank].contiguous())
        return made

    for layer in port.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        attention.qkv_proj = rows(attention.qkv_proj, attention.sizes)
        attention.sizes = [size // world for size in attention.sizes]
        attention.o_proj = columns(attention.o_proj)
        mlp.gate_up_proj = rows(mlp.gate_up_proj, [mlp.gate_up_proj.out_features // 2] * 2)
        mlp.down_proj = columns(mlp.down_proj)
    return port


def swap_keys_and_values(port: nn.Module) -> None:
    """Hold the blocks of keys and values of the first layer the other way round, on the last rank."""
    attention = port.model.layers[0].self_attn
    if dist.get_rank() == dist.get_world_size() - 1:
        query, key, value = attention.qkv_proj.weight.split(attention.sizes)
        attention.qkv_proj.weight.copy_(torch.cat((query, value, key)))


def cut_in_one_piece(port: nn.Module) -> None:
    """Give each rank its part of `[Q; K; V]` of the second layer, not its part of each of them."""
    attention = port.model.layers[1].self_attn
    blocks = [torch.empty_like(attention.qkv_proj.weight) for _ in range(dist.get_world_size())]
    dist.all_gather(blocks, attention.qkv_proj.weight.contiguous())
    parts = zip(*(block.split(attention.sizes) for block in blocks), strict=True)
    stacked = torch.cat([torch.cat(part) for part in parts])
    attention.qkv_proj.weight.copy_(stacked.chunk(len(blocks))[dist.get_rank()])


class Expert(nn.Module):
    """One expert of a mixture."""

    def __init__(self, gate: Tensor, up: Tensor, down: Tensor, words: Sequence[str]) -> None:
        super().__init__()
        self.words = words
        for word, weight in zip(words, (gate, up, down), strict=True):
            linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
            linear.weight = nn.Parameter(weight.detach().clone())
            self.add_module(word, linear)

    def forward(self, x: Tensor) -> Tensor:
        """Map `[T, D]` to `[T, D]`."""
        gate, up, down = (getattr(self, word) for word in self.words)
        out: Tensor = down(F.silu(gate(x)) * up(x))
        return out


class SeparateExperts(nn.Module):
    """A block of Qwen3-MoE with a list of experts in place of stacks.

    Args:
        ref: the block with stacks.
        words: what gate, up and down are called.
        order: which of the reference's experts stands in each place.
    """

    def __init__(
        self, ref: nn.Module, words: Sequence[str], order: Callable[[int], int] = lambda number: number
    ) -> None:
        super().__init__()
        self.gate = ref.gate
        stacks = ref.experts.gate_up_proj, ref.experts.down_proj
        half = stacks[0].shape[1] // 2
        experts = [
            Expert(stacks[0][i][:half], stacks[0][i][half:], stacks[1][i], words)
            for i in map(order, range(len(stacks[0])))
        ]
        self.experts = nn.ModuleList(experts)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return `[B, S, D]`."""
        flat = hidden_states.flatten(0, 1)
        _, weights, chosen = self.gate(flat)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            tokens, place = torch.where(chosen == number)
            if len(tokens):
                out.index_add_(0, tokens, expert(flat[tokens]) * weights[tokens, place, None])
        return out.view_as(hidden_states)
