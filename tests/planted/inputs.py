"""What must be said of the faults of what the model is given."""

from tests.planted.expectation import DENSE, Expectation, GuiltyEdge
from validator.checks.findings import Check

# Layers are handed the positions too.
_POSITIONS = tuple(
    GuiltyEdge(module="model", into=f"model.{name}")
    for name in ("rotary_emb", *(f"layers.{i}" for i in range(4)))
)

__all__ = ["FAULTS"]

FAULTS = (
    *(
        Expectation(fault=fault, guilty=_POSITIONS, checks=(Check.EXACT,), families=DENSE)
        for fault in ("positions-stale", "positions-restart", "positions-contiguous")
    ),
)
