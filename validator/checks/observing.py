"""Looks at each edge as it is judged: keeps its profile, and its values where they are wanted."""

from dataclasses import dataclass

from torch import Tensor

from validator.align.traces import View
from validator.checks.edge_values import values_of
from validator.checks.findings import Check, Judgement
from validator.checks.judge import Band, Bench
from validator.checks.judged_values import StoredEdge
from validator.checks.module_code import CodeEdge
from validator.checks.profiles import Profile
from validator.checks.profiling import profile_of
from validator.checks.values_writer import ValuesWriter
from validator.numerics.formats import format_of
from validator.numerics.rounding import round_nearest

__all__ = ["Observer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    """Looks at edges.

    Attributes:
        store: where values are written, or None.
    """

    store: ValuesWriter | None = None

    def look(
        self,
        judgement: Judgement,
        edge: CodeEdge,
        *,
        band: Band | None,
        judged: Tensor | None,
        view: View,
        bench: Bench,
    ) -> Profile:
        """Return the profile of an edge.

        Args:
            judgement: what is said of it.
            edge: its values.
            band: what rounding explains; None where nothing is computed.
            judged: `[*]` boolean, or None for all.
            view: whose copies are judged.
            bench: what is common to the run.
        """
        exact = edge.exact
        if judgement.check is Check.INPUT and edge.cand.data.is_floating_point():
            exact = round_nearest(exact, format_of(edge.cand.data.dtype))  # as it was judged
        values = values_of(exact=exact, cand=edge.cand, band=band, judged=judged, bench=bench)
        if self.store is not None:
            stored = StoredEdge(
                module=judgement.module,
                check=judgement.check,
                path=judgement.path,
                call=judgement.call,
                order=judgement.order,
                into=judgement.into,
                rank=judgement.rank if judgement.check is Check.PARTIAL else None,
                ranks=view.ranks,
                dims=edge.cand.dims,
                shape=tuple(edge.cand.data.shape),
            )
            self.store.put(stored, values)
        return profile_of(values)
