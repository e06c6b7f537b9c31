"""Experts split over ranks that all see every token: each rank's choices, put in the words of all ranks.

A rank that runs its own experts alone gives them its own numbers, marks the others' as nobody's or takes
their weights away, and returns a term of a sum. What goes into the reference's experts is the router's
choice. So each rank's own choices are numbered as the reference's, and the router's stand in for those of
other ranks: where the rank chose as it should, that is the router's choice bit by bit.

Shape legend: T = tokens, k = experts of a token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from validator.align.derived import derived
from validator.align.edges import JoinedEdge
from validator.capturing.levels import NOTHING
from validator.capturing.records import Call, RankCapture, TensorRef

__all__ = ["number_experts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """What one rank gave to its experts, and what the router had said.

    Attributes:
        first: the reference's number of the rank's first expert.
        count: how many it has.
        ids, weights: `[T, k]` paths of the inputs, and tensors; a router's weights may be missing.
    """

    first: int
    count: int
    ids_path: str
    ids: TensorRef
    routed_ids: TensorRef
    weights_path: str
    weights: TensorRef
    routed_weights: TensorRef


def number_experts(
    cand: Sequence[RankCapture], parameters: Mapping[str, JoinedEdge], modules: Mapping[str, str]
) -> tuple[RankCapture, ...]:
    """Put what ranks give to their own experts in the words of all ranks.

    Args:
        cand: every rank's capture.
        parameters: the candidate's, joined, by the reference's name: along their first dim lie the experts.
        modules: the reference's name of each candidate module that both sides have.

    Returns:
        The captures. Calls to which every rank gives the same are left as they are, and so are those whose
        router is not seen, or whose tokens are not those of the router.
    """
    owners = _owners(parameters)
    calls = {
        (modules[call.module], call.n, capture.rank): call
        for capture in cand
        for call in capture.calls
        if modules.get(call.module) in owners
    }
    changed: dict[tuple[int, int], Call] = {}
    for module, n in dict.fromkeys(key[:2] for key in calls):
        callers = [capture for capture in cand if (module, n, capture.rank) in calls]
        choices: dict[int, _Choice] = {}
        for capture in callers:
            box = owners[module].get(capture.rank)
            found = None if box is None else _choice(calls[module, n, capture.rank], capture, *box)
            if found is not None:
                choices[capture.rank] = found
        if len(choices) < len(callers) or not any(_is_own(choice) for choice in choices.values()):
            continue
        for rank, choice in choices.items():
            call = calls[module, n, rank]
            inputs = dict(call.inputs)
            for path, of_ids in ((choice.ids_path, True), (choice.weights_path, False)):
                meta = call.inputs[path].meta
                inputs[path] = derived(meta.shape, meta.dtype, partial(_read, choice, of_ids=of_ids))
            changed[rank, call.id] = replace(call, inputs=inputs)
    return tuple(
        replace(c, calls=tuple(changed.get((c.rank, call.id), call) for call in c.calls)) for c in cand
    )


def _owners(parameters: Mapping[str, JoinedEdge]) -> dict[str, dict[int, tuple[int, int]]]:
    """Return which of the experts each rank has, by module: the first, and the one behind the last.

    Experts that don't follow each other on a rank have no first one that tells the numbers of the others.
    """
    owners: dict[str, dict[int, tuple[int, int]]] = {}
    for name, joined in parameters.items():
        if len(joined.plan.shape) != 3:
            continue
        held: dict[int, set[tuple[int, int]]] = {}
        for part in joined.edge.parts:
            held.setdefault(part.rank, set()).add(part.box[0])
        own = {rank: min(intervals) for rank, intervals in held.items() if len(intervals) == 1}
        if len(own) == len(held) and len(set(own.values())) > 1:
            owners[name.rpartition(".")[0]] = own
    return owners


def _choice(call: Call, capture: RankCapture, first: int, stop: int) -> _Choice | None:
    tensors = {path: value for path, value in call.inputs.items() if isinstance(value, TensorRef)}
    ids = [path for path, value in tensors.items() if _is_integer(value)]
    if len(ids) != 1:
        return None
    given = tensors[ids[0]]
    weights = [
        path
        for path, value in tensors.items()
        if path != ids[0] and value.meta.shape == given.meta.shape and "float" in value.meta.dtype
    ]
    routers = [
        other
        for other in capture.calls
        if other.parent == call.parent and other.end is not None and other.end < call.start
    ]
    for router in reversed(routers):
        outputs = [value for value in router.outputs.values() if isinstance(value, TensorRef)]
        alike = [value for value in outputs if value.meta.shape == given.meta.shape]
        routed_ids = [value for value in alike if _is_integer(value)]
        routed_weights = [value for value in alike if "float" in value.meta.dtype]
        if len(routed_ids) == len(routed_weights) == len(weights) == 1:
            return _Choice(
                first=first,
                count=stop - first,
                ids_path=ids[0],
                ids=given,
                routed_ids=routed_ids[0],
                weights_path=weights[0],
                weights=tensors[weights[0]],
                routed_weights=routed_weights[0],
            )
    return None


def _is_own(choice: _Choice) -> bool:
    """Tell whether a rank gave something else than the router's choice; not, where that can't be read."""
    if NOTHING in (choice.weights.meta.one_in, choice.routed_weights.meta.one_in):
        return False
    return (choice.ids.meta.checksum, choice.weights.meta.checksum) != (
        choice.routed_ids.meta.checksum,
        choice.routed_weights.meta.checksum,
    )


def _read(choice: _Choice, *, of_ids: bool) -> torch.Tensor:
    ids_Tk, weights_Tk = choice.ids.read(), choice.weights.read()
    routed_Tk = choice.routed_ids.read()
    is_taken = weights_Tk != 0
    if choice.weights.meta.one_in != 1:
        is_taken &= ~weights_Tk.isnan()  # What a sample does not hold is the router's.
    # Numbers of all ranks stay as they are; a rank's own begin with its first expert.
    is_local = is_taken & (ids_Tk >= 0) & (ids_Tk < choice.count)
    local_Tk = ids_Tk + choice.first
    agreeing = [int((of_all == routed_Tk)[is_taken].sum()) for of_all in (ids_Tk, local_Tk)]
    if agreeing[0] <= agreeing[1]:
        is_taken, ids_Tk = is_local, local_Tk
    if of_ids:
        return torch.where(is_taken, ids_Tk, routed_Tk.to(ids_Tk.dtype))
    routed_weights_Tk = choice.routed_weights.read().to(weights_Tk.dtype)
    return torch.where(is_taken, weights_Tk, routed_weights_Tk)


def _is_integer(value: TensorRef) -> bool:
    return not any(kind in value.meta.dtype for kind in ("float", "complex", "bool"))
