"""What a baseline says of itself: `baseline.json`."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from validator.errors import CaptureError

__all__ = ["SCHEMA_VERSION", "Baseline", "Figure", "Kind"]

SCHEMA_VERSION = 1
_MACHINE_UNITS = (
    "s",
    "ms",
    "us",
    "ns",
    "min",
    "h",
    "B",
    "kB",
    "KB",
    "MB",
    "GB",
    "KiB",
    "MiB",
    "GiB",
    "bytes",
)


class Kind(StrEnum):
    """What is kept."""

    RUN = "run"
    FIGURES = "figures"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of a suite.

    Attributes:
        value: a number, or a word.
        unit: such as `"nat"`, `"ms"`, `"tokens/s"`.
        error: its standard error, or None where it is exact or nobody knows.
        samples: the measurements that `value` sums up, where there were several.
    """

    value: float | int | str
    unit: str = ""
    error: float | None = None
    samples: tuple[float, ...] = ()

    @property
    def is_of_the_machine(self) -> bool:
        """Whether it is one of speed or memory: its unit has a time or bytes in it."""
        return any(part.strip() in _MACHINE_UNITS for part in self.unit.split("/"))


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
            `determinism`, as a capture's manifest has them.
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
        path = next((part for part in self.files if part.startswith("candidate")), None)
        return None if path is None else self.folder / path.split("/")[0]

    @property
    def reference(self) -> Path:
        """The reference's capture, of a run."""
        return self.folder / "reference.h5"

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values that `from_json` reads."""
        return {
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

    @classmethod
    def from_json(cls, text: str, folder: Path) -> "Baseline":
        """Read a `baseline.json`.

        Raises:
            CaptureError: it is none, or of a version that this validator can't read.
        """
        try:
            fields = json.loads(text)
            if fields["schema"] != SCHEMA_VERSION:
                raise CaptureError(
                    f"{folder / 'baseline.json'} has schema {fields['schema']!r} and this validator reads "
                    f"{SCHEMA_VERSION}: record it again, or use the validator that wrote it"
                )
            files = {str(path): str(digest) for path, digest in fields["files"].items()}
            if any(Path(path).is_absolute() or ".." in Path(path).parts for path in files):
                raise ValueError("a file outside of the baseline")
            return cls(
                name=folder.name,
                kind=Kind(fields["kind"]),
                folder=folder,
                recorded=str(fields["recorded"]),
                command=str(fields["command"]),
                source=str(fields["source"]),
                run=dict(fields["run"]),
                figures={str(name): figure_from(found) for name, found in fields["figures"].items()},
                files=files,
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CaptureError(
                f"{folder / 'baseline.json'} can't be read ({type(error).__name__}: {error}): it "
                "is damaged or "
                "no baseline; restore it from version control, or record it again"
            ) from error


def figure_from(found: Any) -> Figure:
    """Return a figure from plain values.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    value = found["value"]
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(f"a figure's value is a number or a word, not {value!r}")
    error = found.get("error")
    if error is not None and not (math.isfinite(float(error)) and float(error) >= 0):
        raise ValueError(f"a figure's error is 0 or more, not {error!r}")
    return Figure(
        value=value,
        unit=str(found.get("unit", "")),
        error=None if error is None else float(error),
        samples=tuple(float(sample) for sample in found.get("samples", ())),
    )
