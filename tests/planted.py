"""Faults as ports really have them, each planted in a candidate, with what must be said of it.

A fault is planted in a healthy model by a function; the record says where it shows first, which edges may be
blamed at all, and on what stimulus. Names hold `{layer}`, the layer that it is planted in, where it has one.
"""

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import linear

from tests.models import Stimulus
from validator.checks.findings import Check, Finding

__all__ = ["FAULTS", "LAYERS", "GuiltyEdge", "PlantedFault"]

LAYERS = (2, 1)
"""Layers that faults are planted in; the first one by default."""

ROW = 40  # of a projection, spoiled by the faults of one row


@dataclass(frozen=True, slots=True, kw_only=True)
class GuiltyEdge:
    """An edge that a fault spoils: into a child of `module`, or an output or parameter of `module` itself."""

    module: str
    into: str | None = None

    def covers(self, finding: Finding, layer: int) -> bool:
        """Tell whether a finding is about this edge; names may be globs."""
        return fnmatchcase(finding.module, self.module.format(layer=layer)) and (
            finding.into == (None if self.into is None else self.into.format(layer=layer))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedFault:
    """A fault with what must be said of it.

    Attributes:
        name: what is wrong, in snake case.
        plant: spoils a candidate in place, given the model and the layer.
        guilty: the edges that it spoils; the first of them must be named first, and no other edge at all.
        checks: one of these checks must name it first.
        signature: kind of the first finding's signature, or None where none is demanded.
        families: models that can have the fault.
        stimulus: weights on which it shows.
        biases: whether the projections must have biases.
        tp: ranks of the candidate.
        rank: the only rank that it is planted on, and that must be named; None for all, and no rank is named.
        has_layer: whether it is planted in one layer.
    """

    name: str
    plant: Callable[[Any, int], None]
    guilty: tuple[GuiltyEdge, ...]
    checks: tuple[Check, ...]
    signature: str | None = None
    families: tuple[str, ...] = ("llama", "qwen3")
    stimulus: Stimulus = Stimulus.PEAKED
    biases: bool = False
    tp: int = 1
    rank: int | None = None
    has_layer: bool = True

    def first_mistake(self, found: Finding | None, layer: int) -> str:
        """Say what is wrong with the first finding, or "" if it names the fault as it must."""
        if found is None:
            return "nothing was found"
        wanted = self.guilty[0]
        if not wanted.covers(found, layer):
            return f"blamed {found.module} into {found.into}, not {wanted}"
        if found.check not in self.checks:
            return f"the {found.check} check named it, not {' or '.join(self.checks)}"
        if found.rank != self.rank:
            return f"blamed rank {found.rank}, not {self.rank}"
        kind = None if found.signature is None else found.signature.kind
        if self.signature is not None and kind != self.signature:
            return f"called it {kind}, not {self.signature}"
        return ""

    def innocent(self, findings: tuple[Finding, ...], layer: int) -> list[Finding]:
        """Return the findings that blame an edge which the fault did not spoil."""
        return [f for f in findings if not any(edge.covers(f, layer) for edge in self.guilty)]


_NORM = "model.layers.{layer}.input_layernorm"
_ATTENTION = "model.layers.{layer}.self_attn"
_MLP = "model.layers.{layer}.mlp"
# An attention kernel that returns its probabilities has them as a second output.
_SCORES = (GuiltyEdge(module=_ATTENTION, into=f"{_ATTENTION}.o_proj"), GuiltyEdge(module=_ATTENTION))
_ROTARY = (GuiltyEdge(module="model.rotary_emb"),)
_ALL_FAMILIES = ("llama", "qwen3", "gemma2")


def _wrap(module: nn.Module, replacement: Callable[..., Any]) -> None:
    """Replace a module's forward by `replacement(old_forward, *args, **kwargs)`, inside of its hooks."""
    inner = module.forward

    @functools.wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return replacement(inner, *args, **kwargs)

    module.forward = forward


def _local(parameter: Tensor) -> Tensor:
    """Return this rank's part of a parameter, which changes with it."""
    data = parameter.detach()
    return data.to_local() if isinstance(data, DTensor) else data


def _eps_after_root(model: Any, layer: int) -> None:
    norm = model.model.layers[layer].input_layernorm

    def forward(inner: Any, x: Tensor) -> Any:
        root = x.float().square().mean(-1, keepdim=True).sqrt()
        return norm.weight * (x.float() / (root + norm.variance_epsilon)).to(x.dtype)

    _wrap(norm, forward)


def _attention_scale(model: Any, layer: int) -> None:
    model.model.layers[layer].self_attn.scaling *= 1.01


def _residual_after_norm(model: Any, layer: int) -> None:
    block = model.model.layers[layer]

    def forward(inner: Any, hidden_states: Tensor, **kwargs: Any) -> Any:
        normed = block.input_layernorm(hidden_states)
        hidden_states = normed + block.self_attn(hidden_states=normed, **kwargs)[0]
        return hidden_states + block.mlp(block.post_attention_layernorm(hidden_states))

    _wrap(block, forward)


def _gelu_for_silu(model: Any, layer: int) -> None:
    model.model.layers[layer].mlp.act_fn = nn.GELU()


def _gate_and_up_swapped(model: Any, layer: int) -> None:
    mlp = model.model.layers[layer].mlp
    _wrap(mlp, lambda inner, x: mlp.down_proj(mlp.act_fn(mlp.up_proj(x)) * mlp.gate_proj(x)))


def _row_of_weight(model: Any, layer: int) -> None:
    model.model.layers[layer].mlp.up_proj.weight.data[ROW] *= 1.02


def _row_in_kernel(model: Any, layer: int) -> None:
    projection = model.model.layers[layer].mlp.up_proj

    def forward(inner: Any, x: Tensor) -> Tensor:
        weight = projection.weight.clone()
        weight[ROW] *= 1.02
        return linear(x, weight)

    _wrap(projection, forward)


def _rope_sign(model: Any, layer: int) -> None:
    def forward(inner: Any, *args: Any, position_embeddings: tuple[Tensor, Tensor], **kwargs: Any) -> Any:
        cos, sin = position_embeddings
        return inner(*args, position_embeddings=(cos, -sin), **kwargs)

    _wrap(model.model.layers[layer].self_attn, forward)


def _rope_interleaved(model: Any, layer: int) -> None:
    attention = model.model.layers[layer].self_attn
    modeling = sys.modules[type(attention).__module__]

    def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return x * cos + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * sin

    def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        half = cos.shape[-1] // 2
        cos, sin = (x[..., :half].repeat_interleave(2, -1).unsqueeze(1) for x in (cos, sin))
        return rotated(q, cos, sin), rotated(k, cos, sin)

    def forward(inner: Any, *args: Any, **kwargs: Any) -> Any:
        with mock.patch.object(modeling, "apply_rotary_pos_emb", rotate):
            return inner(*args, **kwargs)

    _wrap(attention, forward)


def _rope_theta(model: Any, layer: int) -> None:
    rotary = model.model.rotary_emb
    count = len(rotary.inv_freq)
    rotary.inv_freq = 5e4 ** (-torch.arange(count, dtype=torch.float32) / count)


def _rope_bf16_frequencies(model: Any, layer: int) -> None:
    rotary = model.model.rotary_emb
    rotary.inv_freq = rotary.inv_freq.to(torch.bfloat16)


def _no_soft_cap(model: Any, layer: int) -> None:
    model.model.layers[layer].self_attn.attn_logit_softcapping = None


def _head_is_embedding(model: Any, layer: int) -> None:
    embedding = model.model.embed_tokens
    _wrap(model.lm_head, lambda inner, x: linear(x, embedding.weight))


def _layer_twice(model: Any, layer: int) -> None:
    layers = model.model.layers
    layers[layer].load_state_dict(layers[layer - 1].state_dict())


def _factor(model: Any, layer: int) -> None:
    projection = model.model.layers[layer].self_attn.v_proj
    _wrap(
        projection,
        # In float32 before the one rounding: in bf16 a product with 1.001 rounds back to where it was.
        lambda inner, x: (linear(x.float(), projection.weight.float()) * 1.001).to(x.dtype),
    )


def _bias_on_every_rank(model: Any, layer: int) -> None:
    projection = model.model.layers[layer].self_attn.o_proj

    def forward(inner: Any, x: Tensor) -> Tensor:
        partial = linear(x, _local(projection.weight), _local(projection.bias))
        dist.all_reduce(partial)
        return partial

    _wrap(projection, forward)


def _heads_dealt_in_turn(model: Any, layer: int) -> None:
    attention = model.model.layers[layer].self_attn
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        heads = projection.weight.detach().full_tensor().unflatten(0, (-1, attention.head_dim))
        mine = heads[dist.get_rank() :: dist.get_world_size()]
        _local(projection.weight).copy_(mine.flatten(0, 1))


def _reduced_twice(model: Any, layer: int) -> None:
    def forward(inner: Any, x: Tensor) -> Tensor:
        output: Tensor = inner(x)
        dist.all_reduce(output)
        return output

    _wrap(model.model.layers[layer].mlp.down_proj, forward)


def _norm_eps(model: Any, layer: int, eps: float) -> None:
    model.model.layers[layer].input_layernorm.variance_epsilon = eps


def _half_of_weight(model: Any, layer: int) -> None:
    _local(model.model.layers[layer].mlp.down_proj.weight).mul_(1.01)


def _half_in_kernel(model: Any, layer: int) -> None:
    projection = model.model.layers[layer].mlp.down_proj

    def forward(inner: Any, x: Tensor) -> Tensor:
        partial = (linear(x.float(), _local(projection.weight).float()) * 1.01).to(x.dtype)
        dist.all_reduce(partial)
        return partial

    _wrap(projection, forward)


FAULTS = (
    PlantedFault(
        name="norm_eps_after_root",
        plant=_eps_after_root,
        guilty=(GuiltyEdge(module=_NORM),),
        checks=(Check.FUNCTION,),
        stimulus=Stimulus.SMALL,
    ),
    PlantedFault(
        name="attention_scale_off_by_a_hundredth",
        plant=_attention_scale,
        guilty=_SCORES,
        checks=(Check.WIRING,),
        families=_ALL_FAMILIES,
    ),
    PlantedFault(
        name="residual_taken_after_the_norm",
        plant=_residual_after_norm,
        guilty=(
            GuiltyEdge(module="model.layers.{layer}", into="model.layers.{layer}.post_attention_layernorm"),
            GuiltyEdge(module="model.layers.{layer}"),
        ),
        checks=(Check.WIRING,),
    ),
    PlantedFault(
        name="gelu_for_silu",
        plant=_gelu_for_silu,
        guilty=(GuiltyEdge(module=f"{_MLP}.act_fn"),),
        checks=(Check.FUNCTION,),
    ),
    PlantedFault(
        name="gate_and_up_swapped",
        plant=_gate_and_up_swapped,
        guilty=(
            GuiltyEdge(module=_MLP, into=f"{_MLP}.act_fn"),
            GuiltyEdge(module=_MLP, into=f"{_MLP}.down_proj"),
        ),
        checks=(Check.WIRING,),
        families=_ALL_FAMILIES,
    ),
    PlantedFault(
        name="one_row_of_a_weight_off_by_a_fiftieth",
        plant=_row_of_weight,
        guilty=(GuiltyEdge(module=f"{_MLP}.up_proj"),),
        checks=(Check.PARAMETER,),
        signature="factor",
        families=_ALL_FAMILIES,
    ),
    PlantedFault(
        name="one_row_of_a_kernel_off_by_a_fiftieth",
        plant=_row_in_kernel,
        guilty=(GuiltyEdge(module=f"{_MLP}.up_proj"),),
        checks=(Check.FUNCTION,),
        families=_ALL_FAMILIES,
    ),
    PlantedFault(
        name="rope_turned_the_other_way",
        plant=_rope_sign,
        guilty=_SCORES,
        checks=(Check.WIRING,),
        families=_ALL_FAMILIES,
    ),
    PlantedFault(
        name="rope_with_another_theta",
        plant=_rope_theta,
        guilty=_ROTARY,
        checks=(Check.PARAMETER,),
        families=_ALL_FAMILIES,
        has_layer=False,
    ),
    PlantedFault(
        name="rope_interleaved_for_half",
        plant=_rope_interleaved,
        guilty=_SCORES,
        checks=(Check.WIRING,),
        families=_ALL_FAMILIES,
    ),
    PlantedFault(
        name="rope_frequencies_in_bf16",
        plant=_rope_bf16_frequencies,
        guilty=_ROTARY,
        checks=(Check.FUNCTION,),
        families=_ALL_FAMILIES,
        has_layer=False,
    ),
    PlantedFault(
        name="attention_soft_cap_left_out",
        plant=_no_soft_cap,
        guilty=_SCORES,
        checks=(Check.WIRING,),
        families=("gemma2",),
    ),
    PlantedFault(
        name="head_that_ignores_its_weight",
        plant=_head_is_embedding,
        guilty=(GuiltyEdge(module="lm_head"),),
        checks=(Check.FUNCTION,),
        has_layer=False,
    ),
    PlantedFault(
        name="weights_of_a_layer_used_twice",
        plant=_layer_twice,
        guilty=(GuiltyEdge(module=f"{_ATTENTION}.q_proj"), GuiltyEdge(module="model.layers.{layer}.*")),
        checks=(Check.PARAMETER,),
        signature="other_parameter",
        families=_ALL_FAMILIES,
    ),
    PlantedFault(
        name="factor_of_a_thousandth_on_a_projection",
        plant=_factor,
        guilty=(GuiltyEdge(module=f"{_ATTENTION}.v_proj"),),
        checks=(Check.FUNCTION,),
        signature="factor",
        families=_ALL_FAMILIES,
    ),
    PlantedFault(
        name="bias_added_on_every_rank",
        plant=_bias_on_every_rank,
        guilty=(GuiltyEdge(module=f"{_ATTENTION}.o_proj"),),
        checks=(Check.FUNCTION,),
        signature="bias_per_rank",
        families=("llama",),
        biases=True,
        tp=2,
    ),
    PlantedFault(
        name="heads_dealt_to_the_ranks_in_turn",
        plant=_heads_dealt_in_turn,
        guilty=tuple(GuiltyEdge(module=f"{_ATTENTION}.{name}_proj") for name in "qkv"),
        checks=(Check.PARAMETER,),
        signature="permutation",
        families=_ALL_FAMILIES,
        tp=2,
    ),
    PlantedFault(
        name="output_reduced_twice",
        plant=_reduced_twice,
        guilty=(GuiltyEdge(module=f"{_MLP}.down_proj"),),
        checks=(Check.FUNCTION,),
        signature="double_reduction",
        families=_ALL_FAMILIES,
        tp=2,
    ),
    PlantedFault(
        name="norm_eps_of_one_rank",
        plant=functools.partial(_norm_eps, eps=1e-5),
        guilty=(GuiltyEdge(module=_NORM),),
        checks=(Check.FUNCTION,),
        stimulus=Stimulus.SMALL,
        tp=2,
        rank=1,
    ),
    PlantedFault(
        # Rounding to bf16 hides it, but what the ranks hold is no longer the same.
        name="norm_eps_of_one_rank_below_an_ulp",
        plant=functools.partial(_norm_eps, eps=1e-3),
        guilty=(GuiltyEdge(module=_NORM),),
        checks=(Check.REPLICA, Check.FUNCTION),
        tp=2,
        rank=1,
    ),
    PlantedFault(
        name="half_of_a_weight_off_by_a_hundredth",
        plant=_half_of_weight,
        guilty=(GuiltyEdge(module=f"{_MLP}.down_proj"),),
        checks=(Check.PARAMETER,),
        signature="factor",
        families=_ALL_FAMILIES,
        tp=2,
        rank=1,
    ),
    PlantedFault(
        name="half_of_a_kernel_off_by_a_hundredth",
        plant=_half_in_kernel,
        guilty=(GuiltyEdge(module=f"{_MLP}.down_proj"),),
        checks=(Check.PARTIAL,),
        signature="factor",
        families=_ALL_FAMILIES,
        tp=2,
        rank=1,
    ),
)
