import re
from pathlib import Path

import pytest
import torch

from validator.capturing.scratch import Scratch
from validator.errors import CaptureError


def test_tensors_of_any_dtype_come_back_and_can_be_replaced(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    kept = [torch.randn(3, 4).bfloat16(), torch.tensor(7), torch.empty(0), torch.tensor([True, False])]
    slots = [scratch.append(tensor) for tensor in kept]
    scratch.write(slots[0], -kept[0])
    for slot, tensor in zip(slots, [-kept[0], *kept[1:]], strict=True):
        assert scratch.read(slot).dtype == tensor.dtype
        assert torch.equal(scratch.read(slot), tensor)
    scratch.close()


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    scratch.append(torch.ones(1000))
    scratch.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_can_not_be_written_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=re.escape(str(tmp_path / "nowhere"))):
        Scratch(tmp_path / "nowhere")
