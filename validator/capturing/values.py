"""Nested values as paths: how arguments and outputs of a module call get their names.

A path is the parts from the outside in, joined by `/`: `hidden_states`, `position_embeddings/0`,
`last_hidden_state`. A bare tensor has the empty path. Parts are escaped, so that a path is always
a legal and harmless HDF5 name.
"""

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any
from urllib.parse import quote, unquote

import torch
from torch import nn

from .compiled import seen_through

__all__ = [
    "bind_arguments",
    "escape_part",
    "flatten",
    "flatten_arguments",
    "rebuild",
    "tensors",
    "unescape_part",
]

_PLAIN = " !\"#$&'()*+,-.:;<=>?@[]^_`{|}~\\"


def escape_part(part: str) -> str:
    """Return `part` as one path part, different for different parts and never empty, `.` or `..`.

    `/`, `%`, control characters and everything beyond ASCII are percent-encoded in capitals. The
    empty part becomes a bare `%`, so a `%` that lowercase letters follow never comes from here.
    """
    if not part:
        return "%"
    if part in (".", ".."):
        return part.replace(".", "%2E")
    return quote(part, safe=_PLAIN, errors="surrogatepass")


def unescape_part(part: str) -> str:
    """Undo `escape_part`."""
    return "" if part == "%" else unquote(part, errors="surrogatepass")


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of a nested value by path.

    Mappings, dataclasses, named tuples, tuples and lists are opened; everything else (tensors,
    numbers, None, caches and other objects) is a leaf.
    """
    return dict(_leaves(value, path))


def tensors(value: Any) -> dict[str, torch.Tensor]:
    """Return the tensor leaves of a nested value by path."""
    return {path: leaf for path, leaf in _leaves(value, "") if isinstance(leaf, torch.Tensor)}


def rebuild(value: Any, replace: Callable[[str, Any], Any], path: str = "") -> Any:
    """Return a copy of a nested value, of the same types, whose leaf at path `p` is `replace(p, leaf)`."""
    children = _children(value)
    if children is None:
        return replace(path, value)
    new = {name: rebuild(child, replace, _join(path, name)) for name, child in children.items()}
    if isinstance(value, Mapping):
        keys = dict(zip(children, value, strict=True))
        return _mapping_like(value, {keys[name]: child for name, child in new.items()})
    if dataclasses.is_dataclass(value):
        return dataclasses.replace(value, **new)  # type: ignore[type-var]
    if hasattr(value, "_fields"):
        return type(value)(**new)
    return type(value)(new.values())


def bind_arguments(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a module's call under the names of its class's `forward`.

    Surplus positional arguments get the names `args/0`, `args/1`, ...; keyword arguments that the
    signature collects in `**kwargs` keep their own names. Defaults that were not passed are left out.
    """
    signature = inspect.signature(type(seen_through(module)).forward)
    positional = [
        p.name
        for p in list(signature.parameters.values())[1:]
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    bound = dict(zip(positional, args, strict=False))
    bound |= {f"args/{i}": value for i, value in enumerate(args[len(positional) :])}
    # In the signature's order, which two spellings of one module share, whatever the caller's.
    named = {name: kwargs[name] for name in signature.parameters if name in kwargs}
    return bound | named | dict(kwargs)


def flatten_arguments(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves of the arguments of a module's call by path: `bind_arguments`, flattened."""
    leaves: dict[str, Any] = {}
    for name, value in bind_arguments(module, args, kwargs).items():
        # A name of `bind_arguments` can have parts of its own (`args/0`).
        leaves |= flatten(value, "/".join(escape_part(part) for part in name.split("/")))
    return leaves


def _mapping_like(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    make: Any = type(value)
    if make is dict:
        return items
    if dataclasses.is_dataclass(value):
        return make(**items)
    if not isinstance(value, MutableMapping):
        return make(items)
    # The constructor may take other arguments, as that of a defaultdict does; a copy needs none.
    like = copy.copy(value)
    like.clear()
    like.update(items)
    return like


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    children = _children(value)
    if children is None:
        yield path, value
        return
    for name, child in children.items():
        yield from _leaves(child, _join(path, name))


def _children(value: Any) -> dict[str, Any] | None:
    if isinstance(value, Mapping):
        return {escape_part(str(key)): child for key, child in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    if isinstance(value, tuple | list):
        return {str(i): child for i, child in enumerate(value)}
    return None


def _join(path: str, part: str) -> str:
    return f"{path}/{part}" if path else part
