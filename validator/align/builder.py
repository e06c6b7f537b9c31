"""Build the trace: the candidate's run, on however many ranks, in the reference's names."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from validator.align.calls import MatchedCall, enclosing, match_calls
from validator.align.dims import RootSizes, dims_of, root_sizes
from validator.align.dry_runs import leave_out_dry_runs
from validator.align.edges import DimsOf, JoinedEdge, JoinedSide, find_views, is_mask, join_side
from validator.align.expert_ranks import number_experts
from validator.align.inside import join_operators
from validator.align.late_sums import mark_terms, move_late_sums
from validator.align.layer_numbers import number_layers
from validator.align.left_out import find_left_out
from validator.align.microbatches import join_microbatches
from validator.align.mixtures import Mixtures, choices, find_mixtures
from validator.align.names import map_modules
from validator.align.naming import name_captures
from validator.align.parameters import join_parameters
from validator.align.partials import find_partials, returned_inside, sums_by_call
from validator.align.patterns import Patterns
from validator.align.residuals import join_residuals
from validator.align.scattered_sums import whole_terms
from validator.align.stages import join_stages
from validator.align.tokens import UnknownOrderError, find_token_order, splits_tokens
from validator.align.traces import Trace, TraceCall
from validator.capturing.records import Call, RankCapture, TensorRef
from validator.capturing.selection import Selection
from validator.errors import LayoutError, MismatchError
from validator.sharding.inference import Habits
from validator.sharding.layout import Layout, resolve_layouts
from validator.sharding.meshes import declared_mesh, recorded_mesh

__all__ = ["build_trace", "require_calls"]

_ALL = Selection()


def build_trace(
    *,
    cand: Sequence[RankCapture],
    ref: RankCapture,
    names: Mapping[str, str] | None = None,
    layout: Mapping[str, str] | None = None,
    mesh: Mapping[str, int] | None = None,
    expands_batch: bool = True,
    selection: Selection = _ALL,
) -> Trace:
    """Put a candidate's capture into the reference's names and shapes.

    Args:
        cand: every rank's capture.
        ref: a capture of the reference on the same inputs, on one rank. What is used is its structure: which
            modules ran inside which, how often, and the shapes at their edges; and its values where shapes
            leave open how a candidate's tensor is split.
        names: candidate fqn pattern to reference fqn pattern; see `align.patterns`.
        layout: candidate fqn pattern to a line; see `sharding.layout`.
        mesh: sizes of the axes on which the ranks stand, row-major; by default those of the DTensors.
        expands_batch: see `join_side`. Inputs and outputs of the model itself are of one shape anyway.
        selection: which of its modules the candidate's capture was to hold; by default all.

    Returns:
        The trace. What could not be put together is in `problems`, never left out in silence.

    Raises:
        MismatchError: the models share no module name, or differ in vocabulary, parameters or size of inputs.
        LayoutError: `layout` can't be read, or names no module; or `mesh` is of another number of ranks.
    """
    cand = move_late_sums(whole_terms(cand))
    sizes = _root_sizes(ref)
    batch = None if sizes is None else sizes.batch
    cand = leave_out_dry_runs(cand, ref=ref, batch=batch)
    theirs = _fired(ref)
    patterns = Patterns(names or {})
    local = map_modules(
        cand=list(dict.fromkeys(name for c in cand for name in c.modules)), ref=ref.modules, patterns=patterns
    )
    numbered = number_layers(cand=cand, ref=ref, rename=local.get)
    cand = numbered.captures
    ours = list(dict.fromkeys(name for capture in cand for name in _fired(capture)))
    _require_used(
        names or {}, patterns.unused(name for c in cand for name in (*ours, *c.modules, *c.parameters))
    )
    ranks = [capture.rank for capture in cand]
    declared = declared_mesh(mesh, ranks=ranks) if mesh else None
    layouts = resolve_layouts(
        layout or {},
        modules=ours,
        parameters={name for capture in cand for name in capture.parameters},
        mesh=declared or recorded_mesh(cand),
    )
    habits = Habits(mesh=declared.shape if declared else None)
    named = name_captures(cand=cand, ref=ref, patterns=patterns, layouts=layouts)
    modules = named.modules
    layouts |= named.layouts
    cand = join_residuals(cand=named.captures, ref=ref, modules=modules)
    cand = join_stages(cand=cand, ref=ref, modules=modules)
    cand = join_microbatches(cand=cand, ref=ref, modules=modules, batch=batch)
    mixtures = find_mixtures(ref)
    parameters = join_parameters(
        cand=cand, ref=ref, rename=named.rename, habits=habits, layouts=layouts, mixtures=mixtures
    )
    cand = mark_terms(number_experts(cand, parameters.edges, modules), ref, modules)
    matched = match_calls(cand=cand, ref=ref, modules=modules)
    habits.inputs = None if sizes is None else (sizes.batch, sizes.tokens)
    try:
        habits.tokens = find_token_order(matched.calls, sizes, mesh=habits.mesh)
    except UnknownOrderError:
        undeclared = [call for call in matched.calls if not _declares_inputs(call, layouts)]
        if splits_tokens(undeclared, sizes, mesh=habits.mesh):
            raise

    def own(name: str, rank: int) -> str:
        return numbered.own(named.own(name), rank)

    problems = [*named.problems, *parameters.problems, *matched.problems]
    joiner = _CallJoiner(ref, own, layouts, cand, problems, habits, mixtures, expands_batch=expands_batch)
    joined_calls = [joiner.join(call) for call in matched.calls]
    calls = {(call.module, call.n): call for call in joined_calls if call is not None}
    shared = set(modules.values())
    left_out = find_left_out(ref=ref, named=named, own=own, selection=selection)
    return Trace(
        calls=calls,
        parameters={name: joined.edge for name, joined in parameters.edges.items()},
        candidate_parameters={
            new: own(name, min(parameters.edges[new].metas))
            for new, name in parameters.candidate_names.items()
        },
        views=find_views((c.rank for c in cand), [*parameters.edges.values(), *joiner.edges]),
        world_size=len(cand),
        problems=tuple(problem for problem in problems if problem[0] not in left_out),
        missing_outputs=tuple(dict.fromkeys(joiner.missing_outputs)),
        unmatched_reference=tuple(name for name in theirs if name not in shared and name not in left_out),
        unmatched_candidate=tuple(dict.fromkeys(n for c in cand for n in _fired(c) if n not in modules)),
        found_names=named.found,
        unmatched_parameters=parameters.unmatched,
        missing_parameters=tuple(
            name for name in parameters.missing if name.rpartition(".")[0] not in left_out
        ),
        left_out=left_out,
    )


_Key = tuple[str, int]

_THROUGH = "its caller is judged as one function through it"


class _CallJoiner:
    """Joins call after call, outer ones first, and collects the edges and the problems on the way."""

    def __init__(
        self,
        ref: RankCapture,
        own: Callable[[str, int], str],
        layouts: Mapping[str, Layout],
        cand: Sequence[RankCapture],
        problems: list[tuple[str, str]],
        habits: Habits,
        mixtures: Mixtures,
        *,
        expands_batch: bool,
    ) -> None:
        self.edges: list[JoinedEdge] = []
        self.missing_outputs: list[tuple[str, str]] = []
        self._left_out: dict[_Key, _Key | None] = {}  # with the call that encloses it
        self._ref = ref
        self._own = own
        self._layouts = layouts
        self._sums = sums_by_call(cand)
        self._returned = returned_inside(cand, self._sums)
        self._problems = problems
        self._habits = habits
        self._mixtures = mixtures
        self._expands_batch = expands_batch
        self._by_id = {call.id: call for call in ref.calls}
        self._inside: dict[int, list[Call]] = {}
        for call in ref.calls:
            if call.parent is not None:
                self._inside.setdefault(call.parent, []).append(call)
        self._sizes: dict[int, RootSizes | None] = {}  # by the outermost call

    def join(self, call: MatchedCall) -> TraceCall | None:
        """Join all that is at the edges of one call.

        Returns:
            None for a call whose inputs mean something else on each side or can't be joined, or whose outputs
            have other shapes (of tokens that chose otherwise, say): its code is part of its caller's.

        Raises:
            MismatchError: it is the model's own call, and its inputs or vocabulary differ in size.
        """
        ref = call.ref
        first = call.cand[min(call.cand)]
        layout = self._layouts.get(first.module, Layout())
        parent = (call.parent.module, call.parent.n) if call.parent else None
        parent = self._left_out.get(parent, parent) if parent else None
        expands_batch = self._expands_batch and ref.parent is not None
        inputs = join_side(
            cand={rank: ours.inputs for rank, ours in call.cand.items()},
            ref=ref.inputs,
            dims_of=self._dims_of(ref),
            declared=partial(layout.of, "input"),
            expands_batch=expands_batch,
            name=f"{ref.module} input",
            habits=self._habits,
            side="input",
        )
        outputs = join_side(
            cand={rank: ours.outputs for rank, ours in call.cand.items()},
            ref=ref.outputs,
            dims_of=self._dims_of(ref, experts=self._mixtures.routers.get(ref.module)),
            declared=partial(layout.of, "output"),
            expands_batch=expands_batch,
            name=f"{ref.module} output",
            habits=self._habits,
        )
        if ref.parent is None:
            _require_same_run(inputs.problems, outputs.problems)
        if why := _unlike(inputs) or _unlike_choices(inputs) or _unlike_rows(inputs):
            self._problems.append((ref.module, why))
            if ref.parent is not None:
                self._left_out[ref.module, ref.n] = parent
                return None
        lacks = _lacks_inputs(inputs, ref.inputs) or (outputs.problems and not outputs.edges)
        is_left_out = bool(lacks) and ref.parent is not None
        for side, bad in (("input", inputs.problems), ("output", outputs.problems)):
            for path, why in bad.items():
                place = " ".join(filter(None, (side, path)))
                hint = f"; {_THROUGH}" if is_left_out else ""
                self._problems.append((ref.module, f"{place}: {why}{hint}"))
        if is_left_out:
            self._left_out[ref.module, ref.n] = parent
            return None
        for path in outputs.unpaired[0]:
            name = " ".join(filter(None, ("output", path)))
            self._problems.append((ref.module, f"{name}: the candidate has no such output"))
            self.missing_outputs.append((ref.module, path))
        try:
            partials = find_partials(
                calls=call.cand,
                sums=self._sums,
                inputs=inputs.edges,
                outputs=outputs.edges,
                returned={rank: self._returned.get((rank, ours.id), ()) for rank, ours in call.cand.items()},
            )
        except LayoutError as error:
            partials = ()
            self._problems.append((ref.module, str(error)))
        self.edges += [*inputs.edges.values(), *outputs.edges.values()]
        return TraceCall(
            module=ref.module,
            candidate_module=self._own(first.module, min(call.cand)),
            n=ref.n,
            parent=parent,
            order=ref.start,
            root=self._root(ref),
            inputs={path: joined.edge for path, joined in inputs.edges.items()},
            outputs={path: joined.edge for path, joined in outputs.edges.items()},
            values={path: value for path, value in first.inputs.items() if not isinstance(value, TensorRef)},
            partials=partials,
            operators=join_operators(call.cand),
        )

    def _outermost(self, call: Call) -> Call:
        return next(reversed([call, *enclosing(call, self._by_id)]))

    def _root(self, call: Call) -> tuple[str, int]:
        outer = self._outermost(call)
        return outer.module, outer.n

    def _dims_of(self, call: Call, *, experts: int | None = None) -> DimsOf:
        outer = self._outermost(call)
        if outer.id not in self._sizes:
            own = None if outer.module else _sizes(outer)
            self._sizes[outer.id] = own or _root_sizes(self._ref)
        sizes = self._sizes[outer.id]
        if sizes is None:
            return lambda shape, path: ("",) * len(shape)
        inside = (child.outputs for child in self._inside.get(call.id, ()))
        chosen = choices(call.inputs, call.outputs, *inside)
        of_call = partial(dims_of, batch=sizes.batch, tokens=sizes.tokens, experts=experts, choices=chosen)
        return lambda shape, path: of_call(shape, path=path)


def require_calls(trace: Trace, path: Path) -> None:
    """Refuse a trace in which no call of one side has a partner: it would be judged by nothing.

    Args:
        trace: of `build_trace`.
        path: of the candidate's capture, for the message.

    Raises:
        MismatchError: it holds no call.
    """
    if not trace.calls:
        raise MismatchError(
            f"{path} and the reference share modules, but no call of one lines up with a call of "
            "the other; were both run on the same inputs, in the same way?"
        )


def _lacks_inputs(inputs: JoinedSide, theirs: Mapping[str, Any]) -> bool:
    """Tell whether floating inputs could not be joined: the code can't be run on what it was given."""
    return any("float" in theirs[path].meta.dtype and not is_mask(path) for path in inputs.problems)


