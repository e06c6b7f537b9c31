"""Which dims of a mixture of experts are along the experts: of the models that transformers has."""

from functools import cache

import pytest
import torch
import transformers
from torch import Tensor, nn

from tests.checks.build import captured
from tests.families import FAMILIES
from validator.align.builder import build_trace
from validator.align.mixtures import find_mixtures
from validator.align.traces import Trace

BATCH, TOKENS, EXPERTS, CHOSEN, WIDTH = 2, 6, 8, 2, 64
ROWS = BATCH * TOKENS


@cache
def trace_of(family: str) -> Trace:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[family].config(False)).eval()
    ids = torch.arange(ROWS).reshape(BATCH, TOKENS)
    run = captured(model, {"input_ids": ids, "use_cache": False})
    return build_trace(cand=[run], ref=run)


@pytest.mark.parametrize("family", ["qwen3-moe", "qwen2-moe", "mixtral", "deepseek-v3", "gpt-oss"])
def test_only_what_is_of_every_expert_is_along_the_experts(family: str) -> None:
    trace = trace_of(family)
    mlp = "model.layers.1.mlp"
    (router,) = (call for call in trace.calls.values() if call.module in (f"{mlp}.gate", f"{mlp}.router"))
    assert {edge.dims for edge in router.inputs.values()} <= {
        ("token", "channel"),
        ("batch", "token", "channel"),
    }
    assert [(edge.shape, edge.dims) for edge in router.outputs.values()] == [
        ((ROWS, EXPERTS), ("token", "expert")),
        ((ROWS, CHOSEN), ("token", "")),
        ((ROWS, CHOSEN), ("token", "")),
    ]
    inputs = trace.calls[f"{mlp}.experts", 0].inputs.values()
    assert sorted((edge.shape, edge.dims) for edge in inputs) == [
        ((ROWS, CHOSEN), ("token", "")),
        ((ROWS, CHOSEN), ("token", "")),
        ((ROWS, WIDTH), ("token", "channel")),
    ]
    outside = [call for call in trace.calls.values() if call.module != router.module]
    of_blocks = [edge for call in outside if call.module.endswith("mlp") for edge in call.outputs.values()]
    slots = {edge.dims for edge in of_blocks if edge.shape[-1] == CHOSEN}
    assert slots == ({("token", "")} if family == "gpt-oss" else set())
    named = {call.module for call in outside for edge in call.outputs.values() if "expert" in edge.dims}
    assert named <= {module.replace(".1.", f".{n}.") for module in (router.module,) for n in range(4)}


@pytest.mark.parametrize("family", ["qwen3-moe", "qwen2-moe", "mixtral", "deepseek-v3", "gpt-oss"])
def test_only_weights_of_all_experts_are_along_the_experts(family: str) -> None:
    trace = trace_of(family)
    along = {name: edge.dims[0] for name, edge in trace.parameters.items() if ".layers.1." in name}
    mixture = {name for name in along if any(part in name for part in (".experts.", ".gate.", ".router."))}
    assert {name for name, dim in along.items() if dim == "expert"} == mixture
    assert len(mixture) >= 3
    assert {edge.dims[1:] for edge in trace.parameters.values()} <= {(), ("",), ("", "")}


class Router(nn.Linear):
    """Scores as many experts as its input has channels."""

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        scores = super().forward(hidden)
        return scores, scores.topk(CHOSEN).indices


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.conv = Router(EXPERTS, EXPERTS), nn.Conv1d(EXPERTS, EXPERTS, 3, padding=1)

    def forward(self, hidden: Tensor) -> Tensor:
        scores, _ = self.router(hidden)
        mixed: Tensor = hidden * scores.softmax(-1) + self.conv(hidden.mT).mT
        return mixed


def test_neither_channels_of_a_routers_input_nor_those_of_a_convolution_are_experts() -> None:
    run = captured(Mixer(), {"hidden": torch.randn(BATCH, TOKENS, EXPERTS)})
    found = find_mixtures(run)
    assert (found.routers, found.stacks) == ({"router": EXPERTS}, {})
    trace = build_trace(cand=[run], ref=run)
    router = trace.calls["router", 0]
    assert [edge.dims[-1] for edge in router.inputs.values()] == ["channel"]
    assert [edge.dims[-1] for edge in router.outputs.values()] == ["expert", ""]
    assert trace.parameters["conv.weight"].dims == ("channel", "", "")
    assert trace.calls["", 0].outputs[""].dims[-1] == "channel"


def test_the_scores_that_a_model_returns_of_its_layers_are_along_the_experts() -> None:
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES["mixtral"].config(False)).eval()
    ids = torch.arange(ROWS).reshape(BATCH, TOKENS)
    run = captured(model, {"input_ids": ids, "output_router_logits": True, "use_cache": False})
    outputs = build_trace(cand=[run], ref=run).calls["", 0].outputs
    of_layers = [edge.dims for path, edge in outputs.items() if "router_logits" in path]
    assert of_layers == [("token", "expert")] * 4
    assert outputs["logits"].dims == ("batch", "token", "channel")
