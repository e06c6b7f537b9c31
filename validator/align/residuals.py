"""Residual streams that a candidate keeps apart: `hidden + residual` is the reference's tensor.

Serving engines fuse the addition to the residual stream with the norm that follows it. Such a norm is given
what the last block computed and the residual, and returns the normed sum and the sum itself; a layer
takes and returns the two of them. In the reference's words its input is their sum, a layer's output is
too, and the norm's is the normed one alone. The sum is rounded once, as the device's own is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from validator.align.calls import enclosing
from validator.align.derived import summed
from validator.capturing.records import Call, RankCapture, TensorRef

__all__ = ["join_residuals"]

_Shape = tuple[int, ...]


def join_residuals(
    *, cand: Sequence[RankCapture], ref: RankCapture, modules: Mapping[str, str]
) -> tuple[RankCapture, ...]:
    """Put sums in the place of hidden states and residuals.

    Args:
        cand: every rank's capture.
        ref: the reference's.
        modules: the reference's name of each candidate module that both sides have.

    Returns:
        The captures, as they are where no norm takes a residual.
    """
    theirs = {call.module: call for call in reversed(ref.calls)}
    parents = {call.parent for call in ref.calls}
    leaves = {name for name, call in theirs.items() if call.id not in parents}
    counterparts = {name: theirs[new] for name, new in modules.items() if new in theirs}
    return tuple([_joined(capture, counterparts, leaves) for capture in cand])


def _joined(capture: RankCapture, counterparts: Mapping[str, Call], leaves: set[str]) -> RankCapture:
    norms = {
        call.id: pair
        for call in capture.calls
        if call.module in counterparts and counterparts[call.module].module in leaves
        if (pair := _residual_of(call, counterparts[call.module])) is not None
    }
    if not norms:
        return capture
    streams = {pair[0][1].meta.shape for pair in norms.values()}
    by_id = {call.id: call for call in capture.calls}
    around = {outer.id for norm in norms for outer in enclosing(by_id[norm], by_id)}
    calls = []
    for call in capture.calls:
        if call.id in norms:
            calls.append(_norm(call, *norms[call.id]))
        elif call.id in around and call.module in counterparts:
            calls.append(_container(call, counterparts[call.module], streams))
        else:
            calls.append(call)
    return replace(capture, calls=tuple(calls))


_Named = tuple[str, TensorRef]


def _residual_of(call: Call, ref: Call) -> tuple[_Named, _Named] | None:
    """Return what a norm adds, if it takes a residual where the reference's takes one tensor.

    A second argument of the same shape may be something else, such as a gate: it has to be called a
    residual, or be returned in some form beside the normed tensor.
    """
    given = _floats(call.inputs)
    if len(given) != 2 or len(_floats(ref.inputs)) != 1 or len(_floats(ref.outputs)) != 1:
        return None
    first, second = given
    returned = [value.meta.shape for _, value in _floats(call.outputs)]
    is_residual = "resid" in second[0] or len(returned) == 2
    if not is_residual or not _add_up(first[1], second[1]) or {*returned} != {first[1].meta.shape}:
        return None
    return first, second


def _norm(call: Call, first: _Named, second: _Named) -> Call:
    normed, *_ = _floats(call.outputs)
    return replace(call, inputs=_with_sum(call.inputs, first, second), outputs=dict([normed]))


def _container(call: Call, ref: Call, streams: set[_Shape]) -> Call:
    """Return a call around norms with the sums of the streams that it takes and returns."""
    sides = []
    for ours, theirs in ((call.inputs, ref.inputs), (call.outputs, ref.outputs)):
        pair = [(path, value) for path, value in _floats(ours) if value.meta.shape in streams]
        others = len(_floats(ours)) - len(pair)
        is_apart = len(pair) == 2 and len(_floats(theirs)) == others + 1 and _add_up(pair[0][1], pair[1][1])
        sides.append(_with_sum(ours, *pair) if is_apart else ours)
    return replace(call, inputs=sides[0], outputs=sides[1])


def _with_sum(values: Mapping[str, Any], first: _Named, second: _Named) -> dict[str, Any]:
    total = summed(first[1], second[1])
    return {path: total if path == first[0] else x for path, x in values.items() if path != second[0]}


def _floats(values: Mapping[str, Any]) -> list[_Named]:
    return [(p, v) for p, v in values.items() if isinstance(v, TensorRef) and "float" in v.meta.dtype]


def _add_up(first: TensorRef, second: TensorRef) -> bool:
    """Tell whether two tensors lie alike. What is still to be summed over ranks adds up to something else."""
    metas = first.meta, second.meta
    return metas[0].shape == metas[1].shape and not any(
        placement.kind == "partial" for meta in metas for placement in meta.placements or ()
    )
