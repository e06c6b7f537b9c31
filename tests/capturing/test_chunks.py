"""Compressed chunks of any size are sound, and forged ones are refused before they are decompressed."""

import struct

import h5py
import numpy as np
import pytest
import torch
from torch import nn

from validator.capturing.reader import open_capture
from validator.capturing.session import capture
from validator.errors import CaptureError

NAME = "values/%root/inputs/input/%float32.large"


def make_capture(path, tensor):
    model = nn.Identity()
    with capture(model, path):
        model(tensor + 1)
        model(tensor)


def outputs(path):
    return [call.outputs[""].read() for call in open_capture(path).rank(0).calls]


@pytest.mark.parametrize("count", [16_384, 70_001, 262_144, 300_007, 524_289])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.uint8], ids=str)
def test_large_values_of_any_size_come_back(tmp_path, dtype, count):
    tensor = (torch.arange(count) % 251).to(dtype)
    make_capture(tmp_path / "x.h5", tensor)
    first, second = outputs(tmp_path / "x.h5")
    assert torch.equal(first, tensor + 1)
    assert torch.equal(second, tensor)


def header(size, block, rest=b""):
    return struct.pack(">QI", size, block) + rest


@pytest.mark.parametrize(
    "forge",
    [
        lambda data: data[:1],
        lambda data: data[:7],
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: header(1 << 40, 8192, data[12:]),
        lambda data: header(160_000, 0, data[12:]),
        lambda data: header(160_000, 8191, data[12:]),
        lambda data: header(160_000, 1 << 30, data[12:]),
        lambda data: data[:12] + b"\xff\xff\xff\xff" + data[16:],
        lambda data: data[:12] + b"\x00\x00\x00\x00" + data[16:],
        lambda data: data[:40] + bytes(64) + data[104:],
    ],
    ids=[
        "one-byte",
        "short",
        "cut",
        "long",
        "size",
        "no-block",
        "odd-block",
        "huge-block",
        "huge-part",
        "no-part",
        "data",
    ],
)
def test_a_forged_chunk_is_an_error_and_no_crash(tmp_path, forge):
    make_capture(tmp_path / "x.h5", torch.rand(40_000))
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        _, data = file[NAME].id.read_direct_chunk((0,))
        file[NAME].id.write_direct_chunk((0,), forge(data))
    with pytest.raises(CaptureError, match=r"x\.h5"):
        outputs(tmp_path / "x.h5")


def test_another_compression_is_refused(tmp_path):
    make_capture(tmp_path / "x.h5", torch.rand(40_000))
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        values = np.array(file[NAME])
        del file[NAME]
        file.create_dataset(NAME, data=values, compression="gzip")
    with pytest.raises(CaptureError, match="compressed in a way that no capture is"):
        outputs(tmp_path / "x.h5")
