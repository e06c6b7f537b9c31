"""Ports that compute with quantised weights: healthy ones are aligned, wrong scales and codes are named."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import validator
from tests.quantised.checkpoints import FORMATS, GROUP, CodedLinear, inputs, port, write
from validator.errors import TargetError
from validator.numerics.block_formats import MXFP4, BlockScaled, dequantise, unpack_float4
from validator.numerics.recipes import Recipe
from validator.quantised.formats import dequantised, quantised_weights
from validator.streaming.models import streamed


@pytest.mark.parametrize("fmt", FORMATS)
def test_the_reference_has_each_code_times_its_scale(tmp_path: Path, fmt: str) -> None:
    folder = write(tmp_path, fmt)
    reference = streamed(folder)
    coded = {name: m for name, m in port(folder, fmt).named_modules() if isinstance(m, CodedLinear)}
    assert len(coded) == 12
    for name, module in coded.items():
        assert torch.equal(reference.get_parameter(f"{name}.weight").data, module.values()), name


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_healthy_port_is_aligned(tmp_path: Path, fmt: str) -> None:
    folder = write(tmp_path, fmt)
    result = validator.check(reference=streamed(folder), candidate=port(folder, fmt), inputs=inputs())
    assert result.verdict == "aligned", str(result)
    assert result.to_json()["checked"]["parameter"] >= len(list(streamed(folder).parameters()))


@pytest.mark.parametrize("size", [112, 80], ids=["4 blocks that could be of 28", "3 blocks"])
def test_last_blocks_may_be_shorter_than_the_others(tmp_path: Path, size: int) -> None:
    folder = write(tmp_path, "fp8", intermediate_size=size)
    reference, candidate = streamed(folder), port(folder, "fp8")
    name = "model.layers.1.mlp.up_proj"
    module = candidate.get_submodule(name)
    assert isinstance(module, CodedLinear)
    assert torch.equal(reference.get_parameter(f"{name}.weight").data, module.values())
    healthy = validator.check(reference=reference, candidate=candidate, inputs=inputs())
    assert healthy.verdict == "aligned", str(healthy)
    assert healthy.to_json()["checked"]["parameter"] >= len(list(reference.parameters()))
    with torch.no_grad():
        module.weight_scale_inv[-1] *= 1.25
    first = validator.check(reference=reference, candidate=candidate, inputs=inputs()).first_divergence
    assert first is not None
    assert (first.module, first.check, first.path) == (name, "parameter", "weight")


def test_scales_of_no_blocks_end_in_the_error_of_the_library(tmp_path: Path) -> None:
    folder = write(tmp_path, "fp8")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[f"{name}_scale_inv"] = torch.ones(5, 2)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        TargetError, match=r"up_proj.weight: .*\(96, 64\) not divisible by scale grid \(5, 2\)"
    ):
        streamed(folder).get_parameter(name).sum()


def test_a_port_with_dequantised_weights_is_aligned(tmp_path: Path) -> None:
    folder = write(tmp_path, "int4")
    dense = streamed(folder, dtype=torch.bfloat16)
    result = validator.check(reference=streamed(folder), candidate=dense, inputs=inputs())
    assert result.verdict == "aligned", str(result)


class ScaledAfterwards(CodedLinear):
    """Multiplies with the codes, and applies a row's scale to the sum."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name that nn.Linear has
        own = dict(self.named_parameters())
        summed = torch.nn.functional.linear(input.float(), own["weight"].float())
        return (summed * own["weight_scale"].float().T).to(input.dtype)


def test_scales_that_are_applied_to_the_sum_are_declared(tmp_path: Path) -> None:
    folder = write(tmp_path, "int8")
    candidate = port(folder, "int8")
    for module in candidate.modules():
        if isinstance(module, CodedLinear):
            module.__class__ = ScaledAfterwards
    recipe = Recipe(name="scaled-sums", inner="storage", weights="float32")
    result = validator.check(reference=streamed(folder), candidate=candidate, inputs=inputs(), recipe=recipe)
    assert result.verdict == "aligned", str(result)


