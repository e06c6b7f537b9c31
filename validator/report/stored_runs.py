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
_WORST = (Verdict.DIVERGENT, Verdict.UNDECLARED_PRECISION, Verdict.ALIGNED, Verdict.UNCHECKED)


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
        elements: how many were judged; None where that is not known.
    """

    verdict: Verdict
    max_over_band: float | None
    elements: int | None


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
    found = [(_name(finding), _edge(finding, finding["evidence"])) for finding in document["findings"]]
    judged = [(_name(edge), _edge(edge, edge)) for edge in document.get("edges", [])]
    figures = document["distribution"] or {}
    kl, top1 = figures.get("kl"), figures.get("top1_agreement")
    return StoredRun(
        name=name,
        verdict=verdict,
        findings=tuple(dict.fromkeys(name for name, _ in found)),
        edges=_worst([*judged, *found]),
        kl_mean=None if kl is None else float(kl["mean"]),
        top1=None if top1 is None else float(top1),
        document=document,
    )


def _name(fields: Mapping[str, Any]) -> EdgeName:
    into, call = fields["into"], fields["call"]
    if not isinstance(call, int):
        raise TypeError(f"call {call!r} is no number")
    return EdgeName(
        module=str(fields["module"]),
        check=Check(fields["check"]),
        into=None if into is None else str(into),
        path=str(fields["path"]),
        call=call,
    )


def _edge(fields: Mapping[str, Any], figures: Mapping[str, Any]) -> RunEdge:
    """Read an edge; documents may be older than arm and elements of edges without a finding."""
    verdict, error, elements = Verdict(fields["verdict"]), figures["max_over_band"], figures.get("elements")
    if elements is not None and (not isinstance(elements, int) or not 0 <= elements < _MOST):
        raise ValueError(f"{elements!r} is no number of elements")
    return RunEdge(
        verdict=verdict,
        max_over_band=facts.error_over_band(
            verdict=verdict,
            arm=None if fields.get("arm") is None else Arm(fields["arm"]),
            measured=None if error is None else float(error),
        ),
        elements=elements,
    )


def _worst(edges: Sequence[tuple[EdgeName, RunEdge]]) -> dict[EdgeName, RunEdge]:
    """Return the worst verdict and the largest error of each edge, over the ranks that it was judged on.

    That error is the largest of at least as many elements as one rank has.
    """
    ranks: dict[EdgeName, list[RunEdge]] = {}
    for name, edge in edges:
        ranks.setdefault(name, []).append(edge)
    return {
        name: RunEdge(
            verdict=min((edge.verdict for edge in found), key=_WORST.index),
            max_over_band=max(
                (e.max_over_band for e in found if e.max_over_band is not None),
                key=lambda error: (math.isnan(error), error),
                default=None,
            ),
            elements=max((e.elements for e in found if e.elements is not None), default=None),
        )
        for name, found in ranks.items()
    }
