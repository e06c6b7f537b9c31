"""Stored tensors that are read in parts."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from validator.capturing.files import CaptureSource
from validator.capturing.reader import open_capture
from validator.capturing.records import TensorRef
from validator.capturing.session import capture
from validator.errors import CaptureError

CHUNK_BYTES = 1 << 20


def stored(path: Path, value: torch.Tensor) -> TensorRef:
    model = nn.Identity()
    with capture(model, path):
        model(value)
    ref: TensorRef = open_capture(path).rank(0).calls[0].inputs["input"]
    return ref


@pytest.mark.parametrize("shape", [(), (0, 3), (7, 5), (3, 401, 1000)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.bool], ids=str)
def test_the_blocks_together_are_the_tensor(
    tmp_path: Path, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    value = torch.randn(shape).to(dtype)
    ref = stored(tmp_path / "run.h5", value)
    blocks = list(ref.blocks())
    assert torch.equal(torch.cat(blocks).reshape(shape), value)
    assert all(block.dtype == dtype and block.ndim == 1 for block in blocks)


def test_a_large_tensor_comes_chunk_by_chunk_and_each_chunk_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = stored(tmp_path / "run.h5", torch.randn(3_000_000))
    ends: list[tuple[int, int]] = []
    read: Callable[..., object] = CaptureSource.elements

    def noted(source: CaptureSource, path: str, dtype: str, offset: int, count: int) -> object:
        ends.append((offset, offset + count))
        return read(source, path, dtype, offset, count)

    monkeypatch.setattr(CaptureSource, "elements", noted)
    blocks = list(ref.blocks())
    assert len(blocks) == -(-3_000_000 * 4 // CHUNK_BYTES)
    assert max(block.numel() for block in blocks) * 4 <= CHUNK_BYTES
    assert [start for start, _ in ends] == [0, *(stop for _, stop in ends[:-1])]


def test_a_changed_element_is_found_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = stored(tmp_path / "run.h5", torch.randn(1_000_000))
    read = CaptureSource.elements

    def flipped(source: CaptureSource, path: str, dtype: str, offset: int, count: int) -> object:
        data = read(source, path, dtype, offset, count)
        if offset == 0:
            data[5] ^= 1
        return data

    monkeypatch.setattr(CaptureSource, "elements", flipped)
    with pytest.raises(CaptureError, match="does not match its checksum"):
        list(ref.blocks())