def _unlike(inputs: JoinedSide) -> str | None:
    """Say which inputs have no counterpart, or return None. Masks need none: kernels have their own."""
    names = [[path for path in paths if not is_mask(path)] for paths in inputs.unpaired]
    if not any(names):
        return None
    theirs, ours = (", ".join(paths) if paths else "none" for paths in names)
    return f"inputs without a counterpart: {theirs} of the reference, {ours} of the candidate; {_THROUGH}"


def _unlike_choices(inputs: JoinedSide) -> str | None:
    """Say which integers are other ones on each rank, or return None: numbers of its own experts, say."""
    for path, joined in inputs.edges.items():
        if joined.edge.disagreeing and "int" in joined.edge.dtype:
            return f"{path} is another on each rank; {_THROUGH}"
    return None


def _unlike_rows(inputs: JoinedSide) -> str | None:
    """Say which rows that are neither tokens nor sequences are others on each rank, or return None.

    Ranks that sort the tokens of all experts and compute those of their own leave the other rows unwritten.
    """
    for path, joined in inputs.edges.items():
        edge = joined.edge
        is_free = len(edge.shape) == 2 and edge.dims[:1] == ("",) and "float" in edge.dtype
        if is_free and edge.disagreeing:
            return f"the rows of {path or 'the input'} are others on each rank; {_THROUGH}"
    return None


