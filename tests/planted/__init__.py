"""The faults of the registry, with what must be said of each and the stimulus that shows it."""

from typing import Any

from tests.planted import (
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
from tests.planted.expectation import LAYERS, Expectation, GuiltyEdge
from tests.selecting import cases

__all__ = ["FAULTS", "KINDS", "LAYERS", "Expectation", "GuiltyEdge", "expected"]

KINDS = {
    kind.__name__.rpartition(".")[2]: kind.FAULTS
    for kind in (
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
}
"""Expectations by kind of fault."""

FAULTS = tuple(fault for faults in KINDS.values() for fault in faults)


def expected(*, tp: int) -> list[Any]:
    """Return the faults of candidates on so many ranks as arguments of a test.

    Every kind is tried once, and so are every check and signature that must name a fault; the other faults
    are marked slow.
    """
    seen: set[object] = set()
    found = []
    for kind, faults in KINDS.items():
        for fault in faults:
            if fault.tp == tp:
                tells = {kind, (fault.checks, fault.signature)}
                found.append((fault, not tells <= seen))
                seen |= tells
    quick = {fault.fault for fault, is_new in found if is_new}
    return cases((fault for fault, _ in found), quick=lambda f: f.fault in quick, label=lambda f: f.fault)
