"""Outcomes of steps as JSON, and the file that a search is resumed from."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from validator.align.traces import StepTokens
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

_STATE = "state.json"
_VERSION = 3


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

    Raises:
        UsageError: the folder is of another search, holds other things, or can't be made.
    """

    def __init__(self, folder: Path | None, identity: Mapping[str, Any]) -> None:
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
                self._write()
        except OSError as error:
            raise UsageError(f"--keep {folder} can't be used: {error.strerror}") from None

    def get(self, step: str) -> dict[str, Any] | None:
        """Return what was kept of a step, or None."""
        found: dict[str, Any] | None = self._steps.get(step)
        return found

    def put(self, step: str, fields: Mapping[str, Any] | str) -> None:
        """Keep what a step found."""
        self._steps[step] = json.loads(json.dumps(fields, default=_plain))
        self._write()

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
            identity, steps = stored["identity"], stored["steps"]
            is_ours = stored["version"] == _VERSION and isinstance(steps, dict)
        except (ValueError, KeyError, TypeError):
            is_ours = False
        if not is_ours:
            raise UsageError(f"{path} is no state of a search of this version: name a new folder")
        for name in dict.fromkeys([*self._identity, *identity]):
            mine, other = self._identity.get(name), identity.get(name)
            if mine != other:
                raise UsageError(
                    f"--keep {path.parent} is of another search: its {name} is {other!r}, and this one's is "
                    f"{mine!r}; name a new folder, or remove it"
                )
        return dict(steps)

    def _write(self) -> None:
        if self._path is None:
            return
        text = json.dumps({"version": _VERSION, "identity": self._identity, "steps": self._steps})
        fresh = self._path.with_suffix(".new")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(self._path)


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
    if hasattr(value, "item"):
        return value.item()
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)
