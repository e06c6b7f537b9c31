"""What enters and leaves each collective, seen by a dispatch mode.

Without it a row-parallel module shows only its reduced result, which is equal on all ranks, and the
rank that computed its part wrongly can't be named. Collectives come in place (`c10d`: the functions
of `torch.distributed`) and functional (`_c10d_functional`: DTensor); both are waited for at once,
which costs overlap with computation and changes no value. A send or receive is not waited for, since
its partner may wait for this rank first: what a receive brought is copied once the run has waited.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group  # type: ignore[attr-defined]
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from .hooks import Recorder
from .schema import OUTSIDE, escape_fqn
from .selection import Selection
from .writer import CaptureWriter

__all__ = ["CollectiveRecorder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """Names of an operator's arguments that enter and, where it works in place, of those that leave."""

    op: str
    entered: str | None
    left: str | None = None
    waits: bool = True


@dataclass(slots=True, kw_only=True)
class _Record:
    id: int
    op: str
    reduce: str
    ranks: tuple[int, ...]
    call: int
    start: int
    path: str
    entered: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Receiving:
    record: _Record
    tensors: list[torch.Tensor]
    work: Any


_FORMS = {
    "c10d::allreduce_": _Form(op="all_reduce", entered="tensors", left="tensors"),
    "c10d::allreduce_coalesced_": _Form(op="all_reduce", entered="tensors", left="tensors"),
    "c10d::_allgather_base_": _Form(op="all_gather", entered="input_tensor", left="output_tensor"),
    "c10d::allgather_": _Form(op="all_gather", entered="input_tensors", left="output_tensors"),
    "c10d::allgather_coalesced_": _Form(op="all_gather", entered="input_list", left="output_lists"),
    "c10d::allgather_into_tensor_coalesced_": _Form(op="all_gather", entered="inputs", left="outputs"),
    "c10d::_reduce_scatter_base_": _Form(op="reduce_scatter", entered="input_tensor", left="output_tensor"),
    "c10d::reduce_scatter_": _Form(op="reduce_scatter", entered="input_tensors", left="output_tensors"),
    "c10d::reduce_scatter_tensor_coalesced_": _Form(op="reduce_scatter", entered="inputs", left="outputs"),
    "c10d::alltoall_base_": _Form(op="all_to_all", entered="input", left="output"),
    "c10d::alltoall_": _Form(op="all_to_all", entered="input_tensors", left="output_tensors"),
    "c10d::broadcast_": _Form(op="broadcast", entered="tensors", left="tensors"),
    "c10d::reduce_": _Form(op="reduce", entered="tensors", left="tensors"),
    "c10d::gather_": _Form(op="gather", entered="input_tensors", left="output_tensors"),
    "c10d::scatter_": _Form(op="scatter", entered="input_tensors", left="output_tensors"),
    "c10d::send": _Form(op="send", entered="tensors", waits=False),
    "c10d::recv_": _Form(op="recv", entered=None, left="tensors", waits=False),
    "c10d::recv_any_source_": _Form(op="recv", entered=None, left="tensors", waits=False),
    "_c10d_functional::all_reduce": _Form(op="all_reduce", entered="input"),
    "_c10d_functional::all_reduce_": _Form(op="all_reduce", entered="input"),
    "_c10d_functional::all_reduce_coalesced": _Form(op="all_reduce", entered="inputs"),
    "_c10d_functional::all_reduce_coalesced_": _Form(op="all_reduce", entered="inputs"),
    "_c10d_functional::all_gather_into_tensor": _Form(op="all_gather", entered="input"),
    "_c10d_functional::all_gather_into_tensor_out": _Form(op="all_gather", entered="input"),
    "_c10d_functional::all_gather_into_tensor_coalesced": _Form(op="all_gather", entered="inputs"),
    "_c10d_functional::reduce_scatter_tensor": _Form(op="reduce_scatter", entered="input"),
    "_c10d_functional::reduce_scatter_tensor_out": _Form(op="reduce_scatter", entered="input"),
    "_c10d_functional::reduce_scatter_tensor_coalesced": _Form(op="reduce_scatter", entered="inputs"),
    "_c10d_functional::all_to_all_single": _Form(op="all_to_all", entered="input"),
    "_c10d_functional::broadcast": _Form(op="broadcast", entered="input"),
    "_c10d_functional::broadcast_": _Form(op="broadcast", entered="input"),
}


