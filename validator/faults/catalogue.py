"""The registry of faults, and how one is written on a command line."""

from difflib import get_close_matches

from validator.errors import UsageError
from validator.faults import operators, sharded
from validator.faults.fault import Fault, Parameter, PlannedFault

__all__ = ["get", "parse", "registry"]

_NORM, _ATTENTION, _MLP = (f"*layers.{{layer}}.{name}" for name in ("input_layernorm", "self_attn", "mlp"))
_LAYER = Parameter(name="layer", kind=int, default=1, what="the index of a decoder layer")
_RANK = Parameter(name="rank", kind=int, default=None, what="the only rank that has the fault")


def _factor(default: float) -> Parameter:
    return Parameter(name="factor", kind=float, default=default, what="what to multiply by")


_ROW = Parameter(name="row", kind=int, default=40, what="the index of a row of the rank's weight")
_PROJECTIONS = tuple(f"layer.mlp.{name}_proj.weight" for name in ("gate", "up", "down"))


def registry() -> dict[str, Fault]:
    """Return all faults by name."""
    return {fault.name: fault for fault in _FAULTS}


def get(name: str) -> Fault:
    """Return a fault.

    Raises:
        UsageError: there is none of that name.
    """
    faults = registry()
    if name in faults:
        return faults[name]
    close = get_close_matches(name, faults, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise UsageError(f"no fault is called {name!r}; {hint}There are {', '.join(faults)}")


def parse(text: str) -> PlannedFault:
    """Read a fault with its parameters.

    Args:
        text: `name` or `name:parameter=value,...`, such as `attn-scale:layer=3,factor=1.02`.

    Raises:
        UsageError: no such fault or parameter, or a value that is not legal.
    """
    name, colon, rest = text.partition(":")
    fault = get(name)
    given: dict[str, str] = {}
    for word in rest.split(",") if colon else ():
        key, equals, value = word.partition("=")
        if not equals or key in given:
            why = "is given twice" if equals else "is no parameter=value"
            raise UsageError(f"{word!r} in {text!r} {why}; write for instance {fault.plan()}")
        given[key] = value
    return fault.plan(**given)


_FAULTS = (
    Fault(
        name="norm-eps",
        what="A norm has another epsilon than the reference's.",
        module=_NORM,
        apply=operators.norm_eps,
        parameters=(
            _LAYER,
            Parameter(name="eps", kind=float, default=1e-3, what="the epsilon"),
            _RANK,
        ),
        needs=("layer.input_layernorm.variance_epsilon",),
    ),
    Fault(
        name="norm-eps-after-root",
        what="A norm adds its epsilon to the root of the mean square, not under it.",
        module=_NORM,
        apply=operators.norm_eps_after_root,
        parameters=(_LAYER, _RANK),
        needs=("layer.input_layernorm.variance_epsilon", "layer.input_layernorm.weight"),
    ),
    Fault(
        name="attn-scale",
        what="Attention scores are multiplied by a wrong scale.",
        module=_ATTENTION,
        apply=operators.attn_scale,
        parameters=(_LAYER, _factor(1.01), _RANK),
        needs=("layer.self_attn.scaling",),
    ),
    Fault(
        name="attn-no-softcap",
        what="The soft cap on attention scores is left out.",
        module=_ATTENTION,
        apply=operators.attn_no_softcap,
        parameters=(_LAYER, _RANK),
        needs=("layer.self_attn.attn_logit_softcapping",),
    ),
    Fault(
        name="residual-after-norm",
        what="A layer adds to the normed hidden states, not to those before the norm.",
        module="*layers.{layer}",
        apply=operators.residual_after_norm,
        parameters=(_LAYER,),
        needs=("layer.input_layernorm", "layer.post_attention_layernorm", "layer.self_attn", "layer.mlp"),
        lacks=("layer.pre_feedforward_layernorm",),
    ),
    Fault(
        name="act-gelu",
        what="The MLP's activation is the exact GELU.",
        module=f"{_MLP}.act_fn",
        apply=operators.act_gelu,
        parameters=(_LAYER, _RANK),
        needs=("layer.mlp.act_fn",),
    ),
    Fault(
        name="mlp-swapped",
        what="Gate and up projection of an MLP have changed places.",
        module=_MLP,
        apply=operators.mlp_swapped,
        parameters=(_LAYER, _RANK),
        needs=(*_PROJECTIONS, "layer.mlp.act_fn"),
    ),
    Fault(
        name="weight-row",
        what="One row of the up projection's weight was loaded wrongly scaled.",
        module=f"{_MLP}.up_proj",
        apply=operators.weight_row,
        parameters=(_LAYER, _ROW, _factor(1.02), _RANK),
        needs=("layer.mlp.up_proj.weight",),
    ),
    Fault(
        name="kernel-row",
        what="The up projection's kernel scales one row; the weight is right.",
        module=f"{_MLP}.up_proj",
        apply=operators.kernel_row,
        parameters=(_LAYER, _ROW, _factor(1.02), _RANK),
        needs=("layer.mlp.up_proj.weight",),
    ),
    Fault(
        name="weight-scale",
        what="The down projection's weight, or one rank's part of it, was loaded wrongly scaled.",
        module=f"{_MLP}.down_proj",
        apply=operators.weight_scale,
        parameters=(_LAYER, _factor(1.01), _RANK),
        needs=("layer.mlp.down_proj.weight",),
    ),
    Fault(
        name="kernel-scale",
        what="The value projection's kernel scales its result, by less than an ulp of bfloat16.",
        module=f"{_ATTENTION}.v_proj",
        apply=operators.kernel_scale,
        parameters=(_LAYER, _factor(1.001), _RANK),
        needs=("layer.self_attn.v_proj.weight",),
    ),
    Fault(
        name="layer-twice",
        what="A layer was loaded with the weights of the one before it.",
        module="*layers.{layer}.*",
        apply=operators.layer_twice,
        parameters=(_LAYER,),
        needs=("layer",),
    ),
    Fault(
        name="head-is-embedding",
        what="The head multiplies by the embedding, though its own weight is another.",
        module="lm_head",
        apply=operators.head_is_embedding,
        needs=("model.lm_head.weight", "body.embed_tokens.weight"),
    ),
    Fault(
        name="rope-sign",
        what="Rotary embedding turns queries and keys the other way.",
        module=_ATTENTION,
        apply=operators.rope_sign,
        parameters=(_LAYER, _RANK),
        needs=("layer.self_attn", "body.rotary_emb"),
    ),
    Fault(
        name="rope-interleaved",
        what="Rotary embedding pairs neighbouring channels, where the weights are for halves.",
        module=_ATTENTION,
        apply=operators.rope_interleaved,
        parameters=(_LAYER, _RANK),
        needs=("layer.self_attn", "body.rotary_emb"),
    ),
    Fault(
        name="rope-theta",
        what="Rotary frequencies come from another base than the config's.",
        module="*rotary_emb",
        apply=operators.rope_theta,
        parameters=(Parameter(name="theta", kind=float, default=5e4, what="the base"),),
        needs=("body.rotary_emb.inv_freq",),
    ),
    Fault(
        name="rope-bf16-frequencies",
        what="Rotary frequencies were cast to bfloat16 with the rest of the model.",
        module="*rotary_emb",
        apply=operators.rope_bf16_frequencies,
        needs=("body.rotary_emb.inv_freq",),
    ),
    Fault(
        name="tp-bias-every-rank",
        what="Each rank adds the bias of the output projection before the sum over ranks.",
        module=f"{_ATTENTION}.o_proj",
        apply=sharded.bias_every_rank,
        parameters=(_LAYER,),
        needs=("layer.self_attn.o_proj.bias",),
        ranks=2,
    ),
    Fault(
        name="tp-heads-in-turn",
        what="Heads are dealt to the ranks one by one, where they belong in contiguous runs.",
        module=f"{_ATTENTION}.[qkv]_proj",
        apply=sharded.heads_in_turn,
        parameters=(_LAYER,),
        needs=tuple(f"layer.self_attn.{name}_proj.weight" for name in "qkv"),
        ranks=2,
    ),
    Fault(
        name="tp-reduced-twice",
        what="The down projection's result is summed over the ranks a second time.",
        module=f"{_MLP}.down_proj",
        apply=sharded.reduced_twice,
        parameters=(_LAYER,),
        needs=("layer.mlp.down_proj",),
        ranks=2,
    ),
    Fault(
        name="tp-partial-scale",
        what="The down projection's partial sum is scaled before the sum over ranks.",
        module=f"{_MLP}.down_proj",
        apply=sharded.partial_scale,
        parameters=(_LAYER, _factor(1.01), _RANK),
        needs=("layer.mlp.down_proj.weight",),
        ranks=2,
    ),
)
