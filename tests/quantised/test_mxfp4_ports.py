"""Ports that compute with MXFP4 codes: healthy ones are aligned, wrong exponents and nibbles are named."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import validator
from tests.quantised.mxfp4 import QUANTISED, inputs, port, write
from validator.streaming.models import streamed

EXPERTS = "model.layers.1.mlp.experts"


def test_the_reference_has_each_code_times_its_scale(tmp_path: Path) -> None:
    folder = write(tmp_path)
    reference, experts = streamed(folder), port(folder).model.layers[1].mlp.experts
    for name in QUANTISED:
        made = torch.stack([experts.matrix(name, expert) for expert in range(4)])
        assert torch.equal(reference.get_parameter(f"{EXPERTS}.{name}").data, made.float())


def test_a_healthy_port_is_aligned(tmp_path: Path) -> None:
    folder = write(tmp_path)
    result = validator.check(reference=streamed(folder), candidate=port(folder), inputs=inputs())
    assert result.verdict == "aligned", str(result)
    assert not result.to_json()["checked"]["unchecked"]


def one_exponent(own: dict[str, Tensor]) -> None:
    """Double one group of 32 weights."""
    own["gate_up_proj_scales"][2, 5, 1] += 1


def all_exponents(own: dict[str, Tensor]) -> None:
    own["down_proj_scales"] += 1


def nibbles(own: dict[str, Tensor]) -> None:
    blocks = own["down_proj_blocks"]
    blocks.copy_((blocks << 4) | (blocks >> 4))


def next_group(own: dict[str, Tensor]) -> None:
    own["gate_up_proj_scales"].copy_(own["gate_up_proj_scales"].roll(1, dims=2))


@pytest.mark.parametrize(
    ("fault", "weight"),
    [
        (one_exponent, "gate_up_proj"),
        (all_exponents, "down_proj"),
        (nibbles, "down_proj"),
        (next_group, "gate_up_proj"),
    ],
)
def test_wrong_codes_and_scales_are_found_where_they_are(
    tmp_path: Path, fault: Callable[[dict[str, Tensor]], None], weight: str
) -> None:
    folder = write(tmp_path)
    candidate = port(folder)
    with torch.no_grad():
        fault(dict(candidate.get_submodule(EXPERTS).named_parameters()))
    result = validator.check(reference=streamed(folder), candidate=candidate, inputs=inputs())
    assert result.verdict == "divergent"
    assert {finding["module"] for finding in result.to_json()["findings"]} == {EXPERTS}
    first = result.first_divergence
    assert first is not None
    assert (first.check, first.path) == ("parameter", weight)
