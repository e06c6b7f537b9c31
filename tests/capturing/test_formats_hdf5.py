"""Every dtype comes back bit for bit, and viewers see numbers."""

import shutil
import subprocess

import h5py
import numpy as np
import pytest
import torch
from torch import nn

from validator.capturing.formats_hdf5 import CODE_TYPES, dtype_name, element_bytes, hdf5_type, torch_tensor
from validator.capturing.reader import open_capture
from validator.capturing.session import capture

NUMBERS = [
    "bool",
    "bfloat16",
    "complex32",
    "complex64",
    "complex128",
    "float16",
    "float32",
    "float64",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]
FLOAT8 = [name for name in NUMBERS if name.startswith("float8")]


class Identity(nn.Module):
    def forward(self, x):
        return x


def all_patterns(dtype):
    """Every bit pattern of a dtype of 1 or 2 bytes; random ones, NaN payloads among them, of a wider one."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if dtype.itemsize == 1:
        return torch.arange(256).to(torch.uint8).view(dtype)
    if dtype.itemsize == 2:
        return torch.arange(-32768, 32768).to(torch.int16).view(dtype)
    generator = torch.Generator().manual_seed(0)
    data = torch.randint(0, 256, (4096 * dtype.itemsize,), dtype=torch.uint8, generator=generator)
    return data.view(dtype)


def captured(path, tensor):
    model = Identity()
    with capture(model, path):
        model(tensor)
    return open_capture(path).rank(0).calls[0].outputs[""]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("name", [*NUMBERS, *CODE_TYPES])
def test_every_pattern_of_a_dtype_comes_back_bit_for_bit(tmp_path, name):
    tensor = all_patterns(getattr(torch, name))
    ref = captured(tmp_path / "x.h5", tensor)
    back = ref.read()
    assert back.dtype == tensor.dtype
    assert ref.meta.dtype == name == dtype_name(tensor.dtype)
    assert np.array_equal(element_bytes(back), element_bytes(tensor))


@pytest.mark.parametrize("large", [False, True], ids=["plain", "compressed"])
def test_viewers_see_bfloat16_as_the_numbers_that_it_holds(tmp_path, large):
    tensor = all_patterns(torch.bfloat16)
    tensor = tensor if large else tensor[: 1 << 14]
    captured(tmp_path / "x.h5", tensor)
    with h5py.File(tmp_path / "x.h5") as file:
        dataset = file["values/%root/inputs/x/%bfloat16" + (".large" if large else "")]
        assert dataset.dtype == np.float32
        assert np.array_equal(dataset[:], tensor.float().numpy(), equal_nan=True)
        assert dataset.attrs["dtype"] == "bfloat16"


@pytest.mark.parametrize("name", ["float8_e5m2", "float8_e4m3fn"])
def test_viewers_see_float8_below_its_top_exponent_as_the_numbers_that_it_holds(tmp_path, name):
    tensor = all_patterns(getattr(torch, name))
    captured(tmp_path / "x.h5", tensor)
    top = {"float8_e5m2": 0x7C, "float8_e4m3fn": 0x78}[name]
    ordinary = (torch.arange(256) & top != top).numpy()
    with h5py.File(tmp_path / "x.h5") as file:
        dataset = file[f"values/%root/inputs/x/%{name}"]
        assert dataset.attrs["dtype"] == name
        assert dataset.id.get_type().get_size() == 1
        assert np.array_equal(dataset[:][ordinary], tensor.float().numpy()[ordinary])


def test_h5dump_shows_bfloat16_as_numbers(tmp_path):
    if shutil.which("h5dump") is None:
        pytest.skip("h5dump is not installed (package hdf5-tools)")
    captured(tmp_path / "x.h5", torch.tensor([1.5, -2.0], dtype=torch.bfloat16))
    command = ["h5dump", "-d", "/values/%root/inputs/x/%bfloat16", str(tmp_path / "x.h5")]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "1.5, -2" in text


@pytest.mark.parametrize("name", NUMBERS)
def test_a_type_has_the_size_of_its_dtype(name):
    assert hdf5_type(name).get_size() == getattr(torch, name).itemsize


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,) * 12], ids=str)
def test_unusual_shapes_come_back(tmp_path, shape):
    tensor = torch.ones(shape)
    back = captured(tmp_path / "x.h5", tensor).read()
    assert back.shape == tensor.shape
    assert torch.equal(back, tensor)


def test_an_empty_buffer_makes_an_empty_tensor():
    assert torch_tensor(np.empty(0, np.uint8), "bfloat16", (2, 0)).shape == (2, 0)
