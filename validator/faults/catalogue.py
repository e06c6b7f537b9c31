"""The registry of faults, and how one is written on a command line."""

from difflib import get_close_matches

from validator.errors import UsageError
from validator.faults import (
    accumulation,
    activations,
    attention,
    caches,
    decoding,
    experts,
    inputs,
    logits,
    multimodal,
    norms,
    parallel,
    quantisation,
    residuals,
    rotary,
    routing,
    weights,
)
from validator.faults.fault import Fault, PlannedFault

__all__ = ["get", "parse", "registry"]

_KINDS = (
    norms,
    attention,
    rotary,
    activations,
    residuals,
    weights,
    quantisation,
    accumulation,
    caches,
    decoding,
    inputs,
    logits,
    routing,
    experts,
    multimodal,
    parallel,
)


def registry() -> dict[str, Fault]:
    """Return all faults by name."""
    return {fault.name: fault for kind in _KINDS for fault in kind.FAULTS}


def get(name: str) -> Fault:
    """Return a fault.

    Raises:
        UsageError: there is none of that name.
    """
    faults = registry()
    if name in faults:
        return faults[name]
    close = get_close_matches(name, faults, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise UsageError(f"no fault is called {name!r}; {hint}`validator faults` lists them")


def parse(text: str) -> PlannedFault:
    """Read a fault with its parameters.

    Args:
        text: `name` or `name:parameter=value,...`, such as `attn-scale:layer=3,factor=1.02`.

    Raises:
        UsageError: no such fault or parameter, or a value that is not legal.
    """
    name, colon, rest = text.partition(":")
    fault = get(name)
    given: dict[str, str] = {}
    for word in rest.split(",") if colon else ():
        key, equals, value = word.partition("=")
        if not equals or key in given:
            why = "is given twice" if equals else "is no parameter=value"
            raise UsageError(f"{word!r} in {text!r} {why}; write for instance {fault.plan()}")
        given[key] = value
    return fault.plan(**given)
