"""Where an error or a hang is: the frame of the user's own code rather than the library's beneath it."""

import functools
import re
import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Frame", "frames_in_dump", "frames_of", "innermost_user_frame", "where"]

_THREAD = re.compile(r"^(?:Current t|T)hread 0x([0-9a-f]+)", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A line of code that was running. `str()` gives `port.py:14 in candidate`."""

    file: str
    line: int
    function: str

    @property
    def is_user_code(self) -> bool:
        """Whether the file is neither the standard library's, nor an installed package's, nor ours."""
        return not self.file.startswith("<") and _library_of(self.file) is None

    def __str__(self) -> str:
        root = _library_of(self.file) or Path.cwd()
        path = Path(self.file)
        shown = path.relative_to(root) if path.is_relative_to(root) else path
        return f"{shown}:{self.line} in {self.function}"


def where(error: BaseException) -> Frame | None:
    """Return the innermost frame of the user's code that `error` passed, else its innermost frame.

    None for an error that was never raised.
    """
    frames = frames_of(error)
    return innermost_user_frame(frames) or (frames[-1] if frames else None)


def innermost_user_frame(frames: list[Frame]) -> Frame | None:
    """Return the last frame of the user's code in `frames` (outermost first), or None."""
    return next((frame for frame in reversed(frames) if frame.is_user_code), None)


def frames_of(error: BaseException) -> list[Frame]:
    """Return the frames that `error` passed, outermost first."""
    return [
        Frame(file=summary.filename, line=summary.lineno or 0, function=summary.name)
        for summary in traceback.extract_tb(error.__traceback__)
    ]


def frames_in_dump(text: str, *, thread: int | None = None) -> list[Frame]:
    """Return the frames, outermost first, of one thread in a dump that `faulthandler` wrote.

    Args:
        text: the dump, whatever else was written around it.
        thread: identifier of the thread (`threading.get_ident()`), or None for the one that crashed.

    Returns:
        An empty list where the dump doesn't show that thread.
    """
    for match in _THREAD.finditer(text):
        if int(match[1], 16) == thread or (thread is None and match[0].startswith("Current")):
            following = _THREAD.search(text, match.end())
            block = text[match.end() : following.start() if following else len(text)]
            found = [Frame(file=f, line=int(n), function=name) for f, n, name in _FRAME.findall(block)]
            return found[::-1]
    return []


def _library_of(file: str) -> Path | None:
    """Return the folder of the library that `file` belongs to, such as site-packages, or None."""
    path = Path(file)
    for folder in path.parents:
        if folder.name in ("site-packages", "dist-packages"):
            return folder
    ours = Path(__file__).parent
    if path.is_relative_to(ours):
        return ours.parent
    return next((root for root in _library_roots() if path.is_relative_to(root)), None)


@functools.cache
def _library_roots() -> tuple[Path, ...]:
    return tuple(Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib", "platstdlib"))
