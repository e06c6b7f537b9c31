"""What day 0 remembers of an earlier run, so that it goes on where it stopped."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from validator.day0.records import StageResult
from validator.errors import UsageError

__all__ = ["State"]

_FILE = "day0.json"
_OURS = ("accuracy-validator", "torch")


class State:
    """The stages that passed, of a target and options that have not changed since."""

    def __init__(self, folder: Path, *, source: str, options: Mapping[str, Any], fresh: bool = False) -> None:
        """Read what is remembered.

        Args:
            folder: of the run.
            source: the target.
            options: that it is run with.
            fresh: forget what is remembered.

        Raises:
            UsageError: the folder can't be written.
        """
        self._path = folder / _FILE
        self._key = _key(source, options)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if fresh:
                self._path.unlink(missing_ok=True)
            self._stages = self._read()
            self._write()
        except OSError as error:
            raise UsageError(
                f"the folder {str(folder)!r} can't be written: {error.strerror}; name another with --keep"
            ) from None

    def get(self, name: str) -> StageResult | None:
        """Return how a stage ended before, if it passed."""
        return self._stages.get(name)

    def keep(self, result: StageResult) -> None:
        """Remember a stage that passed."""
        if result.passed:
            self._stages[result.name] = result
            self._write()

    def _read(self) -> dict[str, StageResult]:
        """Return the stages of the same target and options; what can't be read counts as none."""
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            if document["key"] != self._key:
                return {}
            return {name: StageResult.from_json(fields) for name, fields in document["stages"].items()}
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def _write(self) -> None:
        stages = {
            name: {**asdict(stage), "ending": str(stage.ending)} for name, stage in self._stages.items()
        }
        scratch = self._path.with_suffix(".new")
        scratch.write_text(
            json.dumps({"key": self._key, "stages": stages}, indent=2) + "\n", encoding="utf-8"
        )
        scratch.replace(self._path)


def _key(source: str, options: Mapping[str, Any]) -> str:
    """Return a hash of the target, the Python files beside it, the options and the versions."""
    digest = hashlib.blake2b(digest_size=16)
    path = Path(source)
    files = sorted(path.parent.glob("*.py")) if path.is_file() else sorted(path.glob("*"))
    for file in files:
        digest.update(f"{file.name}\0".encode())
        if file.suffix in (".py", ".json"):
            digest.update(file.read_bytes())
        elif file.is_file():
            status = file.stat()
            digest.update(f"{status.st_size} {status.st_mtime_ns}\0".encode())
    digest.update(json.dumps(dict(options), sort_keys=True, default=str).encode())
    digest.update(" ".join(version(name) for name in _OURS).encode())
    return digest.hexdigest()
