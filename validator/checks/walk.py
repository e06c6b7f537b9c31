"""The walk: one float64 pass of the reference in which every edge is judged on the candidate's own bits.

The reference runs once, from the model down. Wherever one of its modules is called, what its parent's
code hands over is kept as an edge of the parent (a wiring check), and replaced by what the
candidate's module was really given; when the module returns, what its own code made of that is kept as
an edge of the module (a function check where no child was captured, else a wiring check), and replaced by
what the candidate's module really returned. So the code of each module is judged alone: nothing it is given
carries an earlier fault, and nothing it gets wrong is carried on.

Everything that isn't an activation (masks, None, flags, caches, output classes) comes from the
reference's own code, so kernels with other mask conventions can differ on the two sides.

When a module's code has run in float64, and an edge of it has more than one rounding operator behind it,
the same code is replayed under stochastic rounding, with the candidate's values for what its children
return: the spread is the band. A child that the candidate never called, or called another number of times, is part
of its parent's code.
"""

import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from validator.align.trace import Edge, LogicalTensor, Trace, TraceCall, View
from validator.capturing.values import bind_arguments, flatten, rebuild
from validator.checks.arithmetic import Arithmetic, Constant, Rounding, ShadowTensor
from validator.numerics.formats import format_of
from validator.numerics.recipes import Recipe
from validator.numerics.rounding import round_nearest
from validator.numerics.ulp import ulp

__all__ = ["Code", "CodeEdge", "Spread", "walk"]

RUNS = 12
"""Stochastic runs behind a measured sigma, and the weight of its row's mean: NUMERICS sections 4 and 10."""
SHRINKAGE = 8
ALTERATION = 2.0**-20
"""Relative change of a constant: small enough to be linear, far above float64's rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeEdge:
    """A value that a module's own code made, next to the candidate's.

    Attributes:
        key: position among the edges of this code, the same in every replay: child (or None for an output) and path.
        into: the call of the child whose input it is, or None for an output.
        path: where it stands in the child's inputs or in the outputs.
        order: position in the reference's execution order.
        exact: `[*]` the oracle's value: float64, or integer or boolean as it is.
        depth: number of rounding operators behind it; 0 means that it was only passed on.
        sigma, bound: of a single operator, or None.
        cand: the candidate's value, with where its parts came from.
    """

    key: tuple[int | None, str]
    into: TraceCall | None
    path: str
    order: int
    exact: Tensor
    depth: int
    sigma: Tensor | None
    bound: Tensor | None
    cand: LogicalTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """What the replays of one piece of code under one recipe say of one edge.

    Attributes:
        sigma: `[*]` float64, measured.
        bound: `[*]` float64 or None.
        control: `[*]` float64, rounded to the candidate's format.
    """

    sigma: Tensor
    bound: Tensor | None
    control: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """The code of one call of one module, run in float64.

    Attributes:
        call: as the candidate ran it.
        module: the reference's module.
        edges: what it made, in execution order.
        has_children: whether children of it were captured.
        inlined: fqns of children that are part of this code, because the candidate's calls don't line up.
        spread: replays the code under a recipe; by edge key. Edges that a replay did not reach are missing.
        constants: the numbers in the code (an epsilon, a scale).
        sensitivity: replays the code with one of them altered; by edge key `dy / d log(constant)`.
    """

    call: TraceCall
    module: nn.Module
    edges: tuple[CodeEdge, ...]
    has_children: bool
    inlined: tuple[str, ...]
    spread: Callable[[Recipe], Mapping[tuple[int | None, str], Spread]]
    constants: tuple[Constant, ...]
    sensitivity: Callable[[Constant], Mapping[tuple[int | None, str], Tensor]]


@dataclass(slots=True)
class _Frame:
    """A module's code while it runs."""

    fqn: str
    arithmetic: Arithmetic
    edges: list[CodeEdge] = field(default_factory=list)
    returned: list[tuple[str, Any]] = field(default_factory=list)
    inlined: list[str] = field(default_factory=list)
    replayed: dict[tuple[int | None, str], ShadowTensor] | None = None
    position: int = 0


class _Diverted(Exception):
    """A replay took another path through the code than the float64 run."""


