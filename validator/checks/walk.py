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
its operations are replayed under stochastic rounding, with the candidate's values for what its children
return: the spread is the band. A child that the candidate never called, or called another number of
times, is part of its parent's code. Code that can't run in float64 is judged by no check; the walk goes
on below it.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from validator.align.traces import LogicalTensor, Trace, TraceCall, View
from validator.capturing.naming import NameDealer, Scope
from validator.capturing.values import flatten, flatten_arguments, rebuild
from validator.checks.arithmetic import Arithmetic
from validator.checks.code_edges import code_choice, code_edge
from validator.checks.execution_order import ExecutionOrder
from validator.checks.following import Following
from validator.checks.frames import Frame, Returned, Snapshot, returned
from validator.checks.lift import Lift
from validator.checks.module_code import Code, CodeEdge, Key
from validator.checks.operations import is_floating
from validator.checks.operator_log import OperatorLog
from validator.checks.replays import RUNS, Replays
from validator.checks.roundings import Rounding
from validator.checks.row_order import row_order
from validator.checks.shadow import ShadowTensor, widened
from validator.checks.substitution import (
    Compared,
    compared,
    plain_values,
    substituted,
    substituted_output,
)
from validator.checks.tape import Tape
from validator.errors import TargetError, ValidatorError

__all__ = ["walk"]

ATTEMPTS = 6
"""How often code is run at most until it makes the candidate's choices: see `Following`."""


def walk(
    *,
    reference: nn.Module,
    trace: Trace,
    view: View,
    run: Callable[[nn.Module], Any],
    judge: Callable[[Code], None],
    skip: Callable[[TraceCall, str], None],
    runs: int = RUNS,
    looks_inside: Callable[[TraceCall], bool] = lambda call: bool(call.operators),
    order: ExecutionOrder | None = None,
) -> frozenset[str]:
    """Run the reference in float64 on the candidate's values, and judge each call's code as it ends.

    Args:
        reference: the trusted model, in eval mode. It is left as it was.
        trace: the candidate's run in the reference's names.
        view: whose copies of replicated tensors to take.
        run: feeds the model, as the target says.
        judge: called once a matched module call, innermost first.
        skip: called in place of `judge` for code that can't run in float64, with the reason.
        runs: stochastic runs behind a measured sigma.
        looks_inside: tells of which calls the operators are to be kept with the code.
        order: numbers the edges; one for all views of a run gives each edge the same place in every view.

    Returns:
        Names of the buffers that the code writes as it runs.
    """
    walker = _Walker(reference, trace, view, judge, skip, runs, looks_inside, order or ExecutionOrder())
    buffers = dict(reference.named_buffers(remove_duplicate=False))
    before = {name: buffer.clone() for name, buffer in buffers.items()}
    written: set[str] = set()
    with walker.patched(), torch.no_grad():
        try:
            run(reference)
        finally:
            for name, buffer in buffers.items():
                if not torch.equal(buffer, before[name]):
                    written.add(name)
                    buffer.copy_(before[name])
    return frozenset(written)


