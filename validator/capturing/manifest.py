"""The manifest of a capture: what ran where, which ranks are present, and whether looking changed the run.

It is JSON, written last: a capture without one is incomplete.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from validator.errors import CaptureError

from .levels import Level
from .noise import Noise
from .schema import FORMAT, FORMAT_VERSION
from .selection import Selection

__all__ = ["Manifest", "Proof", "ProofStatus", "check_format"]


class ProofStatus(StrEnum):
    """What is known of the effect that the hooks had on the run, from best to worst."""

    IDENTICAL = "identical"
    WITHIN_SPREAD = "within_spread"
    SKIPPED = "skipped"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Whether the run computed the same with hooks as without.

    Attributes:
        status: of the worst rank.
        reason: one sentence.
        difference: largest absolute difference between the run with hooks and the nearest one without; None
            where it was not measured, infinite where shapes, dtypes or NaNs differ.
        spread: the same between the runs without hooks, where they were repeated.
    """

    status: ProofStatus
    reason: str
    difference: float | None = None
    spread: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What holds of a whole capture.

    Attributes:
        capture_id: the same in all files of a capture, and in no other's.
        world_size: number of ranks that ran.
        ranks: those that were recorded, in ascending order.
        recipe: name of the recipe that the run declared.
        planted: what a report must say of the fault that was planted in the model, or None.
        include, exclude: globs over the modules' names; an empty `include` is every module.
        silent: modules that were included and did not fire on any rank.
        left_out: tensors that could not be stored, and why, as `module path: type`.
        noise: how the noise of its tensors was measured, or None where it was not.
        level: how much of each tensor is kept.
        compiled: how many modules each compiled region hides, by the name of its outermost module.
        run: `hardware`, `software`, `parallelism`, `inputs`, `seeds` and `determinism`.
    """

    world_size: int
    ranks: tuple[int, ...]
    proof: Proof
    recipe: str | None = None
    planted: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    noise: Noise | None = None
    compiled: Mapping[str, int] = field(default_factory=dict)
    level: Level = Level.FULL
    capture_id: str = ""
    run: Mapping[str, Any] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @property
    def selection(self) -> Selection:
        """Which modules were kept."""
        return Selection(include=self.include, exclude=self.exclude)

    def host_of(self, rank: int) -> str | None:
        """Return the name of the host that a rank ran on, where the metadata has it."""
        hardware = self.run.get("hardware")
        for described in hardware if isinstance(hardware, list) else ():
            if isinstance(described, Mapping) and described.get("rank") == rank:
                return str(described.get("host"))
        return None

    def to_json(self) -> str:
        """Return the manifest as JSON that `from_json` reads."""
        fields = {"format": FORMAT, **asdict(self)}
        fields["proof"] = {k: _encode(v) for k, v in asdict(self.proof).items()}
        return json.dumps(fields, indent=2)

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> "Manifest":
        """Read a manifest.

        Args:
            text: JSON.
            where: the file that it comes from, for messages.

        Raises:
            CaptureError: it is no manifest, or of a version that this validator can't read.
        """
        try:
            fields = json.loads(text)
            check_format(fields.get("format"), fields.get("format_version"), where)
            proof = fields["proof"]
            return cls(
                world_size=_int(fields["world_size"]),
                ranks=tuple(_int(r) for r in fields["ranks"]),
                proof=Proof(
                    status=ProofStatus(proof["status"]),
                    reason=str(proof["reason"]),
                    difference=_decode(proof["difference"]),
                    spread=_decode(proof["spread"]),
                ),
                recipe=None if fields["recipe"] is None else str(fields["recipe"]),
                planted=None if fields["planted"] is None else str(fields["planted"]),
                include=_texts(fields["include"]),
                exclude=_texts(fields["exclude"]),
                silent=_texts(fields["silent"]),
                left_out=_texts(fields["left_out"]),
                noise=None if fields["noise"] is None else Noise.from_json(fields["noise"]),
                level=Level(fields.get("level", Level.FULL)),
                compiled={str(name): _int(count) for name, count in fields.get("compiled", {}).items()},
                capture_id=str(fields["capture_id"]),
                run=dict(fields["run"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CaptureError(
                f"{where}: its manifest can't be read ({type(error).__name__}: {error}). "
                "The capture is damaged: copy it again from where it was made, or make it again."
            ) from error


def check_format(name: object, version: object, where: str) -> None:
    """Raise `CaptureError` unless a file says that it is a capture of the version that is read here."""
    if name != FORMAT:
        raise CaptureError(
            f"{where}: not a capture (its format is {str(name)[:80]!r}, not {FORMAT!r}). "
            "Give a folder or .h5 file that `validator capture` wrote."
        )
    if version != FORMAT_VERSION:
        raise CaptureError(
            f"{where}: written in format version {str(version)[:80]}, this validator reads version "
            f"{FORMAT_VERSION}. Use the validator that wrote it, or make the capture again with this one."
        )


def _encode(value: Any) -> Any:
    # JSON has no infinity.
    return str(value) if isinstance(value, float) else value


def _decode(value: Any) -> float | None:
    return None if value is None else float(value)


def _int(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no rank or count")
    return value


def _texts(values: Sequence[Any]) -> tuple[str, ...]:
    return tuple(str(v) for v in values)
