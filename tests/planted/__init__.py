"""The faults of the registry, with what must be said of each and the stimulus that shows it."""

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
    """Return the faults of candidates on so many ranks as arguments of a test."""
    return [pytest.param(fault, id=fault.fault) for fault in FAULTS if fault.tp == tp]
