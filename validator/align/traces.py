"""The candidate's run in the reference's names: what `align/` hands to `checks/`.

Edges hold logical tensors (shards put together), wherever the candidate computed them, with the
rank and place each part came from and the meaning of each dim. Nothing behind this boundary knows
of files, engines or fused names.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from validator.align.inside import TraceOperator
from validator.capturing.records import Statistics
from validator.sharding.plan import Part

__all__ = [
    "Edge",
    "LeftOut",
    "LogicalTensor",
    "Part",
    "PartialSum",
    "StepTokens",
    "Trace",
    "TraceCall",
    "View",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalTensor:
    """A whole tensor, put together from the ranks' parts.

    Attributes:
        data: `[*]` in the candidate's dtype, on the CPU.
        parts: where it came from; parts of several ranks overlap where the tensor is replicated.
        dims: meaning of each dim: `"batch"`, `"token"`, `"head"`, `"channel"`, `"expert"`, or `""`.
    """

    data: torch.Tensor
    parts: tuple[Part, ...]
    dims: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What one group of ranks saw.

    Ranks whose replicas agree everywhere share a view; a healthy run has one view with all ranks.
    Where replicas differ, each view reads its own copies of the replicated tensors, and judges only
    the parts that its own ranks hold.
    """

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """One tensor between two computations.

    Attributes:
        path: where it stands in the call's inputs or outputs.
        dtype: the torch name without `torch.`.
        shape: of the logical tensor.
        read: the logical tensor as a view saw it.
        is_replicated: whether ranks hold copies of the same part of it.
        disagreeing: ranks whose replica differs from that of the lowest rank; empty if all agree.
        odd_rank: the one rank whose replica differs from those of a majority, which are alike; None where
            fewer than three ranks hold replicas, or nothing says which is the odd one.
        stream: yields what `read` returns in flat blocks, row-major; None where that takes the whole tensor.
        parts: which rank held which part, copies included.
        dims: meaning of each dim, as in `LogicalTensor`.
        checksum: of the bytes, where each rank holds the whole and all agree; else None.
        row_hashes: of a parameter whose values are not stored on some rank: `digest.row_hashes` of what
            `read` would return; None where they are stored, or the ranks' rows are no whole rows of it.
        one_in: one of so many elements is known, `read` has NaN for others; 0 where statistics alone are.
        statistics: of the logical tensor as a view saw it; None where the parts don't tell.
        is_quantised: whether it is a weight that the candidate holds as codes.
        has_two_scales: whether two scales fit these: `quantised.reading.reading_other_scales`.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    read: Callable[[View], LogicalTensor] = field(repr=False, compare=False)
    is_replicated: bool = False
    disagreeing: tuple[int, ...] = ()
    odd_rank: int | None = None
    stream: Callable[[View], Iterator[torch.Tensor]] | None = field(default=None, repr=False, compare=False)
    parts: tuple[Part, ...] = ()
    dims: tuple[str, ...] = ()
    checksum: str | None = None
    row_hashes: Callable[[View], tuple[str, ...]] | None = field(default=None, repr=False, compare=False)
    one_in: int = 1
    statistics: Callable[[View], Statistics | None] | None = field(default=None, repr=False, compare=False)
    is_quantised: bool = False
    has_two_scales: bool = False

    def with_rows(self, order: torch.Tensor) -> "Edge":
        """Return the edge with `[rows]` of its first dim in another order, each with the part it is from."""

        def read(view: View) -> LogicalTensor:
            found = self.read(view)
            parts = tuple(part for part in _reordered(found.parts, order))
            return replace(found, data=found.data[order], parts=parts)

        parts = tuple(_reordered(self.parts, order))
        return replace(self, read=read, stream=None, parts=parts, checksum=None, row_hashes=None)

    def blocks(self, view: View) -> Iterator[torch.Tensor]:
        """Yield the elements as a view saw them, in row-major order, in flat tensors, at least one."""
        return iter([self.read(view).data.reshape(-1)]) if self.stream is None else self.stream(view)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialSum:
    """What each rank gave to a sum over ranks inside a call, and the slice of the work that it did.

    Attributes:
        op: `"all_reduce"` or `"reduce_scatter"`.
        tensors: per rank, what entered the collective.
        order: 0 for the first collective inside this call, 1 for the second, ...
        input_boxes: per rank, the box of the call's (only) input that this rank's slice of a sharded
            contraction covers, or None where it can't be told.
        box: of the call's only output that the sum is, or None for all of it.
        altered: ranks that gave something else than what a module inside the call had returned, where others
            gave just that.
        made_of: what modules inside the call returned that are terms of a sum as well, per rank: these terms
            are made of them.
    """

    op: str
    order: int
    tensors: Mapping[int, torch.Tensor]
    input_boxes: Mapping[int, tuple[tuple[int, int], ...] | None]
    box: tuple[tuple[int, int], ...] | None = None
    altered: tuple[int, ...] = ()
    made_of: tuple[Mapping[int, torch.Tensor], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTokens:
    """The tokens of one of the steps that a call of the model puts end to end.

    Attributes:
        call: which call of the candidate's model it was.
        number, count: which step it is, from 1, and how many there are.
        start, stop: its tokens, counted from the first of all steps.
        kept: the positions whose logits it returned.
    """

    call: int
    number: int
    count: int
    start: int
    stop: int
    kept: tuple[int, ...]

    def __str__(self) -> str:
        return f"step {self.number} of {self.count}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCall:
    """One call of one reference module, as the candidate ran it.

    Attributes:
        module: fqn in the reference's names.
        candidate_module: fqn in the candidate's.
        n: how many calls of this module came before.
        parent: `(module, n)` of the call that encloses it, or None.
        order: position in execution order (start of the call), unique in the trace.
        root: `(module, n)` of the reference's outermost call around it, or its own; the candidate's may not
            have been captured.
        inputs, outputs: edges by path.
        values: plain arguments (None, bool, int, float, str) by path.
        partials: sums over ranks directly inside this call, in order.
        operators: that the candidate ran directly inside this call, where they were recorded.
    """

    module: str
    candidate_module: str
    n: int
    parent: tuple[str, int] | None
    order: int
    inputs: Mapping[str, Edge]
    outputs: Mapping[str, Edge]
    values: Mapping[str, Any]
    root: tuple[str, int] = ("", 0)
    partials: tuple[PartialSum, ...] = ()
    operators: tuple[TraceOperator, ...] = ()

    def with_rows(self, order: torch.Tensor) -> "TraceCall":
        """Return the call with the rows of what goes in and what comes out in another order.

        Tensors that have another number of rows stay as they are.
        """

        def reordered(edges: Mapping[str, Edge]) -> dict[str, Edge]:
            return {
                path: edge.with_rows(order) if edge.shape[:1] == order.shape else edge
                for path, edge in edges.items()
            }

        return replace(self, inputs=reordered(self.inputs), outputs=reordered(self.outputs))


def _reordered(parts: Iterable[Part], order: torch.Tensor) -> Iterator[Part]:
    """Yield what is left of parts when rows are put into another order: runs of rows that stay together."""
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order))
    for part in parts:
        (start, stop), *others = part.box
        mine = places[start:stop].sort().values
        if not len(mine):
            continue
        cuts = (mine.diff() != 1).nonzero()[:, 0] + 1
        for run in mine.tensor_split(cuts):
            yield replace(part, box=((int(run[0]), int(run[-1]) + 1), *others))


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """What a user chose not to look at.

    Attributes:
        modules: of the reference, that ran or hold parameters.
        options: what chose them, as on the command line.
    """

    modules: tuple[str, ...] = ()
    options: str = ""
    _members: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_members", frozenset(self.modules))

    def __contains__(self, module: object) -> bool:
        return module in self._members

    def told(self) -> str:
        """Say in words how many they are and what left them out."""
        if self.modules == ("",):
            return f"the model itself was left out by {self.options}"
        whole = ", the model itself among them," if "" in self.modules else ""
        count = f"{len(self.modules)} modules{whole} were" if len(self.modules) > 1 else "1 module was"
        return f"{count} left out by {self.options}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A candidate's whole run in the reference's names.

    Attributes:
        calls: by `(module, n)`, in execution order.
        parameters: the candidate's parameters and buffers as edges, by the reference's name, their path.
        candidate_parameters: the candidate's name of each.
        views: see `View`; one that holds all ranks where every replica agrees.
        world_size: number of ranks.
        problems: edges that could not be put together: `(module, why)`.
        missing_outputs: floating outputs that the reference has and the candidate has not: `(module, path)`.
        unmatched_reference, unmatched_candidate: modules that fired on one side alone.
        left_out: modules of the reference whose partners a user chose not to look at; they are not among
            those that fired in the reference alone, though their parameters are.
        found_names: what structure and values told of the candidate's names, as the target's `names` would.
        unmatched_parameters: names on one side alone: (of the reference, of the candidate).
        missing_parameters: those of the reference alone whose module the candidate has, captured, with
            nothing that could stand in for them.
        steps: of each call of the model, by its number, that stands for several of the candidate's.
        requantised: the format that the recipe declares weights to be quantised to anew, or None.
    """

    calls: Mapping[tuple[str, int], TraceCall]
    parameters: Mapping[str, Edge]
    candidate_parameters: Mapping[str, str]
    views: tuple[View, ...]
    world_size: int
    problems: tuple[tuple[str, str], ...] = ()
    missing_outputs: tuple[tuple[str, str], ...] = ()
    unmatched_reference: tuple[str, ...] = ()
    unmatched_candidate: tuple[str, ...] = ()
    left_out: LeftOut = LeftOut()
    found_names: Mapping[str, str] = field(default_factory=dict)
    unmatched_parameters: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    missing_parameters: tuple[str, ...] = ()
    steps: Mapping[int, tuple[StepTokens, ...]] = field(default_factory=dict)
    requantised: str | None = None
