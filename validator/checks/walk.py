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
return: the spread is the band. A child that the candidate never called, or called another number of
times, is part of its parent's code. Code that can't run in float64 is judged by no check; the walk goes
on below it.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from validator.align.traces import Edge, LogicalTensor, Trace, TraceCall, View
from validator.capturing.values import bind_arguments, flatten, flatten_arguments, rebuild
from validator.checks.arithmetic import Arithmetic, Choice, Rounding
from validator.checks.module_code import Code, CodeChoice, CodeEdge, Key
from validator.checks.replays import RUNS, Frame, Replays, Returned, Snapshot
from validator.checks.shadow import ShadowTensor, real_view, widened
from validator.errors import TargetError, ValidatorError
from validator.numerics.formats import format_of
from validator.numerics.rounding import round_nearest

__all__ = ["walk"]


def walk(
    *,
    reference: nn.Module,
    trace: Trace,
    view: View,
    run: Callable[[nn.Module], Any],
    judge: Callable[[Code], None],
    skip: Callable[[TraceCall, str], None],
    runs: int = RUNS,
) -> None:
    """Run the reference in float64 on the candidate's values, and judge each call's code as it ends.

    Args:
        reference: the trusted model, in eval mode. It is left as it was.
        trace: the candidate's run in the reference's names.
        view: whose copies of replicated tensors to take.
        run: feeds the model, as the target says.
        judge: called once a matched module call, innermost first.
        skip: called in place of `judge` for code that can't run in float64, with the reason.
        runs: stochastic runs behind a measured sigma.
    """
    walker = _Walker(reference, trace, view, judge, skip, runs)
    buffers = {buffer: buffer.clone() for buffer in reference.buffers()}
    with walker.patched(), torch.no_grad():
        try:
            run(reference)
        finally:
            for buffer, before in buffers.items():
                buffer.copy_(before)


