"""Error against position: which tokens the errors are at, and what they do to the output there."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from validator.checks.findings import Outcome
from validator.checks.profiles import Line, Unit
from validator.report import phrases
from validator.report.figures.drawing import (
    PALETTE,
    ErrorAxis,
    Figure,
    error_title,
    label,
    limit_line,
    told,
)
from validator.report.figures.heat import ROWS, limit_scale, named_axis, shade
from validator.report.figures.layers import layers_of, place_of

__all__ = ["TokenErrors", "kl_figure", "positions_figure", "token_errors"]

_SHOWN_POSITIONS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenErrors:
    """The largest error over the band of each layer at each token, or bin of tokens.

    Attributes:
        layers: names of the layers.
        starts: first token of each bin.
        tokens: the tokens of each bin, as text.
        errors: of each layer, of each bin; NaN where nothing was judged.
    """

    layers: tuple[str, ...]
    starts: tuple[int, ...]
    tokens: tuple[str, ...]
    errors: tuple[tuple[float, ...], ...]


def token_errors(outcome: Outcome) -> TokenErrors | None:
    """Return which tokens the errors of each layer are at; None where no profile tells.

    Layers whose edges have several numbers of tokens are told by the edges of the most frequent one.
    """
    lines = [
        (place_of(j.module).layer, line)
        for j in outcome.judgements
        if j.profile is not None and j.profile.unit is Unit.BAND
        for line in j.profile.lines
        if line.axis == "token"
    ]
    if not lines:
        return None
    size = Counter(line.size for _, line in lines).most_common(1)[0][0]
    kept = [(layer, line) for layer, line in lines if line.size == size]
    columns = layers_of(j.module for j in outcome.judgements)
    rows = [layer for layer in columns if any(layer == of for of, _ in kept)]
    starts = kept[0][1].starts
    lasts = [*(start - 1 for start in starts[1:]), size - 1]
    return TokenErrors(
        layers=tuple(columns[layer] for layer in rows),
        starts=tuple(starts),
        tokens=tuple(f"{a}" if a == b else f"{a} to {b}" for a, b in zip(starts, lasts, strict=True)),
        errors=tuple(_worst_of([line for of, line in kept if of == layer]) for layer in rows),
    )


def positions_figure(outcome: Outcome) -> Figure | None:
    """Show `token_errors` as a heat map; None where no profile tells."""
    found = token_errors(outcome)
    if found is None:
        return None
    return {
        "data": [
            {
                "type": "heatmap",
                "x": list(found.starts),
                "y": list(range(len(found.layers))),
                "z": [[shade(value) for value in line] for line in found.errors],
                "text": [
                    [
                        f"layer {label(name)}, token {token}: {error}"
                        for token, error in zip(found.tokens, told(line), strict=True)
                    ]
                    for name, line in zip(found.layers, found.errors, strict=True)
                ],
                "hovertemplate": "%{text}<extra></extra>",
                **limit_scale(error_title(Unit.BAND)),
            }
        ],
        "layout": {
            "xaxis": {"title": {"text": "token"}},
            "yaxis": {"title": {"text": "layer"}, "autorange": "reversed", **named_axis(found.layers, ROWS)},
        },
    }


def kl_figure(outcome: Outcome) -> Figure | None:
    """Show KL(reference || candidate) at each position of each sequence; None where it is not known."""
    output = outcome.output
    if output is None:
        return None
    floor = _floor(outcome)
    largest = max((kl for kl in output.kl if 0 < kl < math.inf), default=1.0)
    axis = ErrorAxis(output.kl, "KL, nats", limit=largest if floor is None else floor)
    width = math.ceil(len(output.kl) / _SHOWN_POSITIONS)
    by_sequence: dict[int, list[tuple[int, float]]] = {}
    for (sequence, token), kl in zip(output.places, output.kl, strict=True):
        by_sequence.setdefault(sequence, []).append((token, kl))
    traces = []
    for sequence, found in by_sequence.items():
        # Of neighbouring positions of a long run, the worst.
        shown = [max(found[n : n + width], key=lambda pair: pair[1]) for n in range(0, len(found), width)]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": f"sequence {sequence}",
                "x": [token for token, _ in shown],
                "y": axis.place([kl for _, kl in shown]),
                "text": told([kl for _, kl in shown]),
                "hovertemplate": "token %{x}: %{text} nats",
                "marker": {"size": 4},
                "line": {"width": 1},
            }
        )
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "token"}},
        "yaxis": axis.layout(),
        "showlegend": len(traces) > 1,
        "colorway": list(PALETTE),
    }
    if floor is not None:
        layout["shapes"] = [limit_line(floor)]
        layout["annotations"] = [
            {
                "xref": "paper",
                "x": 1,
                "y": math.log10(floor),
                "xanchor": "right",
                "yanchor": "bottom",
                "showarrow": False,
                "text": f"noise like that of the logits: {phrases.number(floor)}",
            }
        ]
    return {"data": traces, "layout": layout}


def _floor(outcome: Outcome) -> float | None:
    """Return the KL that noise makes by itself, where an axis of powers of ten can show it."""
    floor = (outcome.distribution or {}).get("kl_noise_floor")
    return floor if isinstance(floor, float) and 0 < floor < math.inf else None


def _worst_of(lines: Sequence[Line]) -> tuple[float, ...]:
    """Return the largest error in each bin, of lines with the same bins."""
    columns = zip(*(line.largest for line in lines), strict=True)
    return tuple(
        max((value for value in column if not math.isnan(value)), default=math.nan) for column in columns
    )
