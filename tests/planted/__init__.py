"""The faults of the registry, with what must be said of each and the stimulus that shows it."""

from collections.abc import Iterator
from typing import Any

import pytest

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

    Of each kind every check and signature that must name one is tried once; the other faults are marked slow.
    """
    return [
        pytest.param(fault, id=fault.fault, marks=() if is_new else pytest.mark.slow)
        for faults in KINDS.values()
        for fault, is_new in _told([fault for fault in faults if fault.tp == tp])
    ]


def _told(faults: list[Expectation]) -> Iterator[tuple[Expectation, bool]]:
    seen = set()
    for fault in faults:
        how = (fault.checks, fault.signature)
        yield fault, how not in seen
        seen.add(how)
