"""Run the Python file of a target.

Its folder can be imported from while its code runs, as pytest does with a conftest.
"""

import contextlib
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from validator.errors import TargetError, ValidatorError
from validator.frames import where

__all__ = ["check_path", "describe", "importable", "run_file"]


def check_path(path: Path) -> None:
    """Raise `TargetError` where `path` is neither a Python file nor a checkpoint folder."""
    if not path.exists():
        raise TargetError(f"no such target: {str(path)!r}. Give a Python file or a checkpoint folder")
    if path.is_dir():
        lacks = [name for name in ("config.json", "*.safetensors") if not any(path.glob(name))]
        raise TargetError(f"{str(path)!r} is a folder but no checkpoint: it has no {' and no '.join(lacks)}")
    if path.suffix != ".py":
        raise TargetError(f"{str(path)!r} is no target: give a Python file (.py) or a checkpoint folder")


def run_file(path: Path) -> ModuleType:
    """Run a Python file as a module of a name that no other file has.

    It is compiled here, not imported, so that a file which changed within a second is read again.
    """
    path = path.resolve()
    module = ModuleType(
        f"validator_target_{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()}"
    )
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    try:
        with importable(path.parent):
            exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), module.__dict__)
    # A file written as a script may end with sys.exit().
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        if isinstance(error, ValidatorError):
            raise
        raise TargetError(f"{path.name} can't be loaded: {describe(error)}") from error
    return module


@contextlib.contextmanager
def importable(folder: Path | None) -> Iterator[None]:
    """Let modules of `folder` be imported by the code that runs inside."""
    if folder is None or str(folder) in sys.path:
        yield
        return
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))


def describe(error: BaseException) -> str:
    """Return class, message and place of an error in a target's code, in one line."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{type(error).__name__}: {error.msg} ({Path(error.filename).name}:{error.lineno})"
    place = where(error)
    return f"{type(error).__name__}: {error}" + (f" ({place})" if place else "")
