"""Between the sides of a hybrid: one side's call of a module, as a call of the other side's module.

Activations are the caller's, in the dtype, device and shape in which the module gets them on its own side.
Masks, flags and positions are those that it gets there, since kernels differ in what they expect. Caches and
other objects are the caller's: they belong to the run.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from validator.capturing.values import bind_arguments, flatten, rebuild
from validator.swapping.calls import Call, Seen, is_activation

__all__ = ["UnswappableError", "check_swappable", "translated_arguments", "translated_output"]

_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, type(None))


class UnswappableError(Exception):
    """A module whose calls don't correspond on both sides; the text completes `it ...`."""


def check_swappable(ref: Call, cand: Call) -> None:
    """Raise `UnswappableError` where a call on one side can't be made a call on the other, either way."""
    for given, own in ((ref, cand), (cand, ref)):
        _pairs(_leaves(given.arguments), _leaves(own.arguments), "is called with")
        _pairs(flatten(given.output), flatten(own.output), "returns")


def translated_arguments(
    caller: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], own: Call
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with which to call a module in place of the other side's.

    Args:
        caller: the module that is called.
        args: its positional arguments.
        kwargs: its keyword arguments.
        own: a call of the other side's module, on its own side.

    Raises:
        UnswappableError: they don't correspond.
    """
    given = _leaves(bind_arguments(caller, args, kwargs))
    pairs = _pairs(given, _leaves(own.arguments), "is called with")

    def take(path: str, leaf: Any) -> Any:
        if isinstance(leaf, Seen):
            return _as(given[pairs[path]], leaf)
        theirs = given.get(path)
        if isinstance(leaf, Tensor):
            is_theirs = (
                isinstance(theirs, Tensor) and theirs.shape == leaf.shape and _is_integer(theirs)
            ) and _is_integer(leaf)
            return theirs.to(leaf.device, leaf.dtype) if is_theirs else leaf  # type: ignore[union-attr]
        if isinstance(leaf, _PLAIN) and (theirs is None or isinstance(theirs, (*_PLAIN, Tensor))):
            return leaf
        alike = (other for other in given.values() if type(other) is type(leaf))
        return theirs if path in given else next(alike, None)

    bound = {name: rebuild(value, take, name) for name, value in own.arguments.items()}
    positional = tuple(list(bound.values())[: own.positional])
    return positional, {name: bound[name] for name in own.keywords}


def translated_output(output: Any, want: Call) -> Any:
    """Return what a module returned as the other side's module would have.

    Args:
        output: what was returned.
        want: a call of the module in whose place it was called, on that one's own side.

    Raises:
        UnswappableError: they don't correspond.
    """
    given, expected = flatten(output), flatten(want.output)
    pairs = _pairs(given, expected, "returns")
    if given.keys() == expected.keys():
        return rebuild(output, lambda path, leaf: _as(leaf, expected[path]) if path in pairs else leaf)
    return rebuild(want.output, lambda path, leaf: _as(given[pairs[path]], leaf) if path in pairs else leaf)


def _leaves(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {path: leaf for name, value in arguments.items() for path, leaf in flatten(value, name).items()}


def _pairs(given: Mapping[str, Any], own: Mapping[str, Any], verb: str) -> dict[str, str]:
    """Return which activation that is given is which of the module's own: by name, else by order."""
    ours = [path for path, leaf in own.items() if is_activation(path, leaf)]
    theirs = [path for path, leaf in given.items() if is_activation(path, leaf)]
    pairs = {path: path for path in ours if path in theirs}
    wanted = [path for path in ours if path not in pairs]
    left = [path for path in theirs if path not in pairs]
    if wanted and given.keys() == own.keys():
        wanted = []  # one side alone fills this place, as eager attention does that of its probabilities
    if wanted:
        fitting = [path for path in left if any(_fits(given[path], own[name]) for name in wanted)]
        if len(fitting) != len(wanted):
            raise UnswappableError(_differ(verb, ours, theirs))
        for path, other in zip(wanted, fitting, strict=True):
            if not _fits(given[other], own[path]):
                raise UnswappableError(_differ(verb, ours, theirs))
            pairs[path] = other
        left = [path for path in left if path not in fitting]
    used = {tuple(given[path].shape) for path in pairs.values()}
    # What is as large as the stream may be a part of it, as a residual that is kept apart.
    if given.keys() != own.keys() and any(tuple(given[path].shape) in used for path in left):
        raise UnswappableError(_differ(verb, ours, theirs))
    return pairs


def _differ(verb: str, ours: list[str], theirs: list[str]) -> str:
    first, second = (", ".join(path or "a tensor" for path in paths) or "nothing" for paths in (theirs, ours))
    return f"{verb} {first} on one side and {second} on the other"


def _fits(given: Any, own: Any) -> bool:
    return given.shape == own.shape or _is_reshaped(given.shape, own.shape)


def _is_reshaped(given: torch.Size, own: torch.Size) -> bool:
    return given.numel() == own.numel() and given[-1:] == own[-1:]


def _as(value: Any, like: Any) -> Any:
    """Return an activation as it is on the other side; what is not one there is left as it is."""
    if not isinstance(value, Tensor) or not isinstance(like, Seen):
        return value
    moved = value.to(like.device, like.dtype)
    is_other_shape = moved.shape != like.shape and _is_reshaped(moved.shape, like.shape)
    return moved.reshape(like.shape) if is_other_shape else moved


def _is_integer(value: Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
