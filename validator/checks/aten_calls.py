"""The arguments of an aten operator as one flat list, and back.

Operators take tensors, numbers and the like, and lists of those: one level of nesting, which makes this
cheaper than a general tree.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

__all__ = [
    "Form",
    "arguments_by_name",
    "flatten_call",
    "listed",
    "packed",
    "unflatten_call",
    "written_arguments",
    "written_results",
]

Form = tuple[tuple[int | None, ...], tuple[tuple[str, int | None], ...]]
"""How many leaves each argument has: None for one that is no list. Keyword arguments with their names."""


def flatten_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], Form]:
    """Return all arguments in one list, and the form to put them back with."""
    leaves: list[Any] = []
    positional = tuple([_flatten(arg, leaves) for arg in args])
    named = tuple([(name, _flatten(arg, leaves)) for name, arg in kwargs.items()]) if kwargs else ()
    return leaves, (positional, named)


def unflatten_call(leaves: Sequence[Any], form: Form) -> tuple[list[Any], dict[str, Any]]:
    """Undo `flatten_call`."""
    positional, named = form
    start, args, kwargs = 0, [], {}
    for size in positional:
        stop = start + (1 if size is None else size)
        args.append(leaves[start] if size is None else list(leaves[start:stop]))
        start = stop
    for name, size in named:
        stop = start + (1 if size is None else size)
        kwargs[name] = leaves[start] if size is None else list(leaves[start:stop])
        start = stop
    return args, kwargs


def listed(result: Any) -> list[Any]:
    """Return what an operator returned as a list."""
    if isinstance(result, tuple | list):
        return list(result)
    return [] if result is None else [result]


def packed(func: Any, items: list[Any]) -> Any:
    """Return items in the form in which an operator returns its results."""
    returns = func._schema.returns
    if len(returns) == 1:
        return items if _is_list(func) else items[0]
    return tuple(items) if items else None


def arguments_by_name(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that an operator was given under the names of its schema."""
    return dict(zip(_names(func), args, strict=False)) | dict(kwargs)


def written_arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the arguments that an in-place operator writes to."""
    named = arguments_by_name(func, args, kwargs)
    return [named[name] for name in _written_names(func) if named.get(name) is not None]


def written_results(func: Any, written: list[Any]) -> Any:
    """Return what an in-place operator returns: what it wrote to, or nothing."""
    returns = len(func._schema.returns)
    if not returns:
        return None
    return written[0] if returns == 1 else tuple(written)


@cache
def _written_names(func: Any) -> tuple[str, ...]:
    arguments = func._schema.arguments
    return tuple(a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write)


@cache
def _names(func: Any) -> tuple[str, ...]:
    return tuple(argument.name for argument in func._schema.arguments)


@cache
def _is_list(func: Any) -> bool:
    return isinstance(func._schema.returns[0].type, torch.ListType)


def _flatten(arg: Any, leaves: list[Any]) -> int | None:
    if isinstance(arg, tuple | list):
        leaves.extend(arg)
        return len(arg)
    leaves.append(arg)
    return None
