"""Which line of an error or a stack dump is the user's."""

import threading
from pathlib import Path

import pytest
import torch

from validator.frames import Frame, frames_in_dump, innermost_user_frame, where

DUMP = """Thread 0x00007f0000000001 (most recent call first):
  File "/opt/lib/python3.11/site-packages/tqdm/_monitor.py", line 60 in run

Thread 0x00007f0000000002 (most recent call first):
  File "/opt/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2500 in all_reduce
  File "/home/me/port.py", line 14 in candidate
  File "<string>", line 1 in <module>
"""


def test_an_error_inside_torch_is_placed_at_the_line_that_called_torch() -> None:
    with pytest.raises(RuntimeError) as error:
        torch.zeros(2) @ torch.zeros(3)
    place = where(error.value)
    assert place is not None
    assert (place.file, place.line) == (__file__, _line_of("torch.zeros(2) @"))


def test_an_error_that_was_never_raised_has_no_place() -> None:
    assert where(ValueError("never raised")) is None


@pytest.mark.parametrize(
    ("file", "shown", "is_user_code"),
    [
        (str(Path.cwd() / "port.py"), "port.py:14 in candidate", True),
        ("/elsewhere/port.py", "/elsewhere/port.py:14 in candidate", True),
        ("/x/site-packages/torch/nn/modules/linear.py", "torch/nn/modules/linear.py:14 in candidate", False),
        (threading.__file__, "threading.py:14 in candidate", False),
        ("<frozen runpy>", "<frozen runpy>:14 in candidate", False),
        (str(Path(torch.__file__)), "torch/__init__.py:14 in candidate", False),
    ],
    ids=["below the current folder", "elsewhere", "package", "standard library", "frozen", "installed torch"],
)
def test_a_frame_is_shown_as_short_as_its_owner_allows(file: str, shown: str, is_user_code: bool) -> None:
    frame = Frame(file=file, line=14, function="candidate")
    assert str(frame) == shown
    assert frame.is_user_code is is_user_code


def test_a_dump_gives_the_frames_of_the_thread_that_is_asked_for_outermost_first() -> None:
    frames = frames_in_dump(DUMP, thread=0x7F0000000002)
    assert [frame.line for frame in frames] == [1, 14, 2500]
    assert innermost_user_frame(frames) == Frame(file="/home/me/port.py", line=14, function="candidate")
    assert [frame.line for frame in frames_in_dump(DUMP, thread=0x7F0000000001)] == [60]
    assert frames_in_dump(DUMP, thread=3) == []


def test_a_dump_of_a_crash_gives_the_thread_that_crashed() -> None:
    crashed = DUMP.replace("Thread 0x00007f0000000002", "Current thread 0x00007f0000000002")
    crash = f"Fatal Python error: Segmentation fault\n\n{crashed}"
    assert [frame.line for frame in frames_in_dump(crash)] == [1, 14, 2500]
    assert frames_in_dump(DUMP) == []


def _line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip().startswith(text))
