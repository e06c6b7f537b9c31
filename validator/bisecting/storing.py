"""Outcomes of steps as JSON, and the file that a search is resumed from."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from validator.align.traces import StepTokens
from validator.capturing.room import what_failed
from validator.checks.findings import (
    Arm,
    Check,
    Evidence,
    Finding,
    Judgement,
    Outcome,
    Signature,
    Unchecked,
    Unobservable,
    Verdict,
)
from validator.checks.profiles import Profile
from validator.errors import UsageError

__all__ = [
    "State",
    "finding_from_json",
    "finding_to_json",
    "outcome_from_json",
    "outcome_to_json",
]

T = TypeVar("T")

_STATE = "state.json"
_VERSION = 4
_BROKEN = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as plain values, from which `outcome_from_json` makes it again."""
    made: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(outcome), default=_plain))
    return made


def outcome_from_json(fields: Mapping[str, Any]) -> Outcome:
    """Make an outcome of what `outcome_to_json` returned."""
    return Outcome(
        **{
            **fields,
            "verdict": Verdict(fields["verdict"]),
            "findings": tuple(finding_from_json(item) for item in fields["findings"]),
            "judgements": tuple(_judgement(item) for item in fields["judgements"]),
            "unchecked": tuple(Unchecked(**item) for item in fields["unchecked"]),
            "unobservable": tuple(Unobservable(**item) for item in fields["unobservable"]),
            "why_inconclusive": tuple(fields["why_inconclusive"]),
            "notes": tuple(fields["notes"]),
        }
    )


def finding_to_json(finding: Finding) -> dict[str, Any]:
    """Return a finding as plain values, from which `finding_from_json` makes it again."""
    made: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(finding), default=_plain))
    return made


def finding_from_json(fields: Mapping[str, Any]) -> Finding:
    """Make a finding of what `finding_to_json` returned."""
    signature, step = fields["signature"], fields["step"]
    return Finding(
        **{
            **fields,
            "check": Check(fields["check"]),
            "verdict": Verdict(fields["verdict"]),
            "arm": Arm(fields["arm"]),
            "evidence": _evidence(fields["evidence"]),
            "signature": None if signature is None else Signature(**signature),
            "step": None if step is None else StepTokens(**{**step, "kept": tuple(step["kept"])}),
        }
    )


class State:
    """What was found out so far, in a file of the folder that a search is kept in.

    Args:
        folder: of the search, or None to keep nothing.
        identity: what the search is of; a folder of another one is refused.

    Attributes:
        trouble: why what is found out is kept no more, or None.

    Raises:
        UsageError: the folder is of another search, holds other things, or can't be made.
    """

    def __init__(self, folder: Path | None, identity: Mapping[str, Any]) -> None:
        self.trouble: str | None = None
        self._path = None if folder is None else folder / _STATE
        self._identity = json.loads(json.dumps(identity, default=_plain))
        self._steps: dict[str, Any] = {}
        if folder is None or self._path is None:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if self._path.exists():
                self._steps = self._read(self._path)
            elif any(folder.iterdir()):
                raise UsageError(
                    f"--keep {folder} holds other things than a search: name a new folder, or remove it"
                )
            else:
                self._write(self._path)
        except OSError as error:
            raise UsageError(f"--keep {folder} can't be used: {error.strerror}; name a new folder") from None

    def get(self, step: str, make: Callable[[Any], T]) -> T | None:
        """Return what was kept of a step, or None.

        Args:
            step: its name.
            make: makes it again of the plain values that `put` was given.

        Raises:
            UsageError: it can't be made of what is there.
        """
        if step not in self._steps:
            return None
        try:
            return make(self._steps[step])
        except _BROKEN as error:
            raise UsageError(
                f"{self._path}: what it holds of the step {step[:80]!r} can't be read "
                f"({type(error).__name__}: {str(error)[:200]}); name a new folder, or remove it"
            ) from None

    def put(self, step: str, fields: Mapping[str, Any] | str) -> None:
        """Keep what a step found; where the file can't be written no more is kept, `trouble` says why."""
        self._steps[step] = json.loads(json.dumps(fields, default=_plain))
        if self._path is None:
            return
        try:
            self._write(self._path)
        except OSError as error:
            with suppress(OSError):
                _scratch(self._path).unlink(missing_ok=True)
            self.trouble = f"{self._path} can't be written ({what_failed(error)}): later steps aren't kept"
            self._path = None

    def require_same(self, name: str, value: str) -> None:
        """Keep a word about something in the folder, or hold it against the one that was kept before.

        Raises:
            UsageError: it is another.
        """
        known = self._steps.get(name)
        if known is not None and known != value:
            raise UsageError(
                f"--keep {self._path and self._path.parent}: {name} is another than the one that this search "
                "made; name a new folder, or remove it"
            )
        if known is None:
            self.put(name, value)

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            version, identity, steps = stored["version"], dict(stored["identity"]), dict(stored["steps"])
            if version != _VERSION:
                raise ValueError(f"it is of version {str(version)[:80]}, and this is {_VERSION}")
        except _BROKEN as error:
            raise UsageError(
                f"{path} is no state of a search of this version ({type(error).__name__}: "
                f"{str(error)[:200]}): name a new folder, or remove it"
            ) from None
        for name in dict.fromkeys([*self._identity, *identity]):
            mine, other = self._identity.get(name), identity.get(name)
            if mine != other:
                raise UsageError(
                    f"--keep {path.parent} is of another search: its {name} is {other!r}, and this one's is "
                    f"{mine!r}; name a new folder, or remove it"
                )
        return steps

    def _write(self, path: Path) -> None:
        text = json.dumps({"version": _VERSION, "identity": self._identity, "steps": self._steps})
        _scratch(path).write_text(text, encoding="utf-8")
        _scratch(path).replace(path)


def _scratch(path: Path) -> Path:
    return path.with_suffix(".new")


def _judgement(fields: Mapping[str, Any]) -> Judgement:
    return Judgement(
        **{
            **fields,
            "check": Check(fields["check"]),
            "verdict": Verdict(fields["verdict"]),
            "arm": None if fields["arm"] is None else Arm(fields["arm"]),
            "evidence": _evidence(fields["evidence"]),
            "profile": None if fields["profile"] is None else Profile.from_json(fields["profile"]),
        }
    )


def _evidence(fields: Mapping[str, Any]) -> Evidence:
    def value(name: str) -> Any:
        found = fields[name]
        return tuple(found) if isinstance(found, list) else found

    return Evidence(**{name: value(name) for name in fields})


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # an array's numbers, and a number of NumPy's or torch's
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)
