"""Trained weights, so that a block's part in the model's divergence is that of a real model."""

import json
from pathlib import Path

import jsonschema
import pytest

from validator.errors import UsageError
from validator.report.json_report import schema
from validator.report.swaps import SwapResult
from validator.swapping.module_swaps import swap_modules

PORT = """
import torch
from transformers import AutoModelForCausalLM
from validator.content import find_model

SPOILED, SHARE = (), 0.0

def load(dtype, kernel):
    return AutoModelForCausalLM.from_pretrained(
        find_model("tiny-dense"), dtype=dtype, attn_implementation=kernel
    )

def reference():
    return load(torch.float32, "eager")

def candidate():
    model = load(torch.bfloat16, "sdpa")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for layer in SPOILED:
            for parameter in model.model.layers[layer].parameters():
                if parameter.ndim == 2:
                    noise = torch.randn(parameter.shape, generator=generator)
                    parameter.add_(SHARE * parameter.std() * noise)
    return model

def inputs():
    return {"input_ids": torch.tensor([list(b"import torch\\nfrom torch import nn")])}
"""
SPOILED = "\nSPOILED, SHARE = (0, 2), 0.1\n"


def port(folder: Path, changes: str = "") -> str:
    path = folder / "port.py"
    path.write_text(PORT + changes, encoding="utf-8")
    return str(path)


def validate(result: SwapResult) -> None:
    document = json.loads(json.dumps(result.to_json(), allow_nan=False))
    jsonschema.validate(document, schema(), cls=jsonschema.Draft202012Validator)


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory: pytest.TempPathFactory) -> SwapResult:
    return SwapResult(swap_modules(port(tmp_path_factory.mktemp("spoiled"), SPOILED)))


def test_of_two_blocks_that_are_spoiled_a_little_both_are_found(spoiled: SwapResult) -> None:
    swap = spoiled.swap
    blocks = swap.levels[0]
    assert {member.item for member in blocks.found.members} == {"model.layers.0", "model.layers.2"}
    assert all(member.alone < blocks.found.limit for member in blocks.found.members)
    assert blocks.found.is_smallest
    assert swap.noise is not None
    assert blocks.found.rest <= swap.noise < swap.candidate
    assert (spoiled.verdict, spoiled.exit_code) == ("divergent", 1)


def test_only_modules_inside_of_these_are_found_then(spoiled: SwapResult) -> None:
    finest = spoiled.swap.found
    assert finest
    assert all(name.startswith(("model.layers.0.", "model.layers.2.")) for name in finest)
    for level in spoiled.swap.levels:
        assert level.found.value >= level.found.limit
        assert all(level.found.value - m.lost_from_set < level.found.limit for m in level.found.members)


def test_the_result_is_shown_saved_and_tabulated(spoiled: SwapResult, tmp_path: Path) -> None:
    text = str(spoiled)
    assert text.startswith("divergent: model.layers.")
    assert "together explain a mean KL of" in text.splitlines()[0]
    assert "2 blocks of 9" in text
    validate(spoiled)
    spoiled.write_json(tmp_path / "swap.json")
    assert json.loads((tmp_path / "swap.json").read_text())["set"] == list(spoiled.swap.found)
    frame = spoiled.to_frame()
    assert list(frame["name"][:2]) == [m.item for m in spoiled.swap.levels[0].found.members]
    assert len(frame) == sum(len(level.found.members) for level in spoiled.swap.levels)


@pytest.mark.parametrize("metric", ["kl", "perplexity"])
def test_nothing_is_blamed_in_a_healthy_port(metric: str, tmp_path: Path) -> None:
    result = SwapResult(swap_modules(port(tmp_path), metric=metric))
    assert (result.verdict, result.exit_code, result.swap.levels) == ("aligned", 0, ())
    assert 0 < result.swap.candidate < (result.swap.noise or 0.0)
    assert "is within what noise explains" in str(result)
    validate(result)


def test_a_flipped_token_is_explained_by_the_block_that_flips_it(tmp_path: Path) -> None:
    target = port(tmp_path, "\nSPOILED, SHARE = (1,), 1.0\n")
    with pytest.raises(UsageError) as refused:
        swap_modules(target, metric="token:0,9999")
    flipped = str(refused.value).rpartition(" are ")[2].split()
    place = flipped[0]
    result = SwapResult(swap_modules(target, metric=f"token:{place}", module="model.layers.*"))
    assert result.swap.levels[0].found.members[0].item == "model.layers.1"
    assert len(result.swap.levels[0].found.members) == 1
    assert f"the flipped token at [{place.replace(',', ', ')}]" in str(result)
    validate(result)


def test_below_the_limit_there_is_nothing_to_explain(tmp_path: Path) -> None:
    result = SwapResult(swap_modules(port(tmp_path, SPOILED), limit=10.0))
    assert (result.exit_code, result.swap.levels) == (0, ())
    assert "is below the limit of 10.0" in str(result)
    validate(result)


def test_several_ranks_can_not_be_mixed(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        swap_modules(port(tmp_path), nproc=2)
    assert "--nproc is 2" in str(refused.value)
    assert "--options FILE, which works on several" in str(refused.value)


def test_a_glob_that_matches_nothing_is_refused_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'\*attention' matches no module .* such as model, model"):
        swap_modules(port(tmp_path), module="*attention")
