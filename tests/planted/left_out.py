"""Reports of the collection of real faults that no planted fault recreates, each with the reason."""

__all__ = ["LEFT_OUT"]

_BACKWARD = "the forward pass is exact: the fault is in the gradients, and a run here has none"

LEFT_OUT = {
    "tp-ln-grad-unsynced": _BACKWARD,
    "tp-rowwise-bias-grad": _BACKWARD,
    "tp-mqa-kv-grad": _BACKWARD,
    "mem-abandoned-cache": "memory grows from one generation to the next; no number of the model is wrong",
    "mm-mrope-generate": "positions are wrong in decoding steps alone, and a run here is one forward pass",
}
"""Reasons by id of the report."""
