"""Float64 arithmetic that runs unmodified model code, and simulates on request what rounding does to it.

Under `Arithmetic` every floating tensor is a `ShadowTensor`: it reports the dtype that the code
would see on the device, so that every branch, cast and `finfo` in the code behaves as it does
there, and holds its values in float64. Each operator becomes an `Operation`, which computes the values;
what happens to them then is the `Rounding`, by default nothing. What is known of a result beside
its values (how many roundings are behind it, what it shares memory with) is kept here.

A tensor remembers its value before its own last rounding (`exact`): what leaves at an edge is that
one, since the last rounding to the storage format has its half ulp in the band already.
"""

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from validator.checks.aten_calls import arguments_by_name, flatten_call, written_arguments, written_results
from validator.checks.attention import attention
from validator.checks.integers import Integers
from validator.checks.modes import Functions, Operators
from validator.checks.operations import Become, Operation, is_floating
from validator.checks.operator_calls import OperatorCall, Plan
from validator.checks.operators import ATTENTION, accumulates, is_exact, operator_name
from validator.checks.promotion import result_dtypes
from validator.checks.roundings import Constant, Rounding
from validator.checks.selections import Choice, Selections
from validator.checks.shadow import ShadowTensor, widened
from validator.checks.tape import Tape

__all__ = ["Arithmetic", "Step"]

RESHAPERS = ("resize", "set", "squeeze", "swapaxes", "swapdims", "t", "transpose", "unsqueeze")
"""Operators that in their in-place form change the shape of a tensor, which a shadow can't."""

ATTENTION_ARGUMENTS = (
    "query",
    "key",
    "value",
    "attn_mask",
    "dropout_p",
    "is_causal",
    "scale",
    "enable_gqa",
)
"""Of `torch.nn.functional.scaled_dot_product_attention`, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An operator of the code that rounds.

    Attributes:
        position: which of the code's rounding operators it is.
        op: aten name of the operator.
        given: dtypes of its floating operands.
        made: dtype that its result has in the code.
    """

    position: int
    op: str
    given: tuple[torch.dtype, ...]
    made: torch.dtype