def test_codes_of_another_format_with_fitting_scales_are_the_same_weights(tmp_path: Path) -> None:
    folder = write(tmp_path, "fp8")
    candidate = port(folder, "fp8")
    for module in candidate.modules():
        if isinstance(module, CodedLinear):
            # The same bits are half as much, but for minus zero, which is NaN.
            codes = module.weight.view(torch.uint8)
            codes = codes.masked_fill(codes == 0x80, 0).view(torch.float8_e4m3fnuz)
            module.weight = torch.nn.Parameter(codes, requires_grad=False)
            module.weight_scale_inv.data *= 2
    result = validator.check(reference=streamed(folder), candidate=candidate, inputs=inputs())
    assert result.verdict == "aligned", str(result)


def nibbles(own: dict[str, Tensor]) -> None:
    words = own["weight_packed"]
    words.copy_(((words & 0x0F0F0F0F) << 4) | ((words >> 4) & 0x0F0F0F0F))


def next_group(own: dict[str, Tensor]) -> None:
    own["weight_scale"].copy_(own["weight_scale"].roll(1, dims=1))


def transposed(own: dict[str, Tensor]) -> None:
    own["weight_scale_inv"].copy_(own["weight_scale_inv"].T.clone())


def inverted(own: dict[str, Tensor]) -> None:
    own["weight_scale_inv"].reciprocal_()


def zero_points(own: dict[str, Tensor]) -> None:
    """Move the zero points of every eighth row by one."""
    own["weight_zero_point"].bitwise_xor_(1)


def one_row(own: dict[str, Tensor]) -> None:
    own["weight_scale"][5] *= 1.0625


@pytest.mark.parametrize(
    ("fmt", "module", "fault"),
    [
        ("int4", "model.layers.1.mlp.up_proj", nibbles),
        ("int4", "model.layers.0.self_attn.o_proj", next_group),
        ("int4-asymmetric", "model.layers.1.self_attn.k_proj", next_group),
        ("int4-asymmetric", "model.layers.0.mlp.gate_proj", zero_points),
        ("int8", "model.layers.1.mlp.gate_proj", one_row),
        ("fp8", "model.layers.0.self_attn.v_proj", inverted),
        ("fp8", "model.layers.1.self_attn.q_proj", transposed),
    ],
)
def test_wrong_codes_and_scales_are_found_where_they_are(
    tmp_path: Path, fmt: str, module: str, fault: Callable[[dict[str, Tensor]], None]
) -> None:
    folder = write(tmp_path, fmt)
    candidate = port(folder, fmt)
    with torch.no_grad():
        fault(dict(candidate.get_submodule(module).named_parameters()))
    result = validator.check(reference=streamed(folder), candidate=candidate, inputs=inputs())
    assert result.verdict == "divergent"
    assert {finding["module"] for finding in result.to_json()["findings"]} == {module}
    first = result.first_divergence
    assert first is not None
    assert (first.check, first.path) == ("parameter", "weight")


def test_mxfp4_is_dequantised_as_the_specification_has_it() -> None:
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(256, (2, 6, 2, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(110, 140, (2, 6, 2), dtype=torch.uint8, generator=generator)
    codes = unpack_float4(blocks).flatten(-2)
    expected = dequantise(BlockScaled(fmt=MXFP4, codes=codes, scales=scales)).mT
    made = dequantised("mxfp4", {"codes": blocks, "scale": scales})
    assert torch.equal(made.to(torch.float64), expected)


def test_tensors_of_other_names_are_no_quantised_weights() -> None:
    assert not quantised_weights({"weight": "bfloat16", "weight_scale": "bfloat16", "bias": "bfloat16"})
    assert not quantised_weights({"weight": "float8_e4m3fn"})
    assert not quantised_weights({"weight_packed": "int32", "weight_scale": "bfloat16"})
    (found,) = quantised_weights({"weight": "float8_e4m3fn", "weight_scale": "float32"})
    assert (found.kind, found.name, GROUP) == ("fp8", "weight", 32)
