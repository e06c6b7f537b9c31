"""Where baselines lie: find, read, list and replace them; each file is held to the hash that was written."""

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from validator.baselines.records import Baseline
from validator.errors import CaptureError, UsageError, ValidatorError

__all__ = [
    "baseline_folder",
    "has_baseline",
    "listed",
    "read_baseline",
    "replaced",
    "size_of",
    "write_baseline",
]

_FILE = "baseline.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_BLOCK = 1 << 20


def baseline_folder(name: str, folder: Path) -> Path:
    """Return where a baseline of a name lies, or would.

    Raises:
        UsageError: it can't be the name of one.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} can't be the name of a baseline: use letters, digits, dots, dashes and "
            "underscores, 100 at most, a letter or digit first"
        )
    return folder / name


def has_baseline(name: str, folder: Path) -> bool:
    """Say whether there is a baseline of a name, damaged or not."""
    return bool(_NAME.fullmatch(name)) and (folder / name / _FILE).is_file()


def read_baseline(name: str, folder: Path) -> Baseline:
    """Return a baseline whose files are those that were recorded, no more and no less.

    Raises:
        UsageError: there is none of this name; the message lists those that there are.
        CaptureError: it is damaged, or a file is not the one that was recorded.
    """
    path = baseline_folder(name, folder)
    if not has_baseline(name, folder):
        others = ", ".join(_names(folder)) or "none"
        raise UsageError(
            f"no baseline {name!r} in {str(folder)!r}; there is: {others}. Record it with `validator "
            f"baseline record {name} TARGET --baselines {folder}`, review and commit it"
        )
    try:
        baseline = Baseline.from_json(_inside(path, _FILE).read_bytes(), path)
        for part, recorded in baseline.files.items():
            file = _inside(path, part)
            if not file.is_file():
                raise CaptureError(
                    f"{path} lacks {part!r}, which was recorded: restore it, or record it again"
                )
            if (found := _digest(file)) != recorded:
                raise CaptureError(
                    f"{file} has the hash {found} and was recorded with {recorded}: it was changed or "
                    "damaged since. Restore it from version control, or record it again"
                )
        unlisted = _files(path).keys() - baseline.files.keys()
    except (OSError, RuntimeError, ValueError) as error:  # of a link that leads to itself, of a name with NUL
        raise CaptureError(f"{path} can't be read: {error}; restore it, or record it again") from None
    if unlisted:
        raise CaptureError(
            f"{path} holds {min(unlisted)!r}, which was not recorded: move it away, or record it again"
        )
    return baseline


def listed(folder: Path) -> list[Baseline | ValidatorError]:
    """Return all baselines of a folder by name, and in place of one that can't be read why.

    Raises:
        UsageError: there is no such folder.
    """
    if not folder.is_dir():
        raise UsageError(f"no folder of baselines: {str(folder)!r} does not exist; name another, --baselines")
    found: list[Baseline | ValidatorError] = []
    for name in _names(folder):
        try:
            found.append(read_baseline(name, folder))
        except ValidatorError as error:
            found.append(error)
    return found


def size_of(baseline: Baseline) -> int:
    """Return the bytes of a baseline's files."""
    return sum(file.stat().st_size for file in baseline.folder.rglob("*") if file.is_file())


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Give an empty folder that takes the place of `path` once a baseline was written into it.

    What was there stays until then, and comes back where it can't be replaced.

    Raises:
        UsageError: it can't be written there.
    """
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Folders of baselines begin with a letter or digit, so this one is nobody's.
        scratch = Path(tempfile.mkdtemp(dir=path.parent, prefix="."))
    new, former = scratch / "new", scratch / "former"
    try:
        with _writing(path):
            new.mkdir()
        yield new
        if not (new / _FILE).is_file():
            return
        with _writing(path):
            if path.exists():
                path.rename(former)
            try:
                new.rename(path)
            except OSError:
                if former.exists():
                    former.rename(path)
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def write_baseline(baseline: Baseline) -> Baseline:
    """Write the `baseline.json` of a folder that holds all else, and return it with the files' hashes.

    Raises:
        UsageError: it can't be written.
    """
    with _writing(baseline.folder):
        files = sorted(_files(baseline.folder).items())
        baseline = replace(baseline, files={name: _digest(file) for name, file in files})
        text = json.dumps(baseline.to_json(), indent=2, allow_nan=False) + "\n"
        (baseline.folder / _FILE).write_text(text, encoding="utf-8")
    return baseline


def _names(folder: Path) -> list[str]:
    return sorted(
        name for entry in folder.glob(f"*/{_FILE}") if has_baseline(name := entry.parent.name, folder)
    )


def _files(folder: Path) -> dict[str, Path]:
    """Return what a baseline's folder holds beside its `baseline.json`, but for hidden files."""
    found = {file.relative_to(folder): file for file in folder.rglob("*") if not file.is_dir()}
    return {
        part.as_posix(): file
        for part, file in found.items()
        if part.as_posix() != _FILE and not any(name.startswith(".") for name in part.parts)
    }


def _inside(path: Path, part: str) -> Path:
    """Return a file of a baseline, which no link may lead elsewhere."""
    file = path / part
    if not file.resolve().is_relative_to(path.resolve()):
        raise CaptureError(f"{part!r} of {path} is a link to a file outside of it: record the baseline again")
    return file


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"the baseline {str(path)!r} can't be written: {error.strerror or error}; name another folder, "
            "--baselines"
        ) from None


def _digest(file: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
