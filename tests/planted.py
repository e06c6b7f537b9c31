"""The faults of the registry, with what must be said of each and the stimulus that shows it.

Names hold `{layer}`, the layer that a fault is planted in, where it has one.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from tests.models import Stimulus
from validator.checks.findings import Check, Finding
from validator.faults import PlannedFault, parse

__all__ = ["FAULTS", "LAYERS", "Expectation", "GuiltyEdge"]

LAYERS = (2, 1)
"""Layers that faults are planted in; the first one by default."""


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
class Expectation:
    """A fault with what must be said of it.

    Attributes:
        fault: the fault with its parameters but the layer, as `validator.faults.parse` reads it.
        guilty: the edges that it spoils; the first of them must be named first, and no other edge at all.
        checks: one of these checks must name it first.
        signature: kind of the first finding's signature, or None where none is demanded.
        families: models that can have the fault.
        stimulus: weights on which it shows.
        biases: whether the projections must have biases.
        tp: ranks of the candidate.
    """

    fault: str
    guilty: tuple[GuiltyEdge, ...]
    checks: tuple[Check, ...]
    signature: str | None = None
    families: tuple[str, ...] = ("llama", "qwen3")
    stimulus: Stimulus = Stimulus.PEAKED
    biases: bool = False
    tp: int = 1

    @property
    def has_layer(self) -> bool:
        """Whether it is planted in one layer."""
        return "layer" in parse(self.fault).parameters

    @property
    def rank(self) -> int | None:
        """The only rank that it is planted on, and that must be named; None for all, and no rank is named."""
        return parse(self.fault).rank

    def planned(self, layer: int) -> PlannedFault:
        """Return the fault, in a layer if it has one."""
        planned = parse(self.fault)
        parameters = dict(planned.parameters)
        return planned.fault.plan(**parameters | ({"layer": layer} if self.has_layer else {}))

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

FAULTS = (
    Expectation(
        fault="norm-eps-after-root",
        guilty=(GuiltyEdge(module=_NORM),),
        checks=(Check.FUNCTION,),
        stimulus=Stimulus.SMALL,
    ),
    Expectation(
        fault="attn-scale:factor=1.01",
        guilty=_SCORES,
        checks=(Check.WIRING,),
        families=_ALL_FAMILIES,
    ),
    Expectation(
        fault="residual-after-norm",
        guilty=(
            GuiltyEdge(module="model.layers.{layer}", into="model.layers.{layer}.post_attention_layernorm"),
            GuiltyEdge(module="model.layers.{layer}"),
        ),
        checks=(Check.WIRING,),
    ),
    Expectation(
        fault="act-gelu",
        guilty=(GuiltyEdge(module=f"{_MLP}.act_fn"),),
        checks=(Check.FUNCTION,),
    ),
    Expectation(
        fault="mlp-swapped",
        guilty=(
            GuiltyEdge(module=_MLP, into=f"{_MLP}.act_fn"),
            GuiltyEdge(module=_MLP, into=f"{_MLP}.down_proj"),
        ),
        checks=(Check.WIRING,),
        families=_ALL_FAMILIES,
    ),
    Expectation(
        fault="weight-row:row=40,factor=1.02",
        guilty=(GuiltyEdge(module=f"{_MLP}.up_proj"),),
        checks=(Check.PARAMETER,),
        signature="factor",
        families=_ALL_FAMILIES,
    ),
    Expectation(
        fault="kernel-row:row=40,factor=1.02",
        guilty=(GuiltyEdge(module=f"{_MLP}.up_proj"),),
        checks=(Check.FUNCTION,),
        families=_ALL_FAMILIES,
    ),
    Expectation(
        fault="rope-sign",
        guilty=_SCORES,
        checks=(Check.WIRING,),
        families=_ALL_FAMILIES,
    ),
    Expectation(
        fault="rope-theta:theta=50000",
        guilty=_ROTARY,
        checks=(Check.PARAMETER,),
        families=_ALL_FAMILIES,
    ),
    Expectation(
        fault="rope-interleaved",
        guilty=_SCORES,
        checks=(Check.WIRING,),
        families=_ALL_FAMILIES,
    ),
    Expectation(
        fault="rope-bf16-frequencies",
        guilty=_ROTARY,
        checks=(Check.FUNCTION,),
        families=_ALL_FAMILIES,
    ),
    Expectation(
        fault="attn-no-softcap",
        guilty=_SCORES,
        checks=(Check.WIRING,),
        families=("gemma2",),
    ),
    Expectation(
        fault="head-is-embedding",
        guilty=(GuiltyEdge(module="lm_head"),),
        checks=(Check.FUNCTION,),
    ),
    Expectation(
        fault="layer-twice",
        guilty=(GuiltyEdge(module=f"{_ATTENTION}.q_proj"), GuiltyEdge(module="model.layers.{layer}.*")),
        checks=(Check.PARAMETER,),
        signature="other_parameter",
        families=_ALL_FAMILIES,
    ),
    Expectation(
        fault="kernel-scale:factor=1.001",
        guilty=(GuiltyEdge(module=f"{_ATTENTION}.v_proj"),),
        checks=(Check.FUNCTION,),
        signature="factor",
        families=_ALL_FAMILIES,
    ),
    Expectation(
        fault="tp-bias-every-rank",
        guilty=(GuiltyEdge(module=f"{_ATTENTION}.o_proj"),),
        checks=(Check.FUNCTION,),
        signature="bias_per_rank",
        families=("llama",),
        biases=True,
        tp=2,
    ),
    Expectation(
        fault="tp-heads-in-turn",
        guilty=tuple(GuiltyEdge(module=f"{_ATTENTION}.{name}_proj") for name in "qkv"),
        checks=(Check.PARAMETER,),
        signature="permutation",
        families=_ALL_FAMILIES,
        tp=2,
    ),
    Expectation(
        fault="tp-reduced-twice",
        guilty=(GuiltyEdge(module=f"{_MLP}.down_proj"),),
        checks=(Check.FUNCTION,),
        signature="double_reduction",
        families=_ALL_FAMILIES,
        tp=2,
    ),
    Expectation(
        fault="norm-eps:eps=1e-5,rank=1",
        guilty=(GuiltyEdge(module=_NORM),),
        checks=(Check.FUNCTION,),
        stimulus=Stimulus.SMALL,
        tp=2,
    ),
    Expectation(
        # Rounding to bf16 hides it, but what the ranks hold is no longer the same.
        fault="norm-eps:eps=1e-3,rank=1",
        guilty=(GuiltyEdge(module=_NORM),),
        checks=(Check.REPLICA, Check.FUNCTION),
        tp=2,
    ),
    Expectation(
        fault="weight-scale:factor=1.01,rank=1",
        guilty=(GuiltyEdge(module=f"{_MLP}.down_proj"),),
        checks=(Check.PARAMETER,),
        signature="factor",
        families=_ALL_FAMILIES,
        tp=2,
    ),
    Expectation(
        fault="tp-partial-scale:factor=1.01,rank=1",
        guilty=(GuiltyEdge(module=f"{_MLP}.down_proj"),),
        checks=(Check.PARTIAL,),
        signature="factor",
        families=_ALL_FAMILIES,
        tp=2,
    ),
)
