"""What a search is of: the folder that it was kept in is refused where any of that is another by now.

Known are the target's file, the modules beside it that its code names in imports, a checkpoint's files,
versions of software and a stored capture. Data that a target reads, and modules whose names it makes up as it
runs, are not: a search of others needs a new folder.
"""

import ast
import hashlib
import platform
from collections.abc import Iterator, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, version
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


def _imported(source: Path, folders: Sequence[Path]) -> list[Path]:
    """Return the files of modules of these folders that the target imports, and they in turn.

    Every import counts, wherever it stands and whether or not it is reached; nothing is run.
    """
    roots = [folder.resolve() for folder in folders]
    found: set[Path] = set()
    waiting = [source.resolve()]
    while waiting:
        file = waiting.pop()
        for above, name in _imports(file):
            # A relative import counts from the package that the file is in.
            for root in roots if above == 0 else file.parents[above - 1 : above]:
                new = set(_files(root, name)) - found - {source.resolve()}
                found |= new
                waiting += new
    return sorted(found)


def _imports(file: Path) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield for each module that a file may import how many dots its name begins with, and its parts."""
    if file.suffix != ".py":
        return
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return  # it can't be imported
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((0, tuple(alias.name.split("."))) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                package = tuple(module.split(".")) if module else ()
                yield level, package
                yield from ((level, (*package, alias.name)) for alias in names)
            case ast.Call(
                func=ast.Name(id=called) | ast.Attribute(attr=called),
                args=[ast.Constant(value=str(name)), *_],
            ) if called in ("import_module", "__import__"):
                yield len(name) - len(name.lstrip(".")), tuple(filter(None, name.split(".")))


def _files(root: Path, name: Sequence[str]) -> Iterator[Path]:
    """Yield what importing a module of a folder runs: of its packages, and its own."""
    for end in range(len(name) + 1):
        place = root.joinpath(*name[:end])
        files = [place / "__init__.py"]
        if end:
            files += [place.with_name(place.name + suffix) for suffix in (".py", *EXTENSION_SUFFIXES)]
        yield from (file for file in files if file.is_file())


def _stamp(path: Path) -> str:
    state = path.stat()
    if state.st_size <= _SMALL_BYTES:
        return _digest(path.read_bytes())
    return f"{state.st_size} {state.st_mtime_ns}"


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