class CallLog(Protocol):
    """Takes note of the operators that code calls."""

    def calling(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Take note of an operator before it runs."""

    def called(self, result: Any) -> None:
        """Take note of what the operator returned."""

    def became(self, target: ShadowTensor, source: ShadowTensor) -> None:
        """Take note of a child that changed a tensor."""


class Arithmetic:
    """Context in which torch code computes with `ShadowTensor`s.

    Args:
        rounding: what to do after each operator.
        lift: gives a plain floating tensor that meets the code (a parameter, a buffer, a constant) its
            float64 values and the dtype to report; by default its own.
        choose: gives the indices to go on with for a choice, by its name and the code's own indices, or None.
        tape: keeps the operations, where the code is to be replayed.
        log: is told of every operator, or None.
        exchange: gives what runs in the place of an operation that rounds, by default itself.

    Attributes:
        constants: the numbers that the code gave to operators that round, in the order of their use.
        steps: the operators that round, in the order of their use; kept by the oracle.
    """

    def __init__(
        self,
        rounding: Rounding,
        lift: Callable[[Tensor], tuple[Tensor, torch.dtype]] | None = None,
        choose: Callable[[str, Tensor], Tensor | None] | None = None,
        tape: Tape | None = None,
        log: CallLog | None = None,
        exchange: Callable[[Operation], Operation] | None = None,
    ) -> None:
        self.rounding = rounding
        self._exchange = exchange
        self._selections = None if choose is None else Selections(choose)
        self.constants: list[Constant] = []
        self.steps: list[Step] = []
        self._tape = tape
        self._log = log
        self._integers = Integers()
        self._written: dict[int, tuple[Tensor, ShadowTensor]] = {}
        self._lift = lift or (lambda tensor: (widened(tensor), tensor.dtype))
        self._position = 0
        # A cycle would keep the tape, and with it float64 weights, until the garbage collector comes by.
        self._functions = Functions(weakref.proxy(self))
        self._operators = Operators(weakref.proxy(self))

    def __enter__(self) -> Self:
        self._functions.__enter__()  # type: ignore[no-untyped-call]
        self._operators.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exc: Any) -> None:
        self._operators.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._functions.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Leave the arithmetic for a while, from inside code that runs under it."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()

    def shadow(self, tensor: Tensor) -> ShadowTensor:
        """Return a plain floating tensor as a shadow (a shadow as it is)."""
        if isinstance(tensor, ShadowTensor):
            return tensor
        if id(tensor) in self._written:
            return self._written[id(tensor)][1]
        data64, dtype = self._lift(tensor)
        return ShadowTensor(data64, dtype)

    def shadow_outside(self, value: Any) -> Any:
        """Return a plain floating tensor as a shadow, for a function that itself compares dtypes."""
        if not is_floating(value) or isinstance(value, ShadowTensor):
            return value
        # The function that is being called has left the function mode already.
        with self._without_operators():
            return self.shadow(value)

    def become(self, target: ShadowTensor, source: ShadowTensor) -> None:
        """Let a tensor of the code take another's values, as a child that it was given to did.

        To be called while the arithmetic is suspended.
        """
        if self._log is not None:
            self._log.became(target, source)
        inputs = (target, source)
        operation = Become(
            name="become",
            kernel=torch.Tensor.copy_,
            leaves=(None, None),
            form=((None, None), ()),
            holes=(0, 1),
            given=(target.dtype, source.dtype),
            made=(),
            rounds=False,
            position=self._position,
        )
        if self._tape is not None:
            alike = self._tape.before_write([target])
            self._tape.record_write(operation, inputs, alike)
        target.become(source)

    def expanded(self, value: Tensor, shape: Sequence[int]) -> Tensor:
        """Return a value of the code repeated along dims of size 1.

        To be called while the arithmetic is suspended.
        """
        with self:
            return value.expand(shape)

    def view(self, base: ShadowTensor, like: ShadowTensor, of: ShadowTensor) -> ShadowTensor:
        """Return the view of `base` that `like` is of `of`, which has the strides of `base`.

        To be called while the arithmetic is suspended.
        """
        offset = base.storage_offset() + like.storage_offset() - of.storage_offset()
        with self:
            made: Any = torch.as_strided(base, like.size(), like.stride(), offset)
        assert isinstance(made, ShadowTensor)
        return made

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute one aten operator."""
        if self._log is None:
            return self._run(func, args, kwargs)
        self._log.calling(func, args, kwargs)
        made = self._run(func, args, kwargs)
        self._log.called(made)
        return made

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = operator_name(func)
        if func._schema.is_mutable and name in RESHAPERS:
            raise NotImplementedError(f"{func} changes a tensor's shape in place")
        if name.startswith("_scaled_dot_product"):
            return self._attention_kernel(func, args, kwargs)
        originals, form = flatten_call(args, kwargs)
        if not any(isinstance(x, Tensor) for x in originals):
            return self._made(func, args, kwargs)
        leaves = [self.shadow(x) if is_floating(x) else x for x in originals]
        rounds = not is_exact(func) or accumulates(func, args, kwargs)
        if func._schema.is_mutable:
            written = [x for x in written_arguments(func, args, kwargs) if isinstance(x, Tensor)]
            pairs = {id(x): (x, leaf) for x, leaf in zip(originals, leaves, strict=True)}
            if any(self._varies(x) for x in leaves):
                self._integers.decide(written)
            call = self._call(func, name, leaves, form, rounds=rounds)
            self._write(call, [pairs[id(x)] for x in written])
            return written_results(func, written)
        call = self._call(func, name, leaves, form, rounds=rounds)
        made = tuple(
            x if x is not None and (x.is_floating_point or x.is_complex) else None
            for x in result_dtypes(func, leaves, form)
        )
        if rounds:
            self._note_step(call, made[0] if made else None)
            return call.packed(self._finish(call, call.computing(made)))
        return self._move(call, call.moving(made))

    @property
    def choices(self) -> list[Choice]:
        """The choices that the code made by value; none are noted without `choose`."""
        return [] if self._selections is None else self._selections.made

    @property
    def has_chosen(self) -> bool:
        """Whether rounded values have decided any integer or boolean so far."""
        return bool(self._integers)

    def is_chosen(self, tensor: Tensor) -> bool:
        """Tell whether an integer or boolean tensor was decided by rounded values."""
        return self._integers.is_decided(tensor)

    def origin(self, tensor: Any) -> str:
        """Return the name of the choice whose indices an integer tensor holds, in whatever shape, or ""."""
        return self._integers.origin(tensor)

    def attention(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ShadowTensor:
        """Compute `torch.nn.functional.scaled_dot_product_attention` as one operator."""
        named = dict(zip(ATTENTION_ARGUMENTS, args, strict=False)) | kwargs
        with self._without_operators():
            if self._log is None:
                return self._attend(named)
            self._log.calling(torch.nn.functional.scaled_dot_product_attention, (), named)
            made = self._attend(dict(named))
            self._log.called(made)
            return made

    @contextmanager
    def _without_operators(self) -> Iterator[None]:
        self._operators.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            self._operators.__enter__()  # type: ignore[no-untyped-call]

    def _made(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator without inputs as it is: its values are what the candidate's code makes as well."""
        made = func(*args, **kwargs)
        return ShadowTensor(widened(made), made.dtype) if is_floating(made) else made

    def _varies(self, value: Any) -> bool:
        """Tell whether rounding can change a value of the code."""
        if isinstance(value, ShadowTensor):
            return bool(value.depth or value.is_cast)
        return self._integers.is_decided(value)

    def _call(self, func: Any, name: str, leaves: list[Any], form: Any, *, rounds: bool) -> OperatorCall:
        if rounds:
            self._note_constants(name, leaves)
        holes = [
            i for i, x in enumerate(leaves) if isinstance(x, ShadowTensor) or self._integers.is_decided(x)
        ]
        return OperatorCall(
            func=func,
            name=name,
            leaves=leaves,
            form=form,
            holes=tuple(holes),
            rounds=rounds,
            position=self._position,
        )

    def _attend(self, named: dict[str, Any]) -> ShadowTensor:
        if named.get("scale") is None:
            named["scale"] = 1 / math.sqrt(named["query"].shape[-1])
        leaves, form = flatten_call((), named)
        leaves = [self.shadow(x) if is_floating(x) else x for x in leaves]
        call = self._call(attention, ATTENTION, leaves, form, rounds=True)
        dtype = named["query"].dtype
        self._note_step(call, dtype)
        (made,) = self._finish(call, call.attending(dtype))
        assert isinstance(made, ShadowTensor)
        return made

    def _attention_kernel(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute one of aten's attention kernels, which some code calls in place of the function."""
        named = arguments_by_name(func, args, kwargs)
        named["attn_mask"] = named.get("attn_mask", named.get("attn_bias"))
        output = self._attend({name: named[name] for name in ATTENTION_ARGUMENTS if name in named})
        # What such a kernel returns beside the output is for the backward pass.
        return (output, *[None] * (len(func._schema.returns) - 1))

    def _move(self, call: OperatorCall, plan: Plan) -> Any:
        """Run an operator that only moves values, and go on with a choice that it makes."""
        results = plan.operation.run(call.inputs, self.rounding, ())
        source = call.source
        choice = None
        if self._selections is not None and source is not None:
            args, kwargs = call.arguments()
            choice = self._selections.choose(call.func, args, kwargs, call.packed(results), source.data64)
        if choice is None or source is None:
            return call.packed(self._finish(call, plan, results))
        self._integers.name(choice.indices, choice.name)
        pick = call.picking(choice, source)
        if not choice.is_followed:
            return call.packed(self._finish(call, plan, results, pinned=pick))
        *picked, compared = pick.shadowed(pick.operation.run([source], self.rounding, ()))
        if self._tape is not None:
            self._tape.record(pick.operation, call.flowing, [*picked, compared])
            self._tape.mark((None, choice.name), compared)
        return call.packed(picked)

    def _finish(
        self, call: OperatorCall, plan: Plan, results: list[Any] | None = None, pinned: Plan | None = None
    ) -> list[Any]:
        """Return an operation's results as the code sees them, and keep what is known of them."""
        if self._exchange is not None and results is None:
            plan = replace(plan, operation=self._exchange(plan.operation))
        if results is None:
            results = plan.operation.run(call.inputs, self.rounding, ())
        made = plan.shadowed(results)
        if call.depth or call.is_decided:
            self._integers.decide(made)
        self._integers.carry(call.leaves, made)
        if self._tape is not None and (call.is_decided or not plan.is_constant):
            self._tape.record(
                plan.operation, call.flowing, made, None if pinned is None else pinned.operation
            )
        return made

    def _write(self, call: OperatorCall, written: list[tuple[Tensor, Any]]) -> None:
        """Run an operator that changes tensors in place.

        Args:
            call: the operator.
            written: what it changes: as the code gave it, and as it flows.
        """
        flowing, inputs = call.flowing, call.inputs
        targets = [x for _, x in written if any(x is y for y in flowing)]
        plan = call.writing(targets)
        slots = None if self._tape is None else self._tape.before_write(targets)
        places = [next(i for i, y in enumerate(flowing) if y is x) for x in targets]
        alike = [
            list(x.aliases) if isinstance(x, ShadowTensor) else [inputs[i]]
            for i, x in zip(places, targets, strict=True)
        ]
        plan.operation.run(inputs, self.rounding, alike)
        if self._tape is not None and slots:
            self._tape.record_write(plan.operation, flowing, slots)
        for depth, group in zip(plan.depths, alike, strict=True):
            for alias in group:
                if isinstance(alias, ShadowTensor):
                    alias.depth = max(alias.depth, depth)
                    alias.unknown = alias.unknown or plan.unknown
        for original, shadow in written:
            if shadow is not original:
                # A plain tensor of the code's own, such as a buffer: it keeps its dtype.
                original.copy_(shadow.data64.to(original.dtype))
                self._written[id(original)] = original, shadow

    def _note_constants(self, op: str, leaves: list[Any]) -> None:
        """Note the constants among an operator's arguments, and count it."""
        self._position += 1
        self.constants += [
            Constant(position=self._position, leaf=i, op=op, value=x)
            for i, x in enumerate(leaves)
            if isinstance(x, float) and x != 0 and math.isfinite(x)
        ]

    def _note_step(self, call: OperatorCall, made: Any) -> None:
        if self.rounding.recipe is None and isinstance(made, torch.dtype):
            given = tuple([x.dtype for x in call.shadows])
            self.steps.append(Step(position=self._position, op=call.name, given=given, made=made))
