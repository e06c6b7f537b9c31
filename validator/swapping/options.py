"""Switches of a candidate: environment variables and arguments of `candidate`, read from a TOML file.

[compile]                      # any name; the file has a table a switch
argument = "compile"           # candidate(compile=...)
off = false                    # as the reference would have it; left out: the argument is not given
on = true                      # as the candidate runs when it diverges

["fast math"]
environment = "PORT_FAST_MATH" # set before the target is loaded
on = "1"                       # no `off`: the variable is not set
"""

import os
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from validator.errors import UsageError

__all__ = ["Setting", "Switch", "environment", "read_switches", "setting_of"]

_PLACES = ("environment", "argument")
_KEYS = (*_PLACES, "off", "on")
_VALUES = (str, bool, int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A switch.

    Attributes:
        name: what the user calls it.
        place: `"environment"` or `"argument"`.
        key: name of the variable or argument.
        off: its value when off, None for not given.
        on: its value when on, None for not given.
    """

    name: str
    place: str
    key: str
    off: Any
    on: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a run is given.

    Attributes:
        variables: value of each environment variable, None for not set.
        arguments: of `candidate`.
    """

    variables: Mapping[str, str | None]
    arguments: Mapping[str, Any]


def read_switches(path: Path) -> tuple[Switch, ...]:
    """Read the switches of a file.

    Raises:
        UsageError: it can't be read, is no TOML, or a switch is not as this module says.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--options {str(path)!r} can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--options {str(path)!r} is no TOML: {error}") from None
    switches = tuple(_switch(path, name, table) for name, table in document.items())
    if not switches:
        raise UsageError(
            f"--options {str(path)!r} names no switch; write a table for each, such as "
            '[compile] with argument = "compile", off = false and on = true'
        )
    seen: dict[tuple[str, str], str] = {}
    for switch in switches:
        other = seen.setdefault((switch.place, switch.key), switch.name)
        if other != switch.name:
            raise UsageError(
                f"{path}: [{other}] and [{switch.name}] both set the {switch.place} {switch.key!r}; a hybrid "
                "can't have both. Leave one out"
            )
    return switches


def setting_of(switches: Sequence[Switch], chosen: Collection[str]) -> Setting:
    """Return what a run is given in which the switches of these names are on, and all others off."""
    values = {switch: switch.on if switch.name in chosen else switch.off for switch in switches}
    return Setting(
        variables={
            switch.key: None if value is None else _text(value)
            for switch, value in values.items()
            if switch.place == "environment"
        },
        arguments={
            switch.key: value
            for switch, value in values.items()
            if switch.place == "argument" and value is not None
        },
    )


@contextmanager
def environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables inside of the block; None takes one away."""
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _switch(path: Path, name: str, table: Any) -> Switch:
    if not isinstance(table, dict):
        raise UsageError(
            f"{path}: {name} = {table!r} stands outside of any switch; write [{name}] and below it "
            "environment or argument, off and on"
        )
    unknown = next((key for key in table if key not in _KEYS), None)
    if unknown is not None:
        raise UsageError(f"{path}: [{name}] has {unknown!r}; a switch has {', '.join(_KEYS)}")
    places = [place for place in _PLACES if place in table]
    if len(places) != 1 or not isinstance(table[places[0]], str) or not table[places[0]]:
        given = " and ".join(f"{place} = {table[place]!r}" for place in places) or "neither"
        raise UsageError(
            f"{path}: [{name}] has {given}; give either the name of an environment variable or that of an "
            "argument of candidate"
        )
    off, on = table.get("off"), table.get("on")
    for key, value in (("off", off), ("on", on)):
        if value is not None and not isinstance(value, _VALUES):
            raise UsageError(f"{path}: [{name}] has {key} = {value!r}; give a string, a number or a boolean")
    if off == on and type(off) is type(on):
        raise UsageError(
            f"{path}: [{name}] is {'not given' if on is None else repr(on)} both on and off; give two values"
        )
    key = table[places[0]]
    if places[0] == "environment" and ("=" in key or "\0" in key):
        raise UsageError(f"{path}: [{name}]: {key!r} is no name of an environment variable")
    return Switch(name=name, place=places[0], key=key, off=off, on=on)


def _text(value: Any) -> str:
    """Return what an environment variable holds; a boolean as `1` or `0`."""
    return str(int(value)) if isinstance(value, bool) else str(value)
