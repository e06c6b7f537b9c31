"""Error against position: which tokens the errors are at, and what they do to the output there."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from validator import digits
from validator.checks.findings import Outcome
from validator.checks.profiles import Line, Unit
from validator.report import phrases
from validator.report.figures.drawing import (
    PALETTE,
    ErrorAxis,
    Figure,
    edge_label,
    error_title,
    label,
    limit_line,
    told,
)
from validator.report.figures.heat import ROWS, limit_scale, named_axis, shade
from validator.report.figures.layers import layer_words, layers_of, place_of

__all__ = ["PositionKL", "TokenErrors", "kl_figure", "position_kl", "positions_figure", "token_errors"]

_SHOWN_POSITIONS, _SHOWN_POINTS, _FEWEST = 1024, 8192, 64
"""So many positions are told of a sequence, so many of all together, but of each so many in any case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenErrors:
    """The largest error over the band of each layer at each token, or bin of tokens.

    Attributes:
        layers: names of the layers.
        starts: first token of each bin.
        tokens: the tokens of each bin, as text.
        errors: of each layer, of each bin; NaN where nothing was judged.
        size: how many tokens there are.
        left_out: names of the edges that are held to a band, but have no dim of so many tokens.
    """

    layers: tuple[str, ...]
    starts: tuple[int, ...]
    tokens: tuple[str, ...]
    errors: tuple[tuple[float, ...], ...]
    size: int
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionKL:
    """KL(reference || candidate), in nats, at each position of each sequence, or the worst of neighbours.

    Attributes:
        width: how many neighbouring tokens are told by the worst of them.
        tokens: the token, or tokens, of each bin as text, by the number of the bin.
        sequences: of each sequence the token and the KL of the worst position, by the number of the bin.
    """

    width: int
    tokens: Mapping[int, str]
    sequences: Mapping[int, Mapping[int, tuple[int, float]]]

    @property
    def title(self) -> str:
        """What tokens are called on an axis, or above a column."""
        return "token" if self.width == 1 else f"tokens, the worst of each {self.width}"


def token_errors(outcome: Outcome) -> TokenErrors | None:
    """Return which tokens the errors of each layer are at; None where no profile tells.

    Where edges have several numbers of tokens it tells of those with the most frequent one.
    """
    judged = [
        (j, next((line for line in j.profile.lines if line.axis == "token"), None))
        for j in outcome.judgements
        if j.profile is not None and j.profile.unit is Unit.BAND
    ]
    sizes = Counter(line.size for _, line in judged if line is not None)
    if not sizes:
        return None
    size = sizes.most_common(1)[0][0]
    kept = [(place_of(j.module).layer, line) for j, line in judged if line is not None and line.size == size]
    columns = layers_of(j.module for j in outcome.judgements)
    rows = [layer for layer in columns if any(layer == of for of, _ in kept)]
    starts = kept[0][1].starts
    lasts = [*(start - 1 for start in starts[1:]), size - 1]
    return TokenErrors(
        layers=tuple(columns[layer] for layer in rows),
        starts=tuple(starts),
        tokens=tuple(f"{a}" if a == b else f"{a} to {b}" for a, b in zip(starts, lasts, strict=True)),
        errors=tuple(_worst_of([line for of, line in kept if of == layer]) for layer in rows),
        size=size,
        left_out=tuple(edge_label(j) for j, line in judged if line is None or line.size != size),
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
                        f"{label(layer_words(name))}, token {token}: {error}"
                        for token, error in zip(found.tokens, told(line), strict=True)
                    ]
                    for name, line in zip(found.layers, found.errors, strict=True)
                ],
                "hovertemplate": "%{text}<extra></extra>",
                **limit_scale(error_title(Unit.BAND)),
            }
        ],
        "layout": {
            **({"title": {"text": _without(found)}} if found.left_out else {}),
            "xaxis": {"title": {"text": "token"}},
            "yaxis": {"title": {"text": "layer"}, "autorange": "reversed", **named_axis(found.layers, ROWS)},
        },
    }


def position_kl(outcome: Outcome) -> PositionKL | None:
    """Return the KL at each position, or the worst of neighbours where there are many; None where unknown."""
    output = outcome.output
    if output is None or not output.places:
        return None
    last = max(token for _, token in output.places)
    count = len({sequence for sequence, _ in output.places})
    width = math.ceil((last + 1) / min(_SHOWN_POSITIONS, max(_SHOWN_POINTS // count, _FEWEST)))
    sequences: dict[int, dict[int, tuple[int, float]]] = {}
    for (sequence, token), kl in zip(output.places, output.kl, strict=True):
        found = sequences.setdefault(sequence, {})
        at = token // width
        if at not in found or _badness(kl) > _badness(found[at][1]):
            found[at] = token, kl
    bins = sorted({at for found in sequences.values() for at in found})
    ends = {at: (at * width, min(at * width + width - 1, last)) for at in bins}
    return PositionKL(
        width=width,
        tokens={at: f"{a}" if a == b else f"{a} to {b}" for at, (a, b) in ends.items()},
        sequences=sequences,
    )


def kl_figure(outcome: Outcome) -> Figure | None:
    """Show `position_kl` as a line a sequence; None where it is not known."""
    found = position_kl(outcome)
    if found is None:
        return None
    floor = _floor(outcome)
    errors = [kl for line in found.sequences.values() for _, kl in line.values()]
    largest = max((kl for kl in errors if 0 < kl < math.inf), default=1.0)
    axis = ErrorAxis(errors, "KL, nats", limit=largest if floor is None else floor)
    worst = ", the worst" if found.width > 1 else ""
    traces = []
    for sequence, line in found.sequences.items():
        values = [kl for _, kl in line.values()]
        words = zip(line, told(values, digits.number), strict=True)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": f"sequence {sequence}",
                "x": [token for token, _ in line.values()],
                "y": axis.place(values),
                "text": [f"token {found.tokens[at]}{worst}: {kl}" for at, kl in words],
                "hovertemplate": "%{text} nats",
                "marker": {"size": 4},
                "line": {"width": 1},
            }
        )
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": found.title}},
        "yaxis": axis.layout(),
        "showlegend": len(traces) > 1,
        "colorway": list(PALETTE),
    }
    if floor is not None:
        layout["shapes"] = [limit_line(floor)]
        layout["title"] = {"text": f"dashed: noise alone, {digits.number(floor)} nats"}
    return {"data": traces, "layout": layout}


def _without(found: TokenErrors) -> str:
    return f"without {phrases.count(len(found.left_out), 'edge')} of another number of tokens, or of none"


def _floor(outcome: Outcome) -> float | None:
    """Return the KL that noise makes by itself, where an axis of powers of ten can show it."""
    floor = (outcome.distribution or {}).get("kl_noise_floor")
    return floor if isinstance(floor, float) and 0 < floor < math.inf else None


def _badness(kl: float) -> tuple[bool, float]:
    return math.isnan(kl), kl


def _worst_of(lines: Sequence[Line]) -> tuple[float, ...]:
    """Return the largest error in each bin, of lines with the same bins."""
    columns = zip(*(line.largest for line in lines), strict=True)
    return tuple(
        max((value for value in column if not math.isnan(value)), default=math.nan) for column in columns
    )
