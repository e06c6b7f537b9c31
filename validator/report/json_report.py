"""An outcome, or the error that prevented it, as a JSON document of schema 1.

The schema lies beside this module as `schema.json` (JSON Schema, draft 2020-12). Documents are
strict JSON: a number that is not finite is written as the string `"nan"`, `"inf"` or `"-inf"`.
"""

import dataclasses
import json
import math
import numbers
from collections.abc import Mapping, Sequence, Set
from importlib import resources
from typing import Any

from validator.checks.findings import Evidence, Finding, Judgement, Outcome, Signature, Unchecked
from validator.errors import ValidatorError
from validator.report import facts

__all__ = ["SCHEMA_VERSION", "error_json", "finding_json", "plain", "schema", "to_json"]

SCHEMA_VERSION = 1
_PLACES = ("tokens", "channels", "heads", "experts")


def to_json(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome as a document of schema 1: plain dicts, lists, strings, numbers and None."""
    first = facts.first_divergence(outcome)
    document: dict[str, Any] = {
        "schema": SCHEMA_VERSION,
        "verdict": outcome.verdict,
        "first_divergence": None if first is None else finding_json(first),
        "findings": [finding_json(finding) for finding in outcome.findings],
        "checked": {
            **{check.value: n for check, n in facts.checked(outcome).items()},
            "unchecked": _reasons(outcome.unchecked),
            "unobservable": [dataclasses.asdict(item) for item in outcome.unobservable],
            "smallest_gains": _smallest_gains(outcome),
        },
        "edges": _edges(outcome),
        "distribution": outcome.distribution,
        "run": outcome.run,
        "why_inconclusive": outcome.why_inconclusive,
        "notes": outcome.notes,
    }
    made: dict[str, Any] = plain(document)
    return made


def error_json(error: ValidatorError) -> dict[str, Any]:
    """Return the document that stands in for a result where nothing could be compared."""
    return {"schema": SCHEMA_VERSION, "error": {"kind": error.kind, "message": str(error)}}


def finding_json(finding: Finding) -> dict[str, Any]:
    """Return a finding in the words of schema 1; `plain` makes JSON of it."""
    return {
        "module": finding.module,
        "candidate_module": finding.candidate_module,
        "check": finding.check,
        "into": finding.into,
        "path": finding.path,
        "op": finding.op,
        "call": finding.call,
        "rank": finding.rank,
        "verdict": finding.verdict,
        "arm": finding.arm,
        "where": {**dict.fromkeys(_PLACES), **finding.where},
        "recipe": finding.recipe,
        "signature": None if finding.signature is None else _signature(finding.signature),
        "evidence": _evidence(finding.evidence),
        "summary": finding.summary,
    }


def schema() -> dict[str, Any]:
    """Return the JSON Schema of all kinds of document."""
    text = resources.files("validator.report").joinpath("schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def _signature(signature: Signature) -> dict[str, Any]:
    return {
        "kind": signature.kind,
        "parameters": signature.parameters,
        "residual_ulp": signature.residual_ulp,
    }


def _evidence(evidence: Evidence) -> dict[str, Any]:
    return {field.name: getattr(evidence, field.name) for field in dataclasses.fields(evidence)}


def _reasons(items: Sequence[Unchecked]) -> list[dict[str, str]]:
    return [{"module": item.module, "why": item.why} for item in items]


def _smallest_gains(outcome: Outcome) -> list[dict[str, Any]]:
    return [
        {
            "module": judgement.module,
            "into": judgement.into,
            "path": judgement.path,
            "call": judgement.call,
            "recipe": judgement.recipe,
            "smallest_gain": judgement.smallest_gain,
        }
        for judgement in outcome.judgements
        if judgement.smallest_gain is not None
    ]


def _edges(outcome: Outcome) -> list[dict[str, Any]]:
    """Return every judged edge, under the call by which its finding, if it has one, is known."""
    calls = {facts.edge_key(finding): finding.call for finding in outcome.findings}
    return [
        _edge(judgement, call=calls.get(facts.edge_key(judgement), judgement.call))
        for judgement in outcome.judgements
    ]


def _edge(judgement: Judgement, *, call: int) -> dict[str, Any]:
    return {
        "module": judgement.module,
        "check": judgement.check,
        "into": judgement.into,
        "path": judgement.path,
        "call": call,
        "rank": judgement.rank,
        "verdict": judgement.verdict,
        "arm": judgement.arm,
        "recipe": judgement.recipe,
        "max_over_band": judgement.evidence.max_over_band,
        "elements": judgement.evidence.elements,
    }


def plain(value: Any) -> Any:
    """Return `value` in JSON's types; NumPy scalars become numbers, paths and dtypes their text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(key): plain(child) for key, child in value.items()}
    if isinstance(value, Sequence):
        return [plain(child) for child in value]
    if isinstance(value, Set):
        return sorted(plain(child) for child in value)
    return str(value)
