"""What a baseline says of itself: `baseline.json`."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn

from validator.errors import CaptureError
from validator.testing.records import Figure

__all__ = ["REFERENCE", "SCHEMA_VERSION", "Baseline", "Kind", "figure_from", "hash_of", "parsed", "run_from"]

SCHEMA_VERSION = 1
REFERENCE = "reference.h5"
_CANDIDATE = ("candidate.h5", "candidate/")
_MAPPINGS = ("software", "parallelism", "inputs", "seeds", "determinism", "settings")


class Kind(StrEnum):
    """What is kept."""

    RUN = "run"
    FIGURES = "figures"


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A stored baseline.

    Attributes:
        name: of its folder.
        kind: what is kept.
        folder: where it is.
        recorded: UTC time, ISO 8601.
        command: that recorded it.
        source: the target, or the file of figures.
        run: of what it was recorded: `hardware`, `software`, `parallelism`, `inputs`, `seeds` and
            `determinism`, as a capture's manifest has them; of figures also the `settings` of their suites.
        figures: by name.
        files: BLAKE2b-128, in hex, by the path of each other file in the folder.
    """

    name: str
    kind: Kind
    folder: Path
    recorded: str
    command: str
    source: str
    run: Mapping[str, Any]
    figures: Mapping[str, Figure] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def candidate(self) -> Path | None:
        """The candidate's capture, or None where the reference's alone was recorded."""
        file, folder = _CANDIDATE
        if file in self.files:
            return self.folder / file
        return self.folder / folder if any(part.startswith(folder) for part in self.files) else None

    @property
    def reference(self) -> Path:
        """The reference's capture, of a run."""
        return self.folder / REFERENCE

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values that `from_json` reads, with a hash over all of them."""
        fields = {
            "schema": SCHEMA_VERSION,
            "name": self.name,
            "kind": str(self.kind),
            "recorded": self.recorded,
            "command": self.command,
            "source": self.source,
            "run": dict(self.run),
            "figures": {name: asdict(figure) for name, figure in self.figures.items()},
            "files": dict(self.files),
        }
        return {**fields, "hash": hash_of(fields)}

    @classmethod
    def from_json(cls, data: bytes, folder: Path) -> "Baseline":
        """Read a `baseline.json`.

        Raises:
            CaptureError: it is none, of a version that this validator can't read, of another name than its
                folder, or was changed since it was written.
        """
        where = folder / "baseline.json"
        try:
            fields = parsed(data)
            if fields["schema"] != SCHEMA_VERSION:
                raise CaptureError(
                    f"{where} has schema {fields['schema']!r} and this validator reads {SCHEMA_VERSION}: "
                    "record it again, or use the validator that wrote it"
                )
            made = cls(
                name=str(fields["name"]),
                kind=Kind(fields["kind"]),
                folder=folder,
                recorded=str(fields["recorded"]),
                command=str(fields["command"]),
                source=str(fields["source"]),
                run=run_from(fields["run"]),
                figures={str(name): figure_from(name, found) for name, found in fields["figures"].items()},
                files=_files(fields["files"]),
            )
            if made.kind is Kind.RUN and REFERENCE not in made.files:
                raise ValueError(f"a run without {REFERENCE}")
            told = fields.pop("hash")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CaptureError(
                f"{where} can't be read ({type(error).__name__}: {error}): it is damaged or no baseline; "
                "restore it from version control, or record it again"
            ) from error
        if made.name != folder.name:
            raise CaptureError(
                f"{where} is of the baseline {made.name!r} and lies in a folder {folder.name!r}: give the "
                "folder its name back, or record it again"
            )
        if told != (found := hash_of(fields)):
            raise CaptureError(
                f"{where} has the hash {found} and says {told!r}: it was changed since it was recorded. "
                "Restore it from version control, or record it again"
            )
        return made


def parsed(data: bytes) -> Any:
    """Return what JSON says.

    Raises:
        ValueError: it is none, or holds a number that is not finite.
    """
    return json.loads(data.decode("utf-8"), parse_constant=_refused)


def run_from(found: Any) -> dict[str, Any]:
    """Return the metadata of a run.

    Raises:
        TypeError: they are not what a capture's manifest has.
    """
    run = _mapping("run", found)
    for name in _MAPPINGS:
        _mapping(name, run.get(name, {}))
    for name, described in run.get("inputs", {}).items():
        _mapping(f"the input {name}", described)
    if not isinstance(ranks := run.get("hardware", []), list):
        raise TypeError(f"hardware is {ranks!r}, not a list")
    for rank in ranks:
        if not isinstance(devices := _mapping("hardware", rank).get("devices", []), list):
            raise TypeError(f"devices are {devices!r}, not a list")
        for device in devices:
            _mapping("a device", device)
    return run


def figure_from(name: object, found: Any) -> Figure:
    """Return a figure from plain values.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    value, error, limit = found["value"], found.get("error"), found.get("limit")
    for word in (value, *(() if limit is None else (limit,))):
        if isinstance(word, bool) or not isinstance(word, int | float | str):
            raise TypeError(f"a figure's value is a number or a word, not {word!r}")
        _finite(word)
    if error is not None and not (math.isfinite(float(error)) and float(error) >= 0):
        raise ValueError(f"a figure's error is 0 or more, not {error!r}")
    return Figure(
        name=str(name),
        value=value,
        unit=str(found.get("unit", "")),
        limit=limit,
        error=None if error is None else float(error),
        samples=tuple(float(_finite(sample)) for sample in found.get("samples", ())),
    )


def hash_of(fields: Mapping[str, Any]) -> str:
    """Return the BLAKE2b-128 of plain values, in hex."""
    text = json.dumps(fields, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value!r} is no figure: it is not finite")
    return value


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")


def _mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{name} is {value!r}, not a mapping")
    return value


def _files(found: Mapping[str, Any]) -> dict[str, str]:
    files = {str(path): str(digest) for path, digest in found.items()}
    if any(Path(path).is_absolute() or ".." in Path(path).parts for path in files):
        raise ValueError("a file outside of the baseline")
    return files