class CollectiveRecorder(TorchDispatchMode):
    """Records the collectives of a run while it is entered.

    Args:
        recorder: knows the module call that is running, and the sequence of events.
        writer: where records go.
        selection: collectives outside of the calls that it keeps are left out.
    """

    def __init__(self, recorder: Recorder, writer: CaptureWriter, selection: Selection) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder
        self._writer = writer
        self._selection = selection
        self._count = 0
        self._receiving: list[_Receiving] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator, and record it if it is a collective."""
        kwargs = kwargs or {}
        if DTensor in types:
            # DTensor turns it into operators on local tensors, collectives among them, which come here again.
            return NotImplemented
        self.settle()
        form = _form(func)
        if form is None or not self._is_kept():
            return func(*args, **kwargs)
        arguments = {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)} | kwargs
        record = self._begin(form, arguments)
        result = func(*args, **kwargs)
        if form.left is None and form.op == "send":
            self._end(record, [])
            return result
        work = result[-1] if isinstance(result, tuple) else result
        if form.left is None:
            left = list(_tensors(result))
            for tensor in left:
                torch.ops._c10d_functional.wait_tensor(tensor)
            self._end(record, left)
        elif form.waits:
            dist.Work.unbox(work).wait()
            self._end(record, list(_tensors(arguments[form.left])))
        else:
            tensors = list(_tensors(arguments[form.left]))
            self._receiving.append(_Receiving(record=record, tensors=tensors, work=dist.Work.unbox(work)))
        return result

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise torch wraps the method above, and imports its compiler (seconds) at the first operator.
        return False

    def settle(self, *, final: bool = False) -> None:
        """Copy what receives have brought whose completion the run has waited for.

        Args:
            final: record the others too, without what they brought.
        """
        if not self._receiving:
            return
        waiting = []
        for receiving in self._receiving:
            if receiving.work.is_completed():
                self._end(receiving.record, receiving.tensors)
            elif final:
                self._end(receiving.record, [])
            else:
                waiting.append(receiving)
        self._receiving = waiting

    def _is_kept(self) -> bool:
        outside = self._recorder.innermost() is None
        return self._selection.is_whole if outside else self._recorder.enclosing() is not None

    def _begin(self, form: _Form, arguments: dict[str, Any]) -> _Record:
        call = self._recorder.enclosing() or self._recorder.outermost
        module = escape_fqn(call.fqn) if call.id is not None else OUTSIDE
        path = f"values/{module}/collectives/{form.op}.{call.collectives[form.op]}"
        call.collectives[form.op] += 1
        record = _Record(
            id=self._count,
            op=form.op,
            reduce=_reduce_name(arguments.get("reduce_op")),
            ranks=_group_ranks(arguments),
            call=-1 if call.id is None else call.id,
            start=self._recorder.next_event(),
            path=path,
            entered=0,
        )
        self._count += 1
        if form.entered is not None:
            record.entered = self._put(record, "entered", list(_tensors(arguments[form.entered])))
        return record

    def _end(self, record: _Record, left: list[torch.Tensor]) -> None:
        count = self._put(record, "left", left)
        ranks = json.dumps(record.ranks)
        self._writer.append(
            "collectives",
            record.id,
            record.op,
            record.reduce,
            ranks,
            record.call,
            record.start,
            record.path,
            record.entered,
            count,
        )

    def _put(self, record: _Record, side: str, tensors: list[torch.Tensor]) -> int:
        return sum(
            self._recorder.put(f"{record.path}/{side}/{i}", record.id, tensor)
            for i, tensor in enumerate(tensors)
        )


@cache
def _form(func: Any) -> _Form | None:
    if not isinstance(func, torch._ops.OpOverload):
        return None
    return _FORMS.get(func._schema.name.replace("_functional_autograd::", "_functional::"))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for x in value:
            yield from _tensors(x)


def _reduce_name(op: Any) -> str:
    if op is None:
        return ""
    name = op if isinstance(op, str) else dist.ReduceOp.RedOpType(op.op()).name
    return str(name).lower()


def _group_ranks(arguments: dict[str, Any]) -> tuple[int, ...]:
    if "process_group" in arguments:
        group = dist.ProcessGroup.unbox(arguments["process_group"])
        name = group.group_name
    else:
        name = arguments["group_name"]
    group = _resolve_process_group(name)
    return tuple(dist.get_process_group_ranks(group))
