"""The operators that ran in the calls which are parts of one, put in one's place.

Parts need not run the same: a first step may set a cache up that a later one adds to. Operators are paired in
their order and by their names. What has no counterpart in some part, or makes up no whole, keeps its place
but has no values.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any

from validator.capturing.records import Operator, OperatorResult, Origin, OriginKind, TensorRef

__all__ = ["join_operators_of_parts"]

_Join = Callable[[Sequence[TensorRef]], TensorRef | None]


def join_operators_of_parts(parts: Sequence[Sequence[Operator]], join: _Join) -> tuple[Operator, ...]:
    """Return the first part's operators, with what the same ones of all parts were given and made.

    Args:
        parts: the operators of each.
        join: makes one of some tensors, one a part; None where they don't fit together.

    Returns:
        Nothing where no operator's results make up a whole.
    """
    first, *others = parts
    counterparts = [_counterparts(first, other) for other in others]
    made = []
    for i, operator in enumerate(first):
        alike = [operator, *(found[i] for found in counterparts if i in found)]
        is_whole = len(alike) == len(parts) and len({len(x.results) for x in alike}) == 1
        made.append(_joined(alike, join if is_whole else _nothing))
    return tuple(made) if any(result.ref is not None for x in made for result in x.results) else ()


def _counterparts(first: Sequence[Operator], other: Sequence[Operator]) -> dict[int, Operator]:
    """Return the operator of another part by the position of the first part's."""
    own, theirs = ([operator.name for operator in part] for part in (first, other))
    blocks = SequenceMatcher(None, own, theirs, autojunk=False).get_matching_blocks()
    return {i + k: other[j + k] for i, j, size in blocks for k in range(size)}


def _nothing(tensors: Sequence[TensorRef]) -> TensorRef | None:
    return None


def _joined(alike: Sequence[Operator], join: _Join) -> Operator:
    results = tuple(_result(found, join) for found in zip(*(x.results for x in alike), strict=False))
    arguments = {name: _argument([x.arguments.get(name) for x in alike], join) for name in alike[0].arguments}
    return replace(alike[0], arguments=arguments, results=results)


def _result(found: Sequence[OperatorResult], join: _Join) -> OperatorResult:
    whole = _whole([result.ref for result in found], join)
    if whole is None:
        return replace(found[0], ref=None)
    return replace(found[0], shape=whole.meta.global_shape or whole.meta.shape, ref=whole)


def _argument(values: Sequence[Any], join: _Join) -> Any:
    """Return one argument of all parts: where it comes from, or as the first part has it."""
    first = values[0]
    if isinstance(first, list):
        lists = [value if isinstance(value, list) else [] for value in values]
        if len({len(value) for value in lists}) > 1:
            return [_argument([x], _nothing) for x in first]
        return [_argument(found, join) for found in zip(*lists, strict=True)]
    if not isinstance(first, Origin) or first.kind is OriginKind.PARAMETER:
        return first
    return replace(first, ref=_whole([x.ref if isinstance(x, Origin) else None for x in values], join))


def _whole(refs: Sequence[TensorRef | None], join: _Join) -> TensorRef | None:
    tensors = [ref for ref in refs if ref is not None]
    return join(tensors) if len(tensors) == len(refs) else None