def walk(
    *,
    reference: nn.Module,
    trace: Trace,
    view: View,
    run: Callable[[nn.Module], Any],
    judge: Callable[[Code], None],
    runs: int = RUNS,
) -> None:
    """Run the reference in float64 on the candidate's values, and hand each call's code to `judge` as it ends.

    Args:
        reference: the trusted model, in eval mode. It is left as it was.
        trace: the candidate's run in the reference's names.
        view: whose copies of replicated tensors to take.
        run: feeds the model, as the target says.
        judge: called once a matched module call, innermost first.
        runs: stochastic runs behind a measured sigma.
    """
    walker = _Walker(reference, trace, view, judge, runs)
    with walker.patched(), torch.no_grad():
        run(reference)


class _Walker:
    def __init__(
        self, reference: nn.Module, trace: Trace, view: View, judge: Callable[[Code], None], runs: int
    ) -> None:
        self._reference = reference
        self._trace = trace
        self._view = view
        self._judge = judge
        self._runs = runs
        self._frames: list[_Frame] = []
        self._counts: dict[str, int] = {}
        self._order = 0
        self._names = {id(p): name for name, p in reference.named_parameters(remove_duplicate=False)}
        self._buffers = {id(b): name for name, b in reference.named_buffers(remove_duplicate=False)}
        self._lifted: dict[int, tuple[Tensor, Tensor, torch.dtype]] = {}

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Let every module's call go through the walk."""
        modules = dict(self._reference.named_modules())
        saved = {fqn: module.__dict__.get("forward") for fqn, module in modules.items()}
        for fqn, module in modules.items():
            module.forward = self._patch(fqn, module, module.forward)
        try:
            yield
        finally:
            for fqn, module in modules.items():
                if saved[fqn] is None:
                    del module.__dict__["forward"]
                else:
                    module.forward = saved[fqn]

    def _patch(self, fqn: str, module: nn.Module, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def forward(*args: Any, **kwargs: Any) -> Any:
            frame = self._frames[-1] if self._frames else None
            if frame is None:
                return self._root(fqn, module, original, args, kwargs)
            with frame.arithmetic.suspended():
                if frame.replayed is not None:
                    stub = self._replayed_child(frame, fqn, module, args, kwargs)
                    if stub is not None:
                        return stub[0]
                else:
                    n = self._counts.get(fqn, 0)
                    self._counts[fqn] = n + 1
                    call = self._trace.calls.get((fqn, n))
                    if call is not None:
                        output = self._child(frame, call, module, original, args, kwargs)
                        frame.returned.append((fqn, output))
                        return self._copied(output)
                    frame.inlined.append(fqn)
            return original(*args, **kwargs)

        return forward

    def _root(
        self, fqn: str, module: nn.Module, original: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        n = self._counts.get(fqn, 0)
        self._counts[fqn] = n + 1
        call = self._trace.calls.get((fqn, n))
        frame = _Frame(fqn=fqn, arithmetic=Arithmetic(Rounding.none(), self._lift))
        if call is None:
            with frame.arithmetic:
                self._frames.append(frame)
                try:
                    output = original(*args, **kwargs)
                finally:
                    self._frames.pop()
        else:
            output = self._child(frame, call, module, original, args, kwargs)
            if frame.edges:
                self._judge(_inputs_code(call, module, frame))
        return rebuild(output, lambda _, x: x.data64.to(x.dtype) if isinstance(x, ShadowTensor) else x)

    def _child(
        self,
        parent: _Frame,
        call: TraceCall,
        module: nn.Module,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Judge what the parent hands over, run the module's own code on the candidate's inputs, judge its outputs."""
        child = len(parent.returned)
        given = flatten(bind_arguments(module, args, kwargs))
        logical: dict[str, LogicalTensor] = {}
        for path, value in given.items():
            edge = call.inputs.get(path)
            if edge is None or not isinstance(value, Tensor) or not _is_comparable(path, value, edge):
                continue
            logical[path] = edge.read(self._view)
            parent.edges.append(self._edge((child, path), call, path, value, logical[path]))
        args, kwargs = _substituted(module, args, kwargs, logical)
        snapshot = _Snapshot(args, kwargs)
        frame = _Frame(fqn=call.module, arithmetic=Arithmetic(Rounding.none(), self._lift))
        output = self._execute(frame, original, args, kwargs)
        values: dict[str, LogicalTensor] = {}
        for path, value in flatten(output).items():
            edge = call.outputs.get(path)
            if edge is None or not isinstance(value, Tensor) or not _is_comparable(path, value, edge):
                continue
            values[path] = edge.read(self._view)
            frame.edges.append(self._edge((None, path), None, path, value, values[path]))
        spreads: dict[str, Mapping[tuple[int | None, str], Spread]] = {}

        def spread(recipe: Recipe) -> Mapping[tuple[int | None, str], Spread]:
            if recipe.name not in spreads:
                spreads[recipe.name] = self._spread(frame, original, snapshot, recipe)
            return spreads[recipe.name]

        sensitivities: dict[Constant, Mapping[tuple[int | None, str], Tensor]] = {}

        def sensitivity(constant: Constant) -> Mapping[tuple[int | None, str], Tensor]:
            if constant not in sensitivities:
                sensitivities[constant] = self._sensitivity(frame, original, snapshot, constant)
            return sensitivities[constant]

        self._judge(
            Code(
                call=call,
                module=module,
                edges=tuple(frame.edges),
                has_children=bool(frame.returned),
                inlined=tuple(frame.inlined),
                spread=spread,
                constants=tuple(frame.arithmetic.constants),
                sensitivity=sensitivity,
            )
        )
        if not self._frames:
            self._lifted.clear()
        return rebuild(output, lambda path, x: _as_input(values[path]) if path in values else x)

    def _execute(self, frame: _Frame, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._frames.append(frame)
        try:
            with frame.arithmetic:
                return original(*args, **kwargs)
        finally:
            self._frames.pop()

    def _edge(
        self, key: tuple[int | None, str], into: TraceCall | None, path: str, value: Tensor, cand: LogicalTensor
    ) -> CodeEdge:
        self._order += 1
        return CodeEdge(
            key=key,
            into=into,
            path=path,
            order=self._order,
            exact=value.exact64 if isinstance(value, ShadowTensor) else _plain(value),
            depth=_depth(value),
            sigma=value.sigma64 if isinstance(value, ShadowTensor) else None,
            bound=value.bound64 if isinstance(value, ShadowTensor) else None,
            cand=cand,
        )

    def _replayed_child(
        self, frame: _Frame, fqn: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any] | None:
        """Note what a replay hands to a child, and return what the child returned; None for an inlined child."""
        assert frame.replayed is not None
        if fqn in frame.inlined:
            return None
        if frame.position >= len(frame.returned) or frame.returned[frame.position][0] != fqn:
            raise _Diverted(fqn)
        for path, value in flatten(bind_arguments(module, args, kwargs)).items():
            if isinstance(value, ShadowTensor):
                frame.replayed[(frame.position, path)] = value
        output = frame.returned[frame.position][1]
        frame.position += 1
        return (self._copied(output),)

    def _spread(
        self, frame: _Frame, original: Callable[..., Any], snapshot: "_Snapshot", recipe: Recipe
    ) -> Mapping[tuple[int | None, str], Spread]:
        """Replay the code: `runs` times under stochastic rounding and once to nearest."""
        edges = {edge.key: edge for edge in frame.edges if edge.depth > 1}
        squares = {key: torch.zeros_like(edge.exact) for key, edge in edges.items()}
        bounds: dict[tuple[int | None, str], Tensor | None] = {}
        cache: dict[int, Tensor | None] = {}
        try:
            for seed in range(self._runs):
                made = self._replay(frame, original, snapshot, Rounding.stochastic(recipe, seed, cache))
                for key, edge in edges.items():
                    squares[key] += (made[key].exact64 - edge.exact).square()
                    bounds[key] = made[key].bound64
            control = self._replay(frame, original, snapshot, Rounding.nearest(recipe))
        except (_Diverted, KeyError):
            return {}
        return {
            key: Spread(
                sigma=_shrunk(squares[key] / self._runs, edge, self._runs),
                bound=bounds[key],
                control=round_nearest(control[key].exact64, format_of(edge.cand.data.dtype)),
            )
            for key, edge in edges.items()
        }

    def _sensitivity(
        self, frame: _Frame, original: Callable[..., Any], snapshot: "_Snapshot", constant: Constant
    ) -> Mapping[tuple[int | None, str], Tensor]:
        """Replay the code in float64 with one constant altered a little."""
        try:
            made = self._replay(frame, original, snapshot, Rounding.altering(constant, 1 + ALTERATION))
        except _Diverted:
            return {}
        return {
            edge.key: (made[edge.key].exact64 - edge.exact) / ALTERATION
            for edge in frame.edges
            if edge.depth > 1 and edge.key in made
        }

    def _replay(
        self, frame: _Frame, original: Callable[..., Any], snapshot: "_Snapshot", rounding: Rounding
    ) -> dict[tuple[int | None, str], ShadowTensor]:
        replay = _Frame(
            fqn=frame.fqn,
            arithmetic=Arithmetic(rounding, self._lift),
            returned=frame.returned,
            inlined=frame.inlined,
            replayed={},
        )
        args, kwargs = snapshot.restore()
        output = self._execute(replay, original, args, kwargs)
        assert replay.replayed is not None
        replay.replayed |= {
            (None, path): value for path, value in flatten(output).items() if isinstance(value, ShadowTensor)
        }
        return replay.replayed

    def _lift(self, tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        """Give a parameter of the reference, rounded once to the candidate's storage format, in float64.

        Buffers are not rounded: a narrower copy of one in the candidate must show where it matters.
        """
        key = id(tensor)
        if key in self._lifted:
            return self._lifted[key][1:]
        name = self._names.get(key) or self._buffers.get(key)
        if name is None:
            return tensor.detach().to(torch.float64), tensor.dtype
        edge = self._trace.parameters.get(name)
        dtype = tensor.dtype
        if edge is not None and getattr(torch, edge.dtype, None) is not None:
            stored = getattr(torch, edge.dtype)
            dtype = stored if stored.is_floating_point else dtype
        value = tensor.detach().to(torch.float64)
        if key in self._names:
            value = round_nearest(value, format_of(dtype))
        self._lifted[key] = (tensor, value, dtype)
        return value, dtype

    @staticmethod
    def _copied(output: Any) -> Any:
        return rebuild(output, lambda _, x: x.copied() if isinstance(x, ShadowTensor) else x)


class _Snapshot:
    """Arguments as they were before a call: tensors and caches are copied, since code may change them in place."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._saved = self._copy((args, kwargs))

    def restore(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a fresh copy."""
        args, kwargs = self._copy(self._saved)
        return args, kwargs

    @staticmethod
    def _copy(value: Any) -> Any:
        memo: dict[int, Any] = {}

        def copied(_: str, leaf: Any) -> Any:
            if isinstance(leaf, ShadowTensor):
                return leaf.copied()
            if isinstance(leaf, Tensor):
                return leaf.clone()
            if isinstance(leaf, nn.Module) or callable(leaf) or leaf is None:
                return leaf
            return copy.deepcopy(leaf, memo)

        return rebuild(value, copied)


def _substituted(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], logical: Mapping[str, LogicalTensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with the candidate's values in place of the reference's."""
    bound = bind_arguments(module, args, kwargs)

    def replace(path: str, value: Any) -> Any:
        return _as_input(logical[path]) if path in logical else value

    new = {name: rebuild(value, replace, name) for name, value in bound.items()}
    positional = list(new.values())[: len(args)]
    return tuple(positional), {name: new[name] for name in kwargs}


def _as_input(value: LogicalTensor) -> Tensor:
    if not value.data.is_floating_point():
        return value.data.clone()
    return ShadowTensor(value.data.to(torch.float64), value.data.dtype)


def _depth(value: Tensor) -> int:
    """Count the roundings behind a value; a cast alone is one, since its result is not the bits that came in."""
    if not isinstance(value, ShadowTensor):
        return 0
    return 1 if value.depth == 0 and value.is_cast else value.depth


def _plain(value: Tensor) -> Tensor:
    return value.to(torch.float64) if value.is_floating_point() else value


def _is_comparable(path: str, value: Tensor, edge: Edge) -> bool:
    """Tell whether both sides mean the same by this edge. Masks are the kernel's own business."""
    if tuple(value.shape) != edge.shape or value.dtype == torch.bool or "mask" in path.rsplit("/", 1)[0]:
        return False
    is_floating = getattr(torch, edge.dtype).is_floating_point
    return bool(is_floating == value.is_floating_point())


def _inputs_code(call: TraceCall, module: nn.Module, frame: _Frame) -> Code:
    """The outermost call has no parent: what it is given are the run's inputs."""
    return Code(
        call=call,
        module=module,
        edges=tuple(frame.edges),
        has_children=True,
        inlined=(),
        spread=lambda _: {},
        constants=(),
        sensitivity=lambda _: {},
    )


def _shrunk(variance: Tensor, edge: CodeEdge, runs: int) -> Tensor:
    """Shrink per-element variances towards their row's mean, in units of the squared output ulp."""
    spacing = ulp(edge.exact, format_of(edge.cand.data.dtype)).nan_to_num(nan=1.0)
    relative = (variance / spacing.square()).nan_to_num(nan=0.0)
    mean = relative.mean(-1, keepdim=True) if relative.dim() else relative
    return torch.sqrt((runs * relative + SHRINKAGE * mean) / (runs + SHRINKAGE)) * spacing
