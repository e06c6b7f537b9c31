"""The options that a test gives to `check` and `baseline` of the fixture, read as settings are."""

import difflib
import inspect
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from validator.errors import UsageError
from validator.testing.settings import KEYS

__all__ = ["read_arguments"]


def read_arguments(
    method: str, made_for: Callable[..., Any], given: Mapping[str, Any], *, besides: Collection[str] = ()
) -> dict[str, Any]:
    """Return options as the function that they are for takes them.

    Args:
        method: of the fixture, for messages.
        made_for: a function, or a record, whose keyword-only arguments are the options.
        given: by name; None says nothing, and is left out.
        besides: arguments of `made_for` that are no options.

    Raises:
        UsageError: there is no such option, or its value is not legal.
    """
    parameters = inspect.signature(made_for).parameters
    names = [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY and name not in besides]
    read = {}
    for name, value in given.items():
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f" Do you mean {near[0]}?" if near else ""
            raise UsageError(f"{method}() has no option {name!r}.{hint} There are {', '.join(names)}")
        if value is not None:
            reader = _READERS.get(name, _as_it_is)
            read[name] = reader(f"{name} of {method}()", value, Path.cwd())
    return read


def _seconds(name: str, value: Any, folder: Path) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
        return float(value)
    raise UsageError(f"{name} is {value!r}; it must be a number of seconds above 0")


def _globs(name: str, value: Any, folder: Path) -> tuple[str, ...]:
    globs = (value,) if isinstance(value, str) else value
    if isinstance(globs, list | tuple) and all(isinstance(glob, str) and glob for glob in globs):
        return tuple(globs)
    raise UsageError(f'{name} is {value!r}; it must be globs of module names, such as ["model.layers.*"]')


def _as_it_is(name: str, value: Any, folder: Path) -> Any:
    return value


# How the values of options are read, those of settings among them.
_READERS: dict[str, Callable[[str, Any, Path], Any]] = {
    **KEYS,
    "include": _globs,
    "exclude": _globs,
    "level": KEYS["recipe"],
    "plant": KEYS["recipe"],
    "capture": KEYS["baselines"],
    "keep": KEYS["baselines"],
    "repro": KEYS["baselines"],
    "profiles": KEYS["long"],
    "timeout_s": _seconds,
}
