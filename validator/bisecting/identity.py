"""What a search is of: the folder that it was kept in is refused where any of that is another by now.

Known are the target's file, the modules beside it that it imports, a checkpoint's files, versions of software
and a stored capture. Data that a target reads is not: a search of other data needs a new folder.
"""

import hashlib
import platform
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from modulefinder import ModuleFinder
from pathlib import Path

from validator.capturing.reader import Capture

__all__ = ["capture_identity", "content_of", "versions"]

_SMALL_BYTES = 1 << 20
"""Of larger files of a checkpoint, size and time of the last change stand for what is in them."""

_SOFTWARE = ("accuracy-validator", "numpy", "torch", "transformers")


def content_of(source: Path, *, beside: Sequence[Path] = ()) -> dict[str, str]:
    """Return a digest of each file that a target is made of, by `"target's content"` or its name.

    Args:
        source: a Python file, with the modules of its folder that it imports wherever in its code; or a
            checkpoint folder.
        beside: further folders whose modules belong to it where it imports them.
    """
    if source.is_dir():
        lines = (f"{path.name} {_stamp(path)}" for path in sorted(source.iterdir()) if path.is_file())
        return {"target's content": _digest("\n".join(lines).encode())}
    found = {"target's content": _digest(source.read_bytes())}
    folder = source.resolve().parent
    for path in _imported(source, (folder, *beside)):
        name = path.relative_to(folder) if path.is_relative_to(folder) else path
        found[f"content of {name}"] = _digest(path.read_bytes())
    return found


def versions() -> dict[str, str]:
    """Return versions of the software that computes and judges."""
    found = {"Python": platform.python_version()}
    for name in _SOFTWARE:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def capture_identity(capture: Capture) -> str:
    """Return what tells a capture from another of the same name."""
    return f"{capture.manifest.capture_id} {_digest(capture.manifest.to_json().encode())}"


def _imported(source: Path, folders: Sequence[Path]) -> Iterator[Path]:
    """Yield the files of modules of these folders that the target imports, and they in turn."""
    finder = ModuleFinder(path=[str(folder) for folder in folders])
    finder.run_script(str(source))
    modules = (module for name, module in finder.modules.items() if name != "__main__")
    files = (getattr(module, "__file__", None) for module in modules)
    yield from sorted({Path(file) for file in files if file is not None})


def _stamp(path: Path) -> str:
    state = path.stat()
    if state.st_size <= _SMALL_BYTES:
        return _digest(path.read_bytes())
    return f"{state.st_size} {state.st_mtime_ns}"


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