class _Walker:
    def __init__(
        self,
        reference: nn.Module,
        trace: Trace,
        view: View,
        judge: Callable[[Code], None],
        skip: Callable[[TraceCall, str], None],
        runs: int,
        looks_inside: Callable[[TraceCall], bool],
        order: ExecutionOrder,
    ) -> None:
        self._looks_inside = looks_inside
        self._reference = reference
        self._trace = trace
        self._view = view
        self._judges = judge
        self._broken: Exception | None = None
        self._skip = skip
        self._runs = runs
        self._frames: list[Frame] = []
        self._counts: Counter[str] = Counter()
        self._order = order
        self._lift = Lift(reference, trace, view)
        self._dealer = NameDealer(reference)
        self._scopes = [Scope()]

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Let every module's call go through the walk."""
        modules = list(self._reference.modules())
        saved = [module.__dict__.get("forward") for module in modules]
        for module in modules:
            module.forward = self._patch(module, module.forward)
        try:
            yield
        finally:
            for module, forward in zip(modules, saved, strict=True):
                if forward is None:
                    del module.__dict__["forward"]
                else:
                    module.forward = forward

    def _patch(self, module: nn.Module, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def forward(*args: Any, **kwargs: Any) -> Any:
            fqn = self._dealer.name(module, self._scopes[-1])
            if not self._frames:
                return self._outermost(fqn, module, original, args, kwargs)
            frame = self._frames[-1]
            if frame.is_plain:
                return self._called(frame, fqn, module, original, args, kwargs)
            with frame.arithmetic.suspended():
                if (fqn, self._counts[fqn]) in self._trace.calls:
                    return self._called(frame, fqn, module, original, args, kwargs)
                self._counts[fqn] += 1
                frame.inlined.append(fqn)
            with self._scope(fqn):
                made = original(*args, **kwargs)
            for value in flatten(made).values():
                if isinstance(value, ShadowTensor):
                    frame.tape.returned(fqn, value)
            return made

        return forward

    def _outermost(
        self, fqn: str, module: nn.Module, original: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Take a call that no other encloses: what it is given are the run's inputs."""
        frame = Frame(arithmetic=Arithmetic(Rounding.none(), self._lift))
        call = self._trace.calls.get((fqn, self._counts[fqn]))
        if call is None:
            self._counts[fqn] += 1
            return plain_values(self._execute(frame, fqn, original, args, kwargs))
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
        return plain_values(output)

    def _called(
        self,
        parent: Frame,
        fqn: str,
        module: nn.Module,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Keep what the parent hands to a child, walk that, and return what the candidate's returned."""
        n = self._counts[fqn]
        self._counts[fqn] += 1
        call = self._trace.calls.get((fqn, n))
        if call is None:
            with self._scope(fqn):
                return original(*args, **kwargs)
        arguments = flatten_arguments(module, args, kwargs)
        expand = Tensor.expand if parent.is_plain else parent.arithmetic.expanded
        given = compared(arguments, call.inputs, self._view, is_input=True, expand=expand)
        order = _row_order(given)
        if order is not None:
            call = call.with_rows(order)
            given = compared(arguments, call.inputs, self._view, is_input=True, expand=expand)
        if not parent.is_plain:
            self._place_choices(parent)
            for path, (value, cand) in given.items():
                key = (len(parent.returned), path)
                place = self._order.given(call, path)
                parent.edges.append(self._edge(key, call, value, cand, parent, place))
                parent.shown[fqn, n, path] = parent.arithmetic.origin(value)
        known = parent.known_return(fqn)
        if known is None:
            known = self._child(call, module, original, args, kwargs, given)
        parent.returned.append(known)
        if parent.is_plain:
            return self._as_plain(known.output)
        handed = known.hand_over(arguments, parent.arithmetic)
        if parent.log is not None:
            for path, value in flatten(handed).items():
                parent.log.name(value, f"{fqn.rpartition('.')[2]}_{path or 'output'}")
        return handed

    def _child(
        self,
        call: TraceCall,
        module: nn.Module,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: Compared,
    ) -> Returned:
        """Run a module's code on the candidate's inputs, and judge it."""
        args, kwargs = substituted(module, args, kwargs, given)
        snapshot = Snapshot(args, kwargs, module)
        following = Following(self._trace, call, self._view)
        counts = self._counts.copy()
        known: Sequence[Returned] = ()
        for _ in range(ATTEMPTS):
            tape = Tape()
            log = OperatorLog(lift=self._lift) if self._looks_inside(call) else None
            arithmetic = Arithmetic(Rounding.none(), self._lift, following, tape, log)
            frame = Frame(call=call, arithmetic=arithmetic, tape=tape, known=known, log=log)
            if log is not None:
                self._name_given(log, module, args, kwargs)
            try:
                output = self._execute(frame, call.module, original, args, kwargs)
            except ValidatorError:
                raise
            except Exception as error:  # the reference's code may raise anything
                if error is self._broken:
                    raise
                self._counts = counts
                return self._unjudged(call, original, snapshot, error, known=frame.returned)
            outputs = flatten(output)
            shown = {(call.module, call.n, path): arithmetic.origin(x) for path, x in outputs.items()}
            if not following.revise(arithmetic.choices, frame.shown | shown):
                break
            known = frame.returned
            args, kwargs = snapshot.restore()
            self._counts = counts.copy()
        expand = frame.arithmetic.expanded
        made = compared(outputs, call.outputs, self._view, is_input=False, expand=expand)
        frame.edges += [
            self._edge((None, path), None, value, cand, frame, self._order.returned(call, path))
            for path, (value, cand) in made.items()
        ]
        self._place_outputs(call)
        self._judge(self._code(call, module, frame))
        self._lift.clear()
        arguments = flatten_arguments(module, args, kwargs)
        return returned(call.module, substituted_output(output, made), outputs, arguments, given)

    def _name_given(
        self, log: OperatorLog, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Tell a log what the tensors are called that code is given, and its parameters."""
        for path, value in flatten_arguments(module, args, kwargs).items():
            log.name(value, path)
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            log.name(tensor, name)

    def _code(self, call: TraceCall, module: nn.Module, frame: Frame) -> Code:
        choices = tuple(
            [
                code_choice(x, self._order.chosen(call, x.name))
                for x in frame.arithmetic.choices
                if x.is_followed
            ]
        )
        # Groups that were chosen before decide what there was to choose from: the same in every replay.
        frame.tape.pins = bool(choices)
        return Code(
            call=call,
            module=module,
            edges=tuple(frame.edges),
            choices=choices,
            has_children=bool(frame.returned),
            inlined=tuple(frame.inlined),
            constants=tuple(frame.arithmetic.constants),
            steps=tuple(frame.arithmetic.steps),
            replays=Replays(tape=frame.tape, edges=frame.edges, choices=choices, runs=self._runs),
            log=frame.log,
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
            args, kwargs = self._as_plain(args), self._as_plain(kwargs)
            output = self._execute(frame, call.module, original, args, kwargs)
        except ValidatorError:
            raise
        except Exception as again:
            if again is self._broken:
                raise
            raise TargetError(
                f"the reference's {call.module or 'model'} can be run neither in float64 ({reason}) nor as "
                f"it is on the candidate's inputs ({again}); leave it out with --exclude {call.module!r}"
            ) from again
        made = compared(flatten(output), call.outputs, self._view, is_input=False)
        self._place_outputs(call)
        return Returned(fqn=call.module, output=substituted_output(output, made))

    def _judge(self, code: Code) -> None:
        try:
            self._judges(code)
        except Exception as error:
            self._broken = error  # not the reference's code, which encloses this
            raise

    def _execute(self, frame: Frame, fqn: str, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._frames.append(frame)
        try:
            with self._scope(fqn), nullcontext() if frame.is_plain else frame.arithmetic:
                return original(*args, **kwargs)
        finally:
            self._frames.pop()

    @contextmanager
    def _scope(self, fqn: str) -> Iterator[None]:
        """Deal the names of children below the call of a module."""
        self._scopes.append(Scope(fqn))
        try:
            yield
        finally:
            self._scopes.pop()

    def _edge(
        self,
        key: Key,
        into: TraceCall | None,
        value: Tensor,
        cand: LogicalTensor,
        frame: Frame,
        order: int,
    ) -> CodeEdge:
        if is_floating(value):
            # A parameter that is handed on as it is has the values that the oracle computes with.
            value = frame.arithmetic.shadow(value)
            frame.tape.mark(key, value)
            if frame.log is not None:
                frame.log.mark(key, value)
        return code_edge(key, into, value, cand, order, frame.arithmetic)

    def _place_choices(self, frame: Frame) -> None:
        """Give the choices that code has made so far their place before what it gives to a child.

        Those that it makes after its last child follow what it returns, which tells more of the same fault.
        """
        if frame.call is not None:
            for choice in frame.arithmetic.choices:
                self._order.chosen(frame.call, choice.name)

    def _place_outputs(self, call: TraceCall) -> None:
        """Give all that a call returns its place, whether or not its code can be judged."""
        for path in call.outputs:
            self._order.returned(call, path)

    def _as_plain(self, value: Any) -> Any:
        dtype = next((p.dtype for p in self._reference.parameters() if p.is_floating_point()), torch.float32)
        return rebuild(value, lambda _, x: x.data64.to(dtype) if isinstance(x, ShadowTensor) else x)


def _row_order(given: Compared) -> Tensor | None:
    """Return the order of a call's rows, where they are neither tokens nor sequences and they differ."""
    for value, cand in given.values():
        is_free = cand.data.dim() == 2 and not cand.dims[0] and cand.data.is_floating_point()
        if is_free and isinstance(value, ShadowTensor):
            return row_order(value.data64, widened(cand.data))
    return None
