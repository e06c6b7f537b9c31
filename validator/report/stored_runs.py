"""Results of `check` read back from what `--json` wrote. Whatever is wrong with a file is one message."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from validator.checks.findings import Arm, Check, Verdict
from validator.errors import UsageError
from validator.report import facts, phrases
from validator.report.json_report import SCHEMA_VERSION

__all__ = ["EdgeName", "RunEdge", "StoredRun", "read_run"]

_RUN_VERDICTS = [verdict for verdict in Verdict if verdict is not Verdict.UNCHECKED]
_MOST = 2**63
_BROKEN = (ArithmeticError, AttributeError, KeyError, OSError, RecursionError, TypeError, ValueError)
_WORST = (
    Verdict.DIVERGENT,
    Verdict.UNDECLARED_PRECISION,
    Verdict.INCONCLUSIVE,
    Verdict.ALIGNED,
    Verdict.UNCHECKED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeName:
    """Which edge, whatever rank it was seen on: runs side by side may have different ranks."""

    module: str
    check: Check
    into: str | None
    path: str
    call: int

    def __str__(self) -> str:
        """Name it so that no other edge of a run has the same name."""
        return phrases.full_edge_name(self, call=self.call)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEdge:
    """What a run said of an edge, the worst of its ranks.

    Attributes:
        max_over_band: largest error over the band, as `facts.error_over_band` tells it.
        elements: how many were judged, on the rank that has the most; None where that is not known.
        ranks: on how many ranks.
    """

    verdict: Verdict
    max_over_band: float | None
    elements: int | None
    ranks: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A result that was read.

    Attributes:
        name: of its file, as short as tells it from the others.
        findings: the edges with a finding, in execution order.
        edges: all edges in the order of judging, findings among them.
        kl_mean: mean KL of the output distribution, and `top1` the share of positions with the same token;
            None where there are no figures.
        document: the whole of what was read.
    """

    name: str
    verdict: Verdict
    findings: tuple[EdgeName, ...]
    edges: Mapping[EdgeName, RunEdge]
    kl_mean: float | None
    top1: float | None
    document: Mapping[str, Any]


def read_run(path: Path, *, name: str) -> StoredRun:
    """Read a result.

    Args:
        path: what `--json` wrote.
        name: to call the run by.

    Raises:
        UsageError: the file can't be read, or holds something else.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict) or document.get("schema") != SCHEMA_VERSION:
            version = document.get("schema") if isinstance(document, dict) else None
            raise UsageError(
                f"{path}: no document of schema {SCHEMA_VERSION} (its schema is {str(version)[:80]!r}); give "
                "files that `validator check --json` of this version wrote"
            )
        if "error" in document:
            raise UsageError(
                f"{path}: holds no result, its run failed: {str(document['error']['message'])[:400]}"
            )
        if "checked" not in document:
            raise UsageError(
                f"{path}: holds no result of `validator check`; one of another command can't be put beside "
                "others"
            )
        return _run(document, name)
    except _BROKEN as error:
        raise UsageError(
            f"{path}: can't be read as a result ({type(error).__name__}: {str(error)[:200]}); write it again "
            "with `validator check --json`"
        ) from error


def _run(document: Mapping[str, Any], name: str) -> StoredRun:
    verdict = Verdict(document["verdict"])
    if verdict not in _RUN_VERDICTS:
        raise ValueError(f"{verdict!r} is no verdict on a run")
    findings, edges = document["findings"], document.get("edges", [])
    for key, items in (("findings", findings), ("edges", edges)):
        if not isinstance(items, list):
            raise TypeError(f"{key} are no list")
    found = [_edge(finding, finding["evidence"]) for finding in findings]
    first = next((finding for finding in findings if finding["verdict"] == Verdict.DIVERGENT), None)
    if document["first_divergence"] != first:
        raise ValueError("first_divergence is not the first divergent one of the findings")
    figures = document["distribution"] or {}
    kl, top1 = figures.get("kl"), figures.get("top1_agreement")
    return StoredRun(
        name=name,
        verdict=verdict,
        findings=tuple(dict.fromkeys(edge for edge, _, _ in found)),
        edges=_worst([*(_edge(edge, edge) for edge in edges), *found]),
        kl_mean=None if kl is None else _number(kl["mean"]),
        top1=None if top1 is None else _number(top1),
        document=document,
    )


def _name(fields: Mapping[str, Any]) -> EdgeName:
    module, into, path, call = (fields[key] for key in ("module", "into", "path", "call"))
    for text in (module, path, "" if into is None else into):
        if not isinstance(text, str):
            raise TypeError(f"{text!r} is no name")
    if not _is_count(call):
        raise TypeError(f"call {call!r} is no number")
    return EdgeName(module=module, check=Check(fields["check"]), into=into, path=path, call=call)


def _edge(fields: Mapping[str, Any], figures: Mapping[str, Any]) -> tuple[EdgeName, int | None, RunEdge]:
    """Read an edge and its rank; documents may be older than arm and elements of edges without a finding."""
    rank, elements, error = fields["rank"], figures.get("elements"), figures["max_over_band"]
    for count in (rank, elements):
        if count is not None and not _is_count(count):
            raise ValueError(f"{count!r} is no number of elements, and no rank")
    verdict = Verdict(fields["verdict"])
    measured = facts.error_over_band(
        verdict=verdict,
        arm=None if fields.get("arm") is None else Arm(fields["arm"]),
        measured=None if error is None else _number(error),
    )
    if measured is not None and measured < 0:
        raise ValueError(f"{measured!r} is no error over the band")
    return _name(fields), rank, RunEdge(verdict=verdict, max_over_band=measured, elements=elements)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST


def _number(value: Any) -> float:
    """Return a number as `json_report.plain` writes it."""
    if isinstance(value, bool) or (isinstance(value, str) and value not in ("nan", "inf", "-inf")):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def _worst(edges: Sequence[tuple[EdgeName, int | None, RunEdge]]) -> dict[EdgeName, RunEdge]:
    """Return the worst verdict and the largest error of each edge, over the ranks that it was judged on."""
    ranks: dict[EdgeName, list[tuple[int | None, RunEdge]]] = {}
    for name, rank, edge in edges:
        ranks.setdefault(name, []).append((rank, edge))
    return {
        name: _worst_of([edge for _, edge in found], len({rank for rank, _ in found}))
        for name, found in ranks.items()
    }


def _worst_of(edges: Sequence[RunEdge], ranks: int) -> RunEdge:
    return RunEdge(
        verdict=min((edge.verdict for edge in edges), key=_WORST.index),
        max_over_band=max(
            (edge.max_over_band for edge in edges if edge.max_over_band is not None),
            key=lambda error: (math.isnan(error), error),
            default=None,
        ),
        elements=max((edge.elements for edge in edges if edge.elements is not None), default=None),
        ranks=ranks,
    )
