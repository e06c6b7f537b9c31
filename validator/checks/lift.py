"""The oracle's parameters: the reference's, rounded once to the candidate's storage format, in float64."""

from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from validator.align.traces import Edge, Trace, View
from validator.checks.requantised import oracle_weight
from validator.checks.shadow import widened

__all__ = ["Lift"]


class Lift:
    """Gives a parameter or buffer of the reference float64 values and the dtype that the candidate stores.

    Buffers are not rounded: a narrower copy of one in the candidate must show where it matters.
    """

    def __init__(self, reference: nn.Module, trace: Trace, view: View) -> None:
        # A shared parameter has several names, of which the candidate may hold one.
        named = reference.named_parameters(remove_duplicate=False)
        self._names = {id(p): name for name, p in sorted(named, key=lambda item: item[0] in trace.parameters)}
        self._buffers = {id(b): name for name, b in reference.named_buffers(remove_duplicate=False)}
        self._trace, self._view = trace, view
        returned = (edge for call in trace.calls.values() for edge in call.outputs.values())
        floating = _floating(trace.parameters.values()) or _floating(returned)
        self._usual = getattr(torch, Counter(floating).most_common(1)[0][0]) if floating else None
        self._lifted: dict[int, tuple[Tensor, torch.dtype]] = {}

    def __call__(self, tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        """Return `[*]` float64 values of a tensor, and the dtype that code is to see."""
        key = id(tensor)
        name = self._names.get(key) or self._buffers.get(key)
        if name is None:
            return widened(tensor), tensor.dtype
        if key not in self._lifted:
            edge = self._trace.parameters.get(name)
            # The candidate stores a parameter that was not captured as it stores most others, of which there
            # may be none: then as what its modules return.
            stored = self._usual or tensor.dtype if edge is None else getattr(torch, edge.dtype)
            if edge is None and key not in self._names:
                stored = tensor.dtype
            dtype = stored if stored.is_floating_point == tensor.is_floating_point() else tensor.dtype
            if key in self._names and tensor.is_floating_point():
                value = oracle_weight(tensor, name, self._trace, self._view, dtype)
            else:
                value = widened(tensor)
            self._lifted[key] = (value, dtype)
        return self._lifted[key]

    def clear(self) -> None:
        """Forget the float64 copies."""
        self._lifted.clear()


def _floating(edges: Iterable[Edge]) -> list[str]:
    return [edge.dtype for edge in edges if getattr(torch, edge.dtype).is_floating_point]
