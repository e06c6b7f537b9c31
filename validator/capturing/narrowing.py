"""A part of what a capture holds, as if only that had been captured; and how many bytes a capture took."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch

from validator.capturing.records import Call, RankCapture, TensorRef

__all__ = ["narrowed", "stored_bytes"]


def narrowed(capture: RankCapture, keeps: Callable[[str], bool]) -> RankCapture:
    """Return a rank's capture of some modules alone: their calls and parameters.

    Calls and collectives inside of a call that is left out belong to the nearest that is kept, as they
    would where only these modules had been captured. Numbers of calls stay as they are.

    Args:
        capture: the whole.
        keeps: says of a module's fqn whether it stays.
    """
    by_id = {call.id: call for call in capture.calls}

    def above(call: int | None) -> int | None:
        while call is not None and not keeps(by_id[call].module):
            call = by_id[call].parent
        return call

    calls = tuple(replace(call, parent=above(call.parent)) for call in capture.calls if keeps(call.module))
    return replace(
        capture,
        calls=calls,
        collectives=tuple(replace(one, call=above(one.call)) for one in capture.collectives),
        parameters={
            name: parameter
            for name, parameter in capture.parameters.items()
            if keeps(name.rpartition(".")[0])
        },
    )


def stored_bytes(ranks: Sequence[RankCapture]) -> int:
    """Return how many bytes of tensors captures hold: equal bits of a rank are stored once."""
    total = 0
    for capture in ranks:
        known = {(x.meta.dtype, x.meta.checksum): x for x in _tensors(capture)}
        total += sum(prod(x.meta.shape) * _itemsize(x.meta.dtype) for x in known.values())
    return total


def _tensors(capture: RankCapture) -> Iterator[TensorRef]:
    def of(values: Mapping[str, Any]) -> Iterator[TensorRef]:
        return (value for value in values.values() if isinstance(value, TensorRef))

    call: Call
    for call in capture.calls:
        yield from of(call.inputs)
        yield from of(call.outputs)
        for operator in call.operators:
            yield from (result.ref for result in operator.results if result.ref is not None)
    for collective in capture.collectives:
        yield from (*collective.entered, *collective.left)
    for parameter in capture.parameters.values():
        if parameter.row_hashes is None:
            yield parameter.ref


def _itemsize(dtype: str) -> int:
    known = getattr(torch, dtype, None)
    return known.itemsize if isinstance(known, torch.dtype) else 1
