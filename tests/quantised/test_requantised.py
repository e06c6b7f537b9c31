"""Ports that quantise weights anew as they load them: declared they are aligned, undeclared that is said."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import validator
from tests.quantised.checkpoints import CodedLinear, encode, inputs, port, write
from validator.checks.findings import Verdict
from validator.errors import UsageError
from validator.numerics.recipes import Recipe
from validator.streaming.models import streamed

MODULE = "model.layers.1.mlp.up_proj"
WAYS = [("fp8", "float8_e4m3fn", False), ("int4", "int8", False), ("fp8", "float8_e4m3fn", True)]


def requantised(folder: Path, fmt: str, into: str, *, keeps_scale: bool = False) -> nn.Module:
    """Return a port whose weights were dequantised to bfloat16, and then quantised with one scale a row.

    Args:
        folder: the checkpoint.
        fmt: its format.
        into: the port's.
        keeps_scale: whether the checkpoint's scale of blocks stays beside that of rows.
    """
    candidate = port(folder, fmt)
    for module in candidate.modules():
        if isinstance(module, CodedLinear):
            values = module.values().to(torch.bfloat16).float()
            left = {"weight_scale_inv": module.weight_scale_inv} if keeps_scale else {}
            module._parameters.clear()
            for name, part in (coded_by_row(values, into) | left).items():
                module.register_parameter(name, nn.Parameter(part, requires_grad=False))
            module._format = "int8"  # a code times its row's scale
    return candidate


def coded_by_row(weight_NK: Tensor, into: str) -> dict[str, Tensor]:
    if into == "int8":
        return encode(weight_NK, "int8")
    scale = weight_NK.abs().amax(1, keepdim=True) / 448
    return {"weight": (weight_NK / scale).to(torch.float8_e4m3fn), "weight_scale": scale}


@pytest.mark.parametrize(("fmt", "into", "keeps_scale"), WAYS, ids=["fp8", "int4", "fp8-both-scales"])
def test_weights_that_are_quantised_anew_must_be_declared(
    tmp_path: Path, fmt: str, into: str, keeps_scale: bool
) -> None:
    folder = write(tmp_path, fmt)
    reference, candidate = streamed(folder), requantised(folder, fmt, into, keeps_scale=keeps_scale)
    recipe = Recipe(name="requantised", inner="storage", requantised=into)
    declared = validator.check(reference=reference, candidate=candidate, inputs=inputs(), recipe=recipe)
    assert declared.verdict == "aligned", str(declared)

    undeclared = validator.check(reference=reference, candidate=candidate, inputs=inputs())
    assert undeclared.verdict == "undeclared_precision"
    findings = undeclared.to_json()["findings"]
    assert {(f["check"], f["verdict"]) for f in findings} == {("parameter", Verdict.UNDECLARED_PRECISION)}
    assert len(findings) == sum(isinstance(module, CodedLinear) for module in candidate.modules())
    assert f"was quantised anew to {into}" in findings[0]["summary"]
    assert f"Recipe(requantised={into!r}, ...)" in findings[0]["summary"]


def test_a_wrong_scale_is_found_where_weights_are_quantised_anew(tmp_path: Path) -> None:
    folder = write(tmp_path, "int4")
    candidate = requantised(folder, "int4", "int8")
    candidate.get_parameter(f"{MODULE}.weight_scale").data[5] *= 1.0625
    recipe = Recipe(name="requantised", inner="storage", requantised="int8")
    result = validator.check(reference=streamed(folder), candidate=candidate, inputs=inputs(), recipe=recipe)
    assert result.verdict == "divergent"
    assert {finding["module"] for finding in result.to_json()["findings"]} == {MODULE}
    first = result.first_divergence
    assert first is not None
    assert (first.check, first.path) == ("parameter", "weight")


def test_a_port_that_multiplies_by_the_scale_that_was_left_is_divergent(tmp_path: Path) -> None:
    folder = write(tmp_path, "fp8")
    candidate = requantised(folder, "fp8", "float8_e4m3fn", keeps_scale=True)
    module = candidate.get_submodule(MODULE)
    assert isinstance(module, CodedLinear)
    module._format = "fp8"
    recipe = Recipe(name="requantised", inner="storage", requantised="float8_e4m3fn")
    result = validator.check(reference=streamed(folder), candidate=candidate, inputs=inputs(), recipe=recipe)
    assert result.verdict == "divergent"
    assert {(f["module"], f["check"]) for f in result.to_json()["findings"]} == {(MODULE, "function")}


def test_a_second_scale_that_the_codes_do_not_belong_to_changes_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path, "int8")
    candidate = port(folder, "int8")
    scale = candidate.get_parameter(f"{MODULE}.weight_scale")
    inverted = nn.Parameter(scale.float().reciprocal(), requires_grad=False)
    candidate.get_submodule(MODULE).register_parameter("weight_scale_inv", inverted)
    result = validator.check(reference=streamed(folder), candidate=candidate, inputs=inputs())
    assert result.verdict == "aligned", str(result)


def test_a_scale_that_is_off_by_less_than_a_step_is_no_other_format(tmp_path: Path) -> None:
    folder = write(tmp_path, "int4")
    candidate = port(folder, "int4")
    scale = candidate.get_parameter(f"{MODULE}.weight_scale").data
    scale[3, 1] *= 1.0 + 2.0**-7
    result = validator.check(reference=streamed(folder), candidate=candidate, inputs=inputs())
    first = result.first_divergence
    assert first is not None
    assert (first.module, first.check, first.verdict) == (MODULE, "parameter", Verdict.DIVERGENT)


def test_a_format_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match=r"requantised='int5'.*legal are None, float8_e4m3fn"):
        Recipe(name="mine", requantised="int5")