def _declares_inputs(call: MatchedCall, layouts: Mapping[str, Layout]) -> bool:
    layout = layouts.get(call.cand[min(call.cand)].module, Layout())
    return any(side.partition(".")[0] == "input" for side in layout.sides)


def _fired(capture: RankCapture) -> list[str]:
    return list(dict.fromkeys(call.module for call in sorted(capture.calls, key=lambda call: call.start)))


def _root_sizes(ref: RankCapture) -> RootSizes | None:
    roots = [call for call in ref.calls if call.parent is None]
    return _sizes(roots[0]) if roots else None


def _sizes(root: Call) -> RootSizes | None:
    tensors = {path: value.meta for path, value in root.inputs.items() if isinstance(value, TensorRef)}
    return root_sizes({path: (meta.shape, meta.dtype) for path, meta in tensors.items()})


def _require_used(names: Mapping[str, str], unused: Sequence[str]) -> None:
    if unused:
        raise MismatchError(
            f"names: {unused[0]!r} (for {names[unused[0]]!r}) matches no module or parameter of the "
            "candidate; mend the pattern or take it out"
        )


def _require_same_run(bad_inputs: Mapping[str, str], bad_outputs: Mapping[str, str]) -> None:
    for path, why in bad_inputs.items():
        raise MismatchError(
            f"the two sides ran on different inputs: {path} is {why}; feed both the same inputs()"
        )
    for path, why in bad_outputs.items():
        if path.rpartition("/")[2] == "logits":
            raise MismatchError(f"different vocabularies or sequences: logits are {why}")
