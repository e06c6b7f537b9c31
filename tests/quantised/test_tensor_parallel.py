"""Quantised checkpoints on two ranks, judged by a reference that is streamed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers.distributed import DistributedConfig

import validator
from tests.quantised.checkpoints import LEFT_DENSE, inputs, port, write
from tests.ranks import RankPool
from validator.capturing.session import capture_run
from validator.pretrained import load
from validator.report.result import Result
from validator.streaming.models import streamed
from validator.wrapping import wrap

Pool = Callable[[int], RankPool]
Fault = Callable[[int, nn.Module], None]

WHOLE_BLOCKS = {"num_key_value_heads": 4, "intermediate_size": 128}
"""Sizes of which each of two ranks gets whole blocks."""

BY_COLUMNS = ("o_proj", LEFT_DENSE)
MODULE = "model.layers.1.self_attn.o_proj"


def planned(folder: Path, fmt: str) -> nn.Module:
    """Return the model that transformers dequantises and shards by its own plan as it loads."""
    sharding = DistributedConfig(tp_plan="auto", tp_size=dist.get_world_size())
    return load(folder, dtype=torch.bfloat16, distributed_config=sharding)


def coded(folder: Path, fmt: str) -> nn.Module:
    """Return a model that computes with the codes of its own half of each layer, in plain tensors."""
    model = port(folder, fmt)
    for name, module in model.named_modules():
        is_by_columns = name.endswith(BY_COLUMNS)
        if (isinstance(module, nn.Linear) and not is_by_columns) or "layers" not in name:
            continue
        for part, tensor in list(module.named_parameters(recurse=False)):
            if name.endswith("_proj") and part != "weight_shape":
                module.register_parameter(part, _half(tensor, 1 if is_by_columns else 0))
        if is_by_columns:
            wrap(module, _summed)
    return model


def _half(tensor: Tensor, dim: int) -> nn.Parameter:
    """Return this rank's half along a dim, or all of what is one scale for it."""
    own = tensor if tensor.shape[dim] == 1 else tensor.chunk(dist.get_world_size(), dim)[dist.get_rank()]
    return nn.Parameter(own.clone(), requires_grad=False)


def _summed(inner: Any, x: Tensor) -> Tensor:
    term: Tensor = inner(x)
    dist.all_reduce(term)
    return term


def captured(
    pool: Pool, make: Callable[[Path, str], nn.Module], folder: Path, fmt: str, fault: Fault | None = None
) -> Path:
    """Run a candidate on two ranks, and return the path of its capture."""
    path = folder.with_name("candidate")
    pool(2).run(_capture, make, folder, fmt, path, fault, timeout_s=300)
    return path


def _capture(
    rank: int,
    world_size: int,
    make: Callable[[Path, str], nn.Module],
    folder: Path,
    fmt: str,
    output: Path,
    fault: Fault | None,
) -> None:
    model = make(folder, fmt).eval()
    if fault is not None:
        with torch.no_grad():
            fault(rank, model)
    given = inputs()
    capture_run(lambda: model(**given), model, output, inputs=given)


def wrong_weight(rank: int, model: nn.Module) -> None:
    """Make three rows of the second rank's half 6% too large."""
    weight: Any = model.get_parameter(f"{MODULE}.weight")
    weight.to_local()[5:8] *= 1.0 + rank / 16


def wrong_scale(rank: int, model: nn.Module) -> None:
    model.get_parameter(f"{MODULE}.weight_scale")[5] *= 1.0 + rank / 16


def wrong_block(rank: int, model: nn.Module) -> None:
    model.get_parameter(f"{MODULE}.weight_scale_inv")[1] *= 1.0 + rank / 16


def assert_aligned(result: Result) -> None:
    assert result.verdict == "aligned", str(result)
    assert not result.to_json()["checked"]["unchecked"]


def assert_on_second_rank(result: Result) -> None:
    assert {finding["module"] for finding in result.to_json()["findings"]} == {MODULE}, str(result)
    first = result.first_divergence
    assert first is not None
    assert (first.check, first.path, first.rank) == ("parameter", "weight", 1)


def test_a_healthy_plan_is_aligned_and_a_wrong_weight_is_found_on_its_rank_streamed_or_not(
    tmp_path: Path, rank_pool: Pool
) -> None:
    folder = write(tmp_path / "checkpoint", "fp8", **WHOLE_BLOCKS)
    healthy = captured(rank_pool, planned, folder, "fp8")
    assert_aligned(validator.check(reference=streamed(folder), candidate=healthy, inputs=inputs()))
    faulty = captured(
        rank_pool,
        planned,
        write(tmp_path / "again" / "checkpoint", "fp8", **WHOLE_BLOCKS),
        "fp8",
        wrong_weight,
    )
    by_streamed, by_loaded = (
        validator.check(reference=reference, candidate=faulty, inputs=inputs())
        for reference in (streamed(folder), load(folder, dtype=torch.float32))
    )
    assert_on_second_rank(by_streamed)
    assert by_streamed.to_json() == by_loaded.to_json()


def test_packed_codes_of_both_halves_are_judged_together(tmp_path: Path, rank_pool: Pool) -> None:
    folder = write(tmp_path / "checkpoint", "packed-int8", **WHOLE_BLOCKS)
    path = captured(rank_pool, coded, folder, "packed-int8")
    assert_aligned(validator.check(reference=streamed(folder), candidate=path, inputs=inputs()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fmt", "fault"),
    [("fp8", wrong_block), ("int8", wrong_scale), ("int4", wrong_scale), ("packed-int8", wrong_scale)],
)
def test_a_wrong_scale_of_one_rank_is_found_there(
    tmp_path: Path, rank_pool: Pool, fmt: str, fault: Fault
) -> None:
    folder = write(tmp_path / "checkpoint", fmt, **WHOLE_BLOCKS)
    path = captured(rank_pool, coded, folder, fmt, fault)
    assert_on_second_rank(validator.check(reference=streamed(folder), candidate=path, inputs=inputs()))


@pytest.mark.slow
@pytest.mark.parametrize("fmt", ["fp8", "int8", "int4"])
def test_codes_of_other_formats_are_judged_together(tmp_path: Path, rank_pool: Pool, fmt: str) -> None:
    folder = write(tmp_path / "checkpoint", fmt, **WHOLE_BLOCKS)
    path = captured(rank_pool, coded, folder, fmt)
    assert_aligned(validator.check(reference=streamed(folder), candidate=path, inputs=inputs()))
