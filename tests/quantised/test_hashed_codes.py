"""Quantised weights of which a capture holds hashes of the codes alone, and layouts that are not known."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import validator
from tests.quantised.checkpoints import FORMATS, CodedLinear, inputs, port, write
from validator.capturing.reader import open_capture
from validator.errors import CaptureError
from validator.quantised import formats
from validator.quantised.captures import with_values
from validator.quantised.formats import obstacle, quantised_weights
from validator.streaming.models import streamed

MODULE = "model.layers.1.self_attn.o_proj"


def hashed(candidate: nn.Module, path: Path, limit_bytes: int = 64) -> Path:
    """Capture a candidate with hashes of all but the smallest parameters."""
    with validator.capture(candidate, path, parameter_limit_bytes=limit_bytes), torch.no_grad():
        candidate(**inputs())
    return path


def scales(candidate: nn.Module, module: str = MODULE) -> Tensor:
    own = dict(candidate.get_submodule(module).named_parameters())
    return next(own[name] for name in ("weight_scale_inv", "weight_scale") if name in own)


@pytest.mark.parametrize("fmt", FORMATS)
def test_hashes_of_codes_and_scales_are_those_of_the_checkpoint(tmp_path: Path, fmt: str) -> None:
    folder = write(tmp_path / "checkpoint", fmt)
    capture = hashed(port(folder, fmt), tmp_path / "candidate.h5")
    assert open_capture(capture).rank(0).parameters[f"{MODULE}.{codes_of(fmt)}"].row_hashes is not None
    result = validator.check(reference=streamed(folder), candidate=capture, inputs=inputs())
    assert result.verdict == "aligned", str(result)
    assert not result.to_json()["checked"]["unchecked"]
    assert result.to_json()["checked"]["parameter"] >= len(list(streamed(folder).parameters()))


@pytest.mark.parametrize("level", ["full", "sample"])
def test_a_wrong_scale_is_found_where_only_hashes_are_stored(tmp_path: Path, level: str) -> None:
    folder = write(tmp_path / "checkpoint", "fp8")
    said = []
    for is_faulty in (False, True):
        candidate = port(folder, "fp8")
        if is_faulty:
            scales(candidate).data[1] *= 1.25
        path = tmp_path / f"candidate{is_faulty}.h5"
        with (
            validator.capture(candidate, path, level=level, parameter_limit_bytes=64),
            torch.no_grad(),
        ):
            candidate(**inputs())
        said.append(validator.check(reference=streamed(folder), candidate=path, inputs=inputs()))
    healthy, faulty = said
    assert healthy.verdict == "aligned", str(healthy)
    assert not healthy.to_json()["checked"]["unchecked"]
    first = faulty.first_divergence
    assert first is not None
    assert (first.module, first.check, first.path) == (MODULE, "parameter", "weight")
    assert "differs in 32 of 64 rows (32, 33" in first.summary


@pytest.mark.parametrize("size", [112, 80], ids=["4 blocks that could be of 28", "3 blocks"])
def test_the_last_block_s_rows_are_those_that_its_scale_is_for(tmp_path: Path, size: int) -> None:
    folder = write(tmp_path / "checkpoint", "fp8", intermediate_size=size)
    candidate, module = port(folder, "fp8"), "model.layers.1.mlp.up_proj"
    scales(candidate, module).data[-1] *= 1.25
    capture = hashed(candidate, tmp_path / "candidate.h5", limit_bytes=1024)
    result = validator.check(reference=streamed(folder), candidate=capture, inputs=inputs())
    first = result.first_divergence
    assert first is not None
    assert (first.module, first.check, first.path) == (module, "parameter", "weight")
    assert f"differs in 16 of {size} rows ({size - 16}, {size - 15}" in first.summary


def test_hashed_codes_are_unchecked_against_a_reference_that_has_none(tmp_path: Path) -> None:
    folder = write(tmp_path / "checkpoint", "int8")
    reference = streamed(folder)
    dense = type(reference)(reference.config).eval()  # type: ignore[call-arg]
    dense.load_state_dict({name: tensor + 0 for name, tensor in reference.state_dict().items()})
    capture = hashed(port(folder, "int8"), tmp_path / "candidate.h5")
    result = validator.check(reference=dense, candidate=capture, inputs=inputs())
    assert result.verdict == "aligned", str(result)
    why = {item["why"] for item in result.to_json()["checked"]["unchecked"]}
    assert len(why) == 1
    assert "only hashes of its codes and scales are stored" in why.pop()


def fused(candidate: nn.Module) -> None:
    """Keep three scales for the rows of a projection, as engines do that fuse three into one."""
    module = candidate.get_submodule(MODULE)
    assert isinstance(module, CodedLinear)
    module.weight_scale = nn.Parameter(torch.ones(3), requires_grad=False)


def renamed(candidate: nn.Module) -> None:
    module = candidate.get_submodule(MODULE)
    module.register_parameter("scales", module._parameters.pop("weight_scale"))


@pytest.mark.parametrize("change", [fused, renamed])
def test_scales_of_an_unknown_layout_leave_a_weight_unchecked(
    tmp_path: Path, change: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "checkpoint", "int8")
    candidate = port(folder, "int8")
    module = candidate.get_submodule(MODULE)
    values = module.values()  # type: ignore[operator]
    monkeypatch.setattr(module, "values", lambda: values)
    change(candidate)  # type: ignore[operator]
    result = validator.check(reference=streamed(folder), candidate=candidate, inputs=inputs())
    assert result.verdict == "aligned", str(result)
    (left,) = result.to_json()["checked"]["unchecked"]
    assert left["module"] == MODULE
    assert "the format of model.layers.1.self_attn.o_proj.weight is not known" in left["why"]


def test_hashed_codes_that_two_scales_fit_are_unchecked(tmp_path: Path) -> None:
    folder = write(tmp_path / "checkpoint", "fp8")
    candidate = port(folder, "fp8")
    rows = nn.Parameter(torch.ones(64, 1), requires_grad=False)
    candidate.get_submodule(MODULE).register_parameter("weight_scale", rows)
    capture = hashed(candidate, tmp_path / "candidate.h5")
    result = validator.check(reference=streamed(folder), candidate=capture, inputs=inputs())
    assert result.verdict == "aligned", str(result)
    (left,) = result.to_json()["checked"]["unchecked"]
    assert left["module"] == MODULE
    assert "don't tell by which of two scales they are read" in left["why"]


def test_a_library_that_is_missing_leaves_weights_unchecked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "checkpoint", "int8")
    capture = hashed(port(folder, "int8"), tmp_path / "candidate.h5", limit_bytes=1 << 20)
    monkeypatch.setitem(formats._HOMES, "int8", "no_such_library")
    (read,) = with_values([open_capture(capture).rank(0)])
    weight = read.parameters[f"{MODULE}.weight"]
    with pytest.raises(CaptureError, match=r"need the library that defines their format .*pip install"):
        weight.ref.read()


def test_layouts_that_are_known_have_no_obstacle() -> None:
    def why(kind: str, codes: tuple[int, ...], scale: tuple[int, ...], **others: tuple[int, ...]) -> str:
        return obstacle(kind, {"codes": codes, "scale": scale, **others})

    for scale in ((), (1,), (64,), (64, 1), (2, 3), (2, 1)):
        assert not why("fp8", (64, 96), scale)
    for scale in ((3,), (5, 3), (2, 1, 3)):
        assert "is no layout that is known of fp8" in why("fp8", (64, 96), scale)
    assert not why("packed", (64, 12), (64, 3), shape=(64, 96))
    assert not why("packed", (64, 24), (64, 3), shape=(64, 96))
    assert why("packed", (64, 6), (64, 3), shape=(64, 96))
    assert why("packed", (64, 12), (64, 5), shape=(64, 96))
    assert not why("mxfp4", (4, 64, 3, 16), (4, 64, 3))
    assert why("mxfp4", (4, 64, 3, 16), (4, 3, 64))


def test_codes_without_a_scale_of_a_known_name_are_told_apart_from_values() -> None:
    (found,) = quantised_weights({"weight": "int8", "scales": "float32"})
    assert found.kind == "unknown"
    (found,) = quantised_weights({"weight": "float8_e4m3fn", "scales": "float32"})
    assert found.kind == "unknown"
    assert not quantised_weights({"weight": "float8_e4m3fn", "input_scale": "float32"})


def codes_of(fmt: str) -> str:
    return "weight_packed" if fmt.startswith("int4") else "weight"
