"""Every family: a healthy port is aligned, and one planted fault is named at its edge and nowhere before."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

import validator
from tests.families import FAMILIES
from tests.models import KERNELS, Setup, checkpoint, inputs, load_candidate, load_reference
from tests.planted import FAULTS as REGISTRY
from tests.selecting import cases
from validator.checks.findings import Verdict

# The smallest model, with four mixers, has 103.
FEWEST_EDGES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A fault of one family.

    Attributes:
        spoil: plants it in the candidate.
        module: that must be named first.
        into: the child whose input is spoilt, or None for an output of `module`.
    """

    spoil: Callable[[nn.Module], None]
    module: str
    into: str | None = None


def _channel(module: str) -> Planted:
    """Return a fault of a kernel: the first channel comes out 2% too large."""

    def too_large(_: nn.Module, args: Any, output: Tensor) -> Tensor:
        output = output.clone()
        output[..., 0] *= 1.02
        return output

    def spoil(model: nn.Module) -> None:
        model.get_submodule(module).register_forward_hook(too_large)

    return Planted(spoil=spoil, module=module)


def _attribute(owner: str, name: str, value: Any, module: str, into: str | None = None) -> Planted:
    """Return a fault of the code between modules: a number in it is another one."""

    def spoil(model: nn.Module) -> None:
        assert hasattr(model.get_submodule(owner), name)
        setattr(model.get_submodule(owner), name, value)

    return Planted(spoil=spoil, module=module, into=into)


_LAYER = "model.layers.2"
_MIXER = "backbone.layers.2.mixer"
_ATTENTION = "bert.encoder.layer.2.attention"
_BLOCK = "model.visual.blocks.2.attn"

FAULTS = {
    # Heads have 16 channels: scores are multiplied by 1/4, here by 1% more.
    "bert": _attribute(f"{_ATTENTION}.self", "scaling", 1.01 / 4, f"{_ATTENTION}.self"),
    "deepseek-v3": _channel(f"{_LAYER}.self_attn.kv_a_layernorm"),
    "gemma2": _channel(f"{_LAYER}.post_feedforward_layernorm"),
    "gpt-oss": _channel(f"{_LAYER}.self_attn.o_proj"),
    "granite": _attribute(_LAYER, "residual_multiplier", 0.52, _LAYER, f"{_LAYER}.post_attention_layernorm"),
    "llama": _channel(f"{_LAYER}.mlp.up_proj"),
    "llama3": _channel(f"{_LAYER}.mlp.gate_proj"),
    "mamba2": _attribute(_MIXER, "time_step_limit", (0.0, 0.5), _MIXER, f"{_MIXER}.norm"),
    "mixtral": _channel(f"{_LAYER}.self_attn.q_proj"),
    "olmo2": _channel(f"{_LAYER}.self_attn.q_norm"),
    "qwen2": _channel(f"{_LAYER}.self_attn.k_proj"),
    "qwen2-moe": _channel(f"{_LAYER}.mlp.shared_expert.down_proj"),
    "qwen2.5-vl": _attribute(_BLOCK, "scaling", 1.01 / 4, _BLOCK, f"{_BLOCK}.proj"),
    "qwen3": _channel(f"{_LAYER}.self_attn.k_norm"),
    "qwen3-moe": _channel(f"{_LAYER}.input_layernorm"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def setup_of(family: str) -> Setup:
    return Setup(family=family, batch=1, cand_kernel=KERNELS[family][0])


def judged(setup: Setup, path: Path, spoil: Callable[[nn.Module], None] | None = None) -> Any:
    candidate = load_candidate(setup, path)
    if spoil is not None:
        spoil(candidate)
    return validator.check(reference=load_reference(setup, path), candidate=candidate, inputs=inputs(setup))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_healthy_port_of_every_family_is_aligned(family: str, folder: Path) -> None:
    setup = setup_of(family)
    result = judged(setup, checkpoint(setup, folder))
    assert [finding.summary for finding in result.findings] == []
    assert result.verdict is Verdict.ALIGNED, result.outcome.why_inconclusive
    assert len(result.outcome.judgements) > FEWEST_EDGES


# Those of the other families have the registry's faults in `test_faults`.
HAVE_NO_OTHER = {family for family in FAMILIES if not any(family in fault.families for fault in REGISTRY)}


@pytest.mark.parametrize("family", cases(FAMILIES, quick=HAVE_NO_OTHER.__contains__))
def test_a_fault_in_every_family_is_named_first_at_its_edge(family: str, folder: Path) -> None:
    setup, planted = setup_of(family), FAULTS[family]
    result = judged(setup, checkpoint(setup, folder), planted.spoil)
    assert result.verdict is Verdict.DIVERGENT
    first = result.first_divergence
    assert first is not None
    assert (first.module, first.into) == (planted.module, planted.into), first.summary
