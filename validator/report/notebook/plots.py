"""The plots of a result by name, of which users compose their own."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from validator.checks.findings import Finding, Judgement, Outcome
from validator.errors import UsageError
from validator.report import facts
from validator.report.figures.drawing import Figure, edge_label
from validator.report.figures.edge import edge_figures
from validator.report.figures.execution import edges_figure, worst_judgement
from validator.report.figures.layers import LAYER_METRICS, layers_figure
from validator.report.figures.positions import kl_figure, positions_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = ["OUTCOME_FIGURES", "Edge", "judgement_of", "plot"]

Edge = int | Judgement | Finding | None
"""An edge: its row in the frame, a judgement or a finding; None is the edge that a reader looks at first."""

OUTCOME_FIGURES: Mapping[str, Callable[[Outcome], Figure | None]] = {
    "edges": edges_figure,
    "layers": layers_figure,
    **{f"layers: {metric}": partial(layers_figure, metric=metric) for metric in LAYER_METRICS},
    "positions": positions_figure,
    "kl": kl_figure,
}
"""What shows the whole run. Those that need profiles are None where there are none."""


def plot(outcome: Outcome, name: str, edge: Edge) -> "go.Figure":
    """Return a plot.

    Args:
        outcome: of a run.
        name: one of `OUTCOME_FIGURES`, or of those that `edge_figures` has of the edge.
        edge: what a plot of a single edge is of.

    Raises:
        UsageError: there is no plot of that name, or no profile to draw it from.
    """
    import plotly.graph_objects as go

    if name in OUTCOME_FIGURES:
        drawn = OUTCOME_FIGURES[name](outcome)
        if drawn is None:
            raise UsageError(
                f"this result has nothing to draw {name!r} of: check(..., profiles=True) keeps the error per "
                "token, and of a model with logits the KL per position"
            )
        return go.Figure(drawn)
    judgement = judgement_of(outcome, edge)
    if judgement.profile is None:
        raise UsageError(
            f"there is no plot {name!r} of the whole run, and {edge_label(judgement)} has no profile: "
            f"check(..., profiles=True) keeps them. Plots of the run are {_names(OUTCOME_FIGURES)}"
        )
    figures = edge_figures(judgement.profile)
    if name not in figures:
        raise UsageError(
            f"there is no plot {name!r}; of the run there are {_names(OUTCOME_FIGURES)}; of "
            f"{edge_label(judgement)} there are {_names(figures)}"
        )
    return go.Figure(figures[name])


def judgement_of(outcome: Outcome, edge: Edge) -> Judgement:
    """Return the judgement of an edge.

    Raises:
        UsageError: there is none.
    """
    if isinstance(edge, Judgement):
        return edge
    if isinstance(edge, Finding):
        key = facts.edge_key(edge)
        found = [judgement for judgement in outcome.judgements if facts.edge_key(judgement) == key]
        named = [judgement for judgement in found if judgement.rank == edge.rank]
        for judgement in (*named, *found):
            return judgement
        raise UsageError(f"{edge_label(edge)} is no finding of this result; take one of result.findings")
    row = worst_judgement(outcome) if edge is None else edge
    if row is None or not 0 <= row < len(outcome.judgements):
        raise UsageError(f"no edge {row}: this result has {len(outcome.judgements)}, counted from 0")
    return outcome.judgements[row]


def _names(figures: Iterable[str]) -> str:
    return ", ".join(map(repr, figures))
