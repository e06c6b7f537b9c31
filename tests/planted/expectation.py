"""What must be said of a planted fault, and the stimulus that shows it.

Names hold `{layer}`, the layer that a fault is planted in, where it has one.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from tests.stimuli import Stimulus
from validator.checks.findings import Check, Finding, Verdict
from validator.faults import PlannedFault, parse
from validator.report.result import Result

__all__ = ["ATTENTION", "DENSE", "LAYERS", "MLP", "NORM", "ROTARY", "SCORES", "Expectation", "GuiltyEdge"]

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
        verdict: what the run must be called.
        families: models that can have the fault.
        dtypes: formats of the candidate in which it shows.
        stimulus: weights and inputs on which it shows.
        layers: those that it is planted in, one at a time, if it has a layer; the first one by default.
        biases: whether the projections must have biases.
        experts: implementation of both sides' experts.
        tp: ranks of the candidate.
        decode: how many tokens are fed one at a time to a cache.
    """

    fault: str
    guilty: tuple[GuiltyEdge, ...]
    checks: tuple[Check, ...]
    signature: str | None = None
    verdict: Verdict = Verdict.DIVERGENT
    families: tuple[str, ...] = ("llama", "qwen3")
    dtypes: tuple[str, ...] = ("bfloat16", "float16")
    stimulus: Stimulus = Stimulus.PEAKED
    layers: tuple[int, ...] = LAYERS
    biases: bool = False
    experts: str = "eager"
    tp: int = 1
    decode: int = 0

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

    def mistake(self, result: Result, layer: int) -> str:
        """Say what is wrong with a whole result, or "" if it says of the fault what it must."""
        first = self.first_mistake(next(iter(result.findings), None), layer)
        if first:
            return first
        if result.verdict is not self.verdict:
            return f"the verdict is {result.verdict}, not {self.verdict}"
        innocent = self.innocent(result.findings, layer)
        return f"also blamed: {innocent[0].summary}" if innocent else ""

    def innocent(self, findings: tuple[Finding, ...], layer: int) -> list[Finding]:
        """Return the findings that blame an edge which the fault did not spoil."""
        return [f for f in findings if not any(edge.covers(f, layer) for edge in self.guilty)]


NORM = "model.layers.{layer}.input_layernorm"
ATTENTION = "model.layers.{layer}.self_attn"
MLP = "model.layers.{layer}.mlp"

# An attention kernel that returns its probabilities has them as a second output.
SCORES = (GuiltyEdge(module=ATTENTION, into=f"{ATTENTION}.o_proj"), GuiltyEdge(module=ATTENTION))
ROTARY = (GuiltyEdge(module="model.rotary_emb"),)
DENSE = ("llama", "qwen3", "gemma2")
"""Families that most faults are tried in."""
