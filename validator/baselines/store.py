"""Where baselines lie: find, read, list and replace them; each file is held to the hash that was written."""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from validator.baselines.records import Baseline
from validator.errors import CaptureError, UsageError, ValidatorError

__all__ = ["baseline_folder", "listed", "read_baseline", "replaced", "size_of", "write_baseline"]

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
            "underscores, 100 "
            "at most, a letter or digit first"
        )
    return folder / name


def read_baseline(name: str, folder: Path) -> Baseline:
    """Return a baseline whose files are those that were recorded.

    Raises:
        UsageError: there is none of this name; the message lists those that there are.
        CaptureError: it is damaged, or a file is not the one that was recorded.
    """
    path = baseline_folder(name, folder)
    if not (path / _FILE).is_file():
        others = ", ".join(entry.parent.name for entry in sorted(folder.glob(f"*/{_FILE}"))) or "none"
        raise UsageError(
            f"no baseline {name!r} in {str(folder)!r}; there is: {others}. Record it with "
            "`validator baseline "
            f"record {name} TARGET --baselines {folder}`, review and commit it"
        )
    baseline = Baseline.from_json((path / _FILE).read_text(encoding="utf-8"), path)
    for part, recorded in baseline.files.items():
        file = path / part
        if not file.is_file():
            raise CaptureError(f"{path} lacks {part}, which was recorded: restore it, or record it again")
        if (found := _digest(file)) != recorded:
            raise CaptureError(
                f"{file} has the hash {found} and was recorded with {recorded}: it was changed or "
                "damaged since. "
                "Restore it from version control, or record it again"
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
    for entry in sorted(folder.glob(f"*/{_FILE}")):
        try:
            found.append(read_baseline(entry.parent.name, folder))
        except ValidatorError as error:
            found.append(error)
    return found


def size_of(baseline: Baseline) -> int:
    """Return the bytes of a baseline's files."""
    return sum(file.stat().st_size for file in baseline.folder.rglob("*") if file.is_file())


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Give an empty folder that takes the place of `path` once a baseline was written into it.

    Raises:
        UsageError: it can't be written there.
    """
    scratch = path.with_name(f".{path.name}.new")
    try:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
    except OSError as error:
        raise UsageError(
            f"the baseline {str(path)!r} can't be written: {error.strerror}; name another folder, --baselines"
        ) from None
    try:
        yield scratch
        if not (scratch / _FILE).is_file():
            return
        former = path.with_name(f".{path.name}.old")
        shutil.rmtree(former, ignore_errors=True)
        if path.exists():
            path.rename(former)
        scratch.rename(path)
        shutil.rmtree(former, ignore_errors=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def write_baseline(baseline: Baseline) -> Baseline:
    """Write the `baseline.json` of a folder that holds all else, and return it with the files' hashes."""
    files = sorted(file for file in baseline.folder.rglob("*") if file.is_file())
    hashed = {file.relative_to(baseline.folder).as_posix(): _digest(file) for file in files}
    baseline = replace(baseline, files=hashed)
    text = json.dumps(baseline.to_json(), indent=2) + "\n"
    (baseline.folder / _FILE).write_text(text, encoding="utf-8")
    return baseline


def _digest(file: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
