"""What the scripts of a page know: the figures of the outcome, and of each edge what its panel shows."""

import math
from collections.abc import Mapping
from typing import Any

from validator import digits
from validator.checks.findings import Judgement, Outcome, Verdict
from validator.checks.profiles import Window
from validator.report import facts, phrases
from validator.report.figures.drawing import edge_label, over_band, told
from validator.report.figures.edge import edge_figures
from validator.report.figures.execution import edges_figure, worst_judgement
from validator.report.figures.layers import LAYER_METRICS, layers_figure
from validator.report.figures.positions import kl_figure, positions_figure

__all__ = ["edge_rows", "page_data"]

_DETAILED = 50
"""So many edges are shown in full, those that diverge before others, and the one that is shown first."""

_BINS, _SAMPLED = 64, 64
"""Of other edges so many places and elements are shown, and one row of values around the worst."""

_DIGITS = 9
"""So many tell all float32 values apart."""


def page_data(outcome: Outcome) -> dict[str, Any]:
    """Return what the scripts of a page know, as plain values but for numbers that are not finite."""
    shown = worst_judgement(outcome)
    detailed = {*_worst_first(outcome)[:_DETAILED], shown}
    figures = {
        "edges": edges_figure(outcome),
        "layers": layers_figure(outcome),
        **{metric: layers_figure(outcome, metric) for metric in LAYER_METRICS},
        "kl": kl_figure(outcome),
        "positions": positions_figure(outcome),
    }
    return {
        "figures": figures,
        "shown": shown,
        "edges": [_edge(outcome, j, in_full=n in detailed) for n, j in enumerate(outcome.judgements)],
    }


def _worst_first(outcome: Outcome) -> list[int]:
    """Return the rows that have a profile: those that are not aligned first, and by their error."""

    def key(row: int) -> tuple[bool, bool, float]:
        judgement = outcome.judgements[row]
        error = over_band(judgement)
        return judgement.verdict is Verdict.ALIGNED, math.isnan(error), -error

    return sorted((n for n, j in enumerate(outcome.judgements) if j.profile is not None), key=key)


def _edge(outcome: Outcome, judgement: Judgement, *, in_full: bool) -> dict[str, Any]:
    profile = judgement.profile
    figures = {}
    if profile is not None:
        figures = edge_figures(profile) if in_full else edge_figures(profile, bins=_BINS, sampled=_SAMPLED)
    return {
        "name": phrases.shown(edge_label(judgement)),
        "verdict": judgement.verdict,
        "rows": edge_rows(judgement),
        "findings": _findings(outcome, judgement),
        "figures": figures,
        "window": None
        if profile is None or profile.window is None
        else _window(profile.window, in_full=in_full),
    }


def edge_rows(judgement: Judgement) -> list[tuple[str, str]]:
    """Return labels and texts of the figures behind a judgement; what is not known is left out."""
    evidence = judgement.evidence
    gain = None
    if evidence.gain is not None:
        z = "" if evidence.z is None else f", z = {digits.number(evidence.z)}"
        gain = f"{digits.scientific(evidence.gain)}{z}"
    rows = {
        "module": phrases.module_name(judgement.module),
        "in the candidate": None
        if judgement.candidate_module == judgement.module
        else phrases.module_name(judgement.candidate_module),
        "check": judgement.check,
        "verdict": judgement.verdict.replace("_", " "),
        "rule": judgement.arm,
        "rank": judgement.rank,
        "recipe": judgement.recipe,
        "dtype": judgement.dtype or None,
        "shape": phrases.shape(evidence.shape, evidence.dims) if evidence.shape else None,
        "largest error / band": told([over_band(judgement)])[0],
        "largest error, ulp": None
        if evidence.ulp_error_max is None
        else digits.number(evidence.ulp_error_max),
        "gain": gain,
        "outside": None
        if not evidence.elements
        else f"{evidence.outside or 0} of {evidence.elements} elements",
        "smallest gain that would show": None
        if judgement.smallest_gain is None
        else digits.number(judgement.smallest_gain),
        "note": judgement.note or None,
    }
    return [(name, phrases.shown(str(value))) for name, value in rows.items() if value is not None]


def _findings(outcome: Outcome, judgement: Judgement) -> list[dict[str, Any]]:
    """Return number, summary and signature of the findings on an edge."""
    return [
        {
            "number": number,
            "summary": phrases.shown(finding.summary),
            "signature": None
            if finding.signature is None
            else phrases.shown(phrases.signature(finding.signature)),
            "evidence": {} if finding.signature is None else _texts(finding.signature.parameters),
        }
        for number, finding in enumerate(outcome.findings, start=1)
        if facts.is_of(judgement, finding)
    ]


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {phrases.shown(name): phrases.shown(str(value)) for name, value in values.items()}


def _window(window: Window, *, in_full: bool) -> dict[str, Any]:
    first, last = 0, len(window.oracle)
    start = list(window.start)
    if not in_full and len(start) > 1:
        first = window.worst[-2] - start[-2]
        start[-2], last = window.worst[-2], first + 1
    tables = (
        ("oracle", window.oracle, _DIGITS),
        ("candidate", window.candidate, _DIGITS),
        ("allowed", window.allowed, 3),
    )
    # As text: a table shows NaN and infinities as well.
    shown = {
        name: [[f"{value:.{digits}g}" for value in row] for row in rows[first:last]]
        for name, rows, digits in tables
    }
    outside = [
        [_is_outside(*values) for values in zip(*rows, strict=True)]
        for rows in zip(window.oracle, window.candidate, window.allowed, strict=True)
    ]
    return {"start": start, "worst": window.worst, **shown, "outside": outside[first:last]}


def _is_outside(oracle: float, candidate: float, allowed: float) -> bool:
    """Tell from the values, not from their texts, whether they are farther apart than is allowed."""
    if math.isnan(allowed) or allowed == math.inf:
        return False
    is_same = candidate == oracle or (math.isnan(candidate) and math.isnan(oracle))
    return not (is_same or abs(candidate - oracle) <= allowed)
