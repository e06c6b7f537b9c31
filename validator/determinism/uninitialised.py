"""Fill memory that nothing was written to yet, so that whoever reads it shows.

Fresh memory mostly holds zeros or the last result of the same shape, so that a kernel that leaves a part of
its output unwritten passes test after test. Here floats are NaN, integers the largest of their type; or all
are zeros, to compare with.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

__all__ = ["EMPTY_OPERATORS", "FillUninitialised"]

EMPTY_OPERATORS = frozenset(
    (
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
    )
)
"""Operators that return memory as it is, by their names without namespace and overload."""


class FillUninitialised(TorchDispatchMode):
    """Fills what `torch.empty` and its like return, and what `resize_` adds, while it is entered.

    Allocations inside of a kernel are not seen: they are its own.

    Args:
        fill: NaN, or 0.
    """

    def __init__(self, fill: float = math.nan) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fill = fill

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise torch wraps the method below, and imports its compiler (seconds) at the first operator.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator, and fill what it leaves unwritten."""
        if DTensor in types:
            return NotImplemented  # it comes back as operators on local tensors
        name = str(func._schema.name).partition("::")[2]
        held = args[0].untyped_storage().nbytes() if name == "resize_" else 0
        result = func(*args, **(kwargs or {}))
        if name in EMPTY_OPERATORS:
            for tensor in tree_leaves(result):
                if isinstance(tensor, Tensor):
                    _fill_in(tensor, self._fill)
        elif name == "resize_":
            _fill_behind(args[0], held, self._fill)
        return result


def _fill_in(tensor: Tensor, fill: float) -> None:
    """Fill a tensor in place; other modes don't see it."""
    if tensor.device.type == "meta":
        return
    with _disable_current_modes(), torch.no_grad():
        if tensor.is_quantized:
            return
        if fill == 0.0:
            tensor.zero_()
        elif tensor.is_floating_point() or tensor.is_complex():
            tensor.fill_(fill)
        elif tensor.dtype == torch.bool:
            tensor.fill_(True)
        else:
            tensor.fill_(torch.iinfo(tensor.dtype).max)


def _fill_behind(tensor: Tensor, held_bytes: int, fill: float) -> None:
    """Fill what a tensor's storage has beyond its first bytes."""
    with _disable_current_modes():
        first = -(-held_bytes // tensor.element_size())
        count = tensor.untyped_storage().nbytes() // tensor.element_size()
        if count > first:
            _fill_in(torch.as_strided(tensor, (count - first,), (1,), first), fill)