class _Walker:
    def __init__(
        self,
        reference: nn.Module,
        trace: Trace,
        view: View,
        judge: Callable[[Code], None],
        skip: Callable[[TraceCall, str], None],
        runs: int,
    ) -> None:
        self._reference = reference
        self._trace = trace
        self._view = view
        self._judges = judge
        self._broken: Exception | None = None
        self._skip = skip
        self._runs = runs
        self._frames: list[Frame] = []
        self._counts: dict[str, int] = {}
        self._order = 0
        self._lift = _Lift(reference, trace)

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
            if not self._frames:
                return self._outermost(fqn, module, original, args, kwargs)
            frame = self._frames[-1]
            if frame.is_plain:
                return self._called(frame, fqn, module, original, args, kwargs)
            with frame.arithmetic.suspended():
                if frame.replayed is not None:
                    answer = frame.answer(fqn, module, args, kwargs)
                    if answer is not None:
                        return answer[0]
                    is_inlined = True
                else:
                    is_inlined = (fqn, self._counts.get(fqn, 0)) not in self._trace.calls
                if not is_inlined:
                    return self._called(frame, fqn, module, original, args, kwargs)
                if frame.replayed is None:
                    self._counts[fqn] = self._counts.get(fqn, 0) + 1
                    frame.inlined.append(fqn)
            return original(*args, **kwargs)

        return forward

    def _outermost(
        self, fqn: str, module: nn.Module, original: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Take a call that no other encloses: what it is given are the run's inputs."""
        frame = Frame(arithmetic=Arithmetic(Rounding.none(), self._lift))
        call = self._trace.calls.get((fqn, self._counts.get(fqn, 0)))
        if call is None:
            self._counts[fqn] = self._counts.get(fqn, 0) + 1
            return _plain_values(self._execute(frame, original, args, kwargs))
        output = self._called(frame, fqn, module, original, args, kwargs)
        self._lift.clear()
        if frame.edges:
            self._judge(
                Code(
                    call=call,
                    module=module,
                    edges=tuple(frame.edges),
                    choices=(),
                    has_children=True,
                    inlined=(),
                    replays=None,
                    constants=(),
                )
            )
        return _plain_values(output)

    def _called(
        self,
        parent: Frame,
        fqn: str,
        module: nn.Module,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Walk a child, and return what the candidate's returned."""
        n = self._counts.get(fqn, 0)
        self._counts[fqn] = n + 1
        call = self._trace.calls.get((fqn, n))
        if call is None:
            return original(*args, **kwargs)
        if len(parent.returned) < len(parent.known) and parent.known[len(parent.returned)].fqn == fqn:
            returned = parent.known[len(parent.returned)]
        else:
            returned = self._child(parent, call, module, original, args, kwargs)
        parent.returned.append(returned)
        if parent.is_plain:
            return self._as_plain(returned.output)
        return returned.hand_over(flatten_arguments(module, args, kwargs))

    def _child(
        self,
        parent: Frame,
        call: TraceCall,
        module: nn.Module,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Returned:
        """Keep what the parent hands over, run the module's code on the candidate's inputs, and judge it."""
        arguments = flatten_arguments(module, args, kwargs)
        given = self._compared(arguments, call.inputs, is_input=True)
        if not parent.is_plain:
            key = len(parent.returned)
            parent.edges += [
                self._edge((key, path), call, value, cand, parent.arithmetic)
                for path, (value, cand) in given.items()
            ]
        args, kwargs = _substituted(module, args, kwargs, {path: cand for path, (_, cand) in given.items()})
        snapshot = Snapshot(args, kwargs, module)
        chosen = _Choices(self._trace, call, self._view)
        frame = Frame(arithmetic=Arithmetic(Rounding.none(), self._lift, chosen))
        counts = dict(self._counts)
        try:
            output = self._execute(frame, original, args, kwargs)
        except ValidatorError:
            raise
        except Exception as error:  # the reference's code may raise anything
            if error is self._broken:
                raise
            self._counts = counts
            return self._unjudged(call, original, snapshot, error, known=frame.returned)
        snapshot.close()
        made = self._compared(flatten(output), call.outputs, is_input=False)
        frame.edges += [
            self._edge((None, path), None, value, cand, frame.arithmetic)
            for path, (value, cand) in made.items()
        ]
        frame.choices += [self._choice(choice) for choice in frame.arithmetic.choices]
        replays = Replays(
            frame=frame,
            snapshot=snapshot,
            arithmetic=lambda rounding: Arithmetic(rounding, self._lift, chosen),
            execute=lambda replay, args, kwargs: self._execute(replay, original, args, kwargs),
            runs=self._runs,
        )
        self._judge(
            Code(
                call=call,
                module=module,
                edges=tuple(frame.edges),
                choices=tuple(frame.choices),
                has_children=bool(frame.returned),
                inlined=tuple(frame.inlined),
                replays=replays,
                constants=tuple(frame.arithmetic.constants),
            )
        )
        self._lift.clear()
        arguments = flatten_arguments(module, args, kwargs)
        return Returned(
            fqn=call.module,
            output=_substituted_output(output, {path: cand for path, (_, cand) in made.items()}),
            changed=_changed(arguments, given),
            passed_on=_passed_on(flatten(output), arguments),
        )

    def _unjudged(
        self,
        call: TraceCall,
        original: Callable[..., Any],
        snapshot: Snapshot,
        error: Exception,
        known: list[Returned],
    ) -> Returned:
        """Run code that can't run in float64 as it is: for its outputs' structure, and for its children."""
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        self._skip(call, f"its code can't run in float64: {reason}")
        args, kwargs = snapshot.restore()
        frame = Frame(arithmetic=Arithmetic(Rounding.none(), self._lift), known=known, is_plain=True)
        try:
            output = self._execute(frame, original, self._as_plain(args), self._as_plain(kwargs))
        except ValidatorError:
            raise
        except Exception as again:
            if again is self._broken:
                raise
            raise TargetError(
                f"the reference's {call.module or 'model'} can be run neither in float64 ({reason}) nor as "
                f"it is on the candidate's inputs ({again}); leave it out with --exclude {call.module!r}"
            ) from again
        made = self._compared(flatten(output), call.outputs, is_input=False)
        output = _substituted_output(output, {path: cand for path, (_, cand) in made.items()})
        return Returned(fqn=call.module, output=output, changed={}, passed_on={})

    def _judge(self, code: Code) -> None:
        try:
            self._judges(code)
        except Exception as error:
            self._broken = error  # not the reference's code, which encloses this
            raise

    def _execute(self, frame: Frame, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._frames.append(frame)
        try:
            if frame.is_plain:
                return original(*args, **kwargs)
            with frame.arithmetic:
                return original(*args, **kwargs)
        finally:
            self._frames.pop()

    def _compared(
        self, values: Mapping[str, Any], edges: Mapping[str, Edge], *, is_input: bool
    ) -> dict[str, tuple[Tensor, LogicalTensor]]:
        """Return the tensors that both sides have, with the candidate's."""
        return {
            path: (value, edges[path].read(self._view))
            for path, value in values.items()
            if isinstance(value, Tensor)
            and path in edges
            and _is_comparable(path, value, edges[path], is_input=is_input)
        }

    def _edge(
        self,
        key: Key,
        into: TraceCall | None,
        value: Tensor,
        cand: LogicalTensor,
        arithmetic: Arithmetic,
    ) -> CodeEdge:
        self._order += 1
        shadow = value if isinstance(value, ShadowTensor) else None
        obstacle = ""
        if shadow is not None and shadow.unknown:
            obstacle = f"nothing is known of the rounding inside {shadow.unknown}"
        elif shadow is None and arithmetic.is_chosen(value):
            obstacle = "rounded values decide it, and no edge of the candidate shows how"
        return CodeEdge(
            key=key,
            into=into,
            path=key[1],
            order=self._order,
            # A copy: the code may go on to change the tensor in place.
            exact=real_view(_plain(value) if shadow is None else shadow.exact64).clone(),
            depth=0 if shadow is None else _depth(shadow),
            sigma=None if shadow is None else _of_parts(shadow.sigma64, shadow),
            bound=None if shadow is None else shadow.bound64,
            cand=_real_parts(cand),
            obstacle=obstacle,
        )

    def _choice(self, choice: Choice) -> CodeChoice:
        self._order += 1
        return CodeChoice(
            key=(None, choice.name),
            order=self._order,
            op=choice.op,
            best=choice.best,
            chosen=choice.chosen.exact64,
        )

    def _as_plain(self, value: Any) -> Any:
        dtype = next((p.dtype for p in self._reference.parameters() if p.is_floating_point()), torch.float32)
        return rebuild(value, lambda _, x: x.data64.to(dtype) if isinstance(x, ShadowTensor) else x)


class _Lift:
    """The oracle's parameters: the reference's, rounded once to the candidate's storage format, in float64.

    Buffers are not rounded: a narrower copy of one in the candidate must show where it matters.
    """

    def __init__(self, reference: nn.Module, trace: Trace) -> None:
        # A shared parameter has several names, of which the candidate may hold one.
        named = reference.named_parameters(remove_duplicate=False)
        self._names = {id(p): name for name, p in sorted(named, key=lambda item: item[0] in trace.parameters)}
        self._buffers = {id(b): name for name, b in reference.named_buffers(remove_duplicate=False)}
        self._trace = trace
        floating = [e.dtype for e in trace.parameters.values() if getattr(torch, e.dtype).is_floating_point]
        self._usual = getattr(torch, Counter(floating).most_common(1)[0][0]) if floating else None
        self._lifted: dict[int, tuple[Tensor, torch.dtype]] = {}

    def __call__(self, tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        key = id(tensor)
        name = self._names.get(key) or self._buffers.get(key)
        if name is None:
            return widened(tensor), tensor.dtype
        if key not in self._lifted:
            edge = self._trace.parameters.get(name)
            # The candidate stores a parameter that was not captured as it stores most others.
            stored = self._usual or tensor.dtype if edge is None else getattr(torch, edge.dtype)
            if edge is None and key not in self._names:
                stored = tensor.dtype
            dtype = stored if stored.is_floating_point == tensor.is_floating_point() else tensor.dtype
            value = widened(tensor)
            if key in self._names and value.is_floating_point():
                value = round_nearest(value, format_of(dtype))
            self._lifted[key] = (value, dtype)
        return self._lifted[key]

    def clear(self) -> None:
        """Forget the float64 copies."""
        self._lifted.clear()


class _Choices:
    """The candidate's choices inside one call, found among the integer tensors at its edges."""

    def __init__(self, trace: Trace, call: TraceCall, view: View) -> None:
        self._trace = trace
        self._call = call
        self._view = view
        self._found: dict[str, Tensor | None] = {}

    def __call__(self, name: str, own: Tensor) -> Tensor | None:
        """Return the candidate's indices for the choice `name`, or None where no edge shows them."""
        if name not in self._found:
            alike = [x for x in self._integers() if x.shape == own.shape]
            # Of several, the one that agrees most; among ties any choice is as good.
            self._found[name] = max(alike, key=lambda x: int((x == own).sum()), default=None)
        return self._found[name]

    def _integers(self) -> Iterator[Tensor]:
        """Yield the integer tensors that the code may have made: those it was not given."""
        here = (self._call.module, self._call.n)
        given = [self._read(edge) for edge in self._call.inputs.values() if _is_integer(edge)]
        edges = [*self._call.outputs.values()]
        edges += [e for c in self._trace.calls.values() if c.parent == here for e in c.inputs.values()]
        for edge in filter(_is_integer, edges):
            made = self._read(edge)
            if not any(made.shape == x.shape and torch.equal(made, x) for x in given):
                yield made

    def _read(self, edge: Edge) -> Tensor:
        return edge.read(self._view).data.to(torch.int64)


def _is_integer(edge: Edge) -> bool:
    return edge.dtype in ("int64", "int32")


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


def _substituted_output(output: Any, logical: Mapping[str, LogicalTensor]) -> Any:
    """Return an output with the candidate's values; what was one tensor in two places stays one."""
    seen: dict[int, Any] = {}

    def replace(path: str, value: Any) -> Any:
        if path in logical and id(value) not in seen:
            seen[id(value)] = _as_input(logical[path])
        return seen.get(id(value), value) if isinstance(value, Tensor) else value

    return rebuild(output, replace)


def _as_input(value: LogicalTensor) -> Tensor:
    if not (value.data.is_floating_point() or value.data.is_complex()):
        return value.data.clone()
    return ShadowTensor(widened(value.data), value.data.dtype)


def _depth(value: ShadowTensor) -> int:
    """Count the roundings behind a value; a cast alone is one: its result is not the bits that came in."""
    return 1 if value.depth == 0 and value.is_cast else value.depth


def _plain(value: Tensor) -> Tensor:
    return widened(value) if value.is_floating_point() or value.is_complex() else value


def _changed(
    arguments: Mapping[str, Any], given: Mapping[str, tuple[Tensor, LogicalTensor]]
) -> dict[str, ShadowTensor]:
    """Return the candidate's inputs that the code changed in place."""
    changed = {}
    for path, (_, cand) in given.items():
        value = arguments[path]
        if isinstance(value, ShadowTensor):
            before = widened(cand.data)
            if bool(((value.data64 != before) & ~(value.data64.isnan() & before.isnan())).any()):
                changed[path] = value.copied()
    return changed


def _passed_on(outputs: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return which outputs are arguments themselves, by path: a change of one is one of the other."""
    places = {id(x): path for path, x in arguments.items() if isinstance(x, ShadowTensor)}
    return {path: places[id(x)] for path, x in outputs.items() if id(x) in places}


def _of_parts(sigma: Tensor | None, shadow: ShadowTensor) -> Tensor | None:
    """Return the sigma of a complex value's parts."""
    if sigma is None or not shadow.is_complex():
        return sigma
    return sigma.unsqueeze(-1).expand(*sigma.shape, 2)


def _real_parts(cand: LogicalTensor) -> LogicalTensor:
    """Return a complex tensor as one of its real and imaginary parts."""
    if not cand.data.is_complex():
        return cand
    parts = tuple(replace(part, box=(*part.box, (0, 2))) for part in cand.parts)
    return LogicalTensor(data=real_view(cand.data), parts=parts, dims=(*cand.dims, ""))


def _is_comparable(path: str, value: Tensor, edge: Edge, *, is_input: bool) -> bool:
    """Tell whether both sides mean the same by this edge. The masks that a kernel is given are its own."""
    dtype = getattr(torch, edge.dtype)
    if tuple(value.shape) != edge.shape or dtype.is_complex != value.is_complex():
        return False
    if dtype.is_floating_point != value.is_floating_point():
        return False
    is_mask = value.dtype == torch.bool or (value.is_floating_point() and "mask" in path)
    return not (is_input and is_mask)


def _plain_values(value: Any) -> Any:
    return rebuild(value, lambda _, x: x.data64.to(x.dtype) if isinstance(x, ShadowTensor) else x)
