"""Looks at each edge as it is judged: keeps its profile, and its values where they are wanted."""

from dataclasses import dataclass, field

from torch import Tensor

from validator.align.dims import root_sizes
from validator.align.traces import Trace, TraceCall, View
from validator.checks.edge_values import values_of
from validator.checks.findings import Check, Judgement
from validator.checks.heads import HeadSizes
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
        heads: which edges hold heads.
        store: where values are written, or None.
    """

    heads: HeadSizes = field(default_factory=HeadSizes)
    store: ValuesWriter | None = None

    def look(
        self,
        judgement: Judgement,
        edge: CodeEdge,
        *,
        call: TraceCall,
        trace: Trace,
        band: Band | None,
        judged: Tensor | None,
        view: View,
        bench: Bench,
    ) -> Profile:
        """Return the profile of an edge.

        Args:
            judgement: what is said of it.
            edge: its values.
            call: whose input or output it is.
            trace: the candidate's run.
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
        of_heads = self.heads.outputs if edge.into is None else self.heads.inputs
        return profile_of(
            values, sequences=_sequences(edge, call, trace), head_size=of_heads.get(call.module)
        )


def _sequences(edge: CodeEdge, call: TraceCall, trace: Trace) -> int:
    """Return how many sequences follow each other in the first dim of an edge."""
    root = trace.calls.get(call.root)
    shapes = {} if root is None else {path: (given.shape, given.dtype) for path, given in root.inputs.items()}
    sizes = root_sizes(shapes)
    shape, dims = edge.cand.data.shape, edge.cand.dims
    is_flat = sizes is not None and dims[:1] == ("token",) and shape[0] == sizes.batch * sizes.tokens
    return sizes.batch if sizes is not None and is_flat else 1
