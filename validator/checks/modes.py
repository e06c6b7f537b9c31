"""How code under an arithmetic gets there: torch's modes for functions and for operators."""

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from validator.checks.functions import REWRITTEN

__all__ = ["Computes", "Functions", "Operators"]

STRICT_FUNCTIONS = frozenset(
    (
        torch.conv1d,
        torch.conv2d,
        torch.conv3d,
        torch.conv_transpose1d,
        torch.conv_transpose2d,
        torch.conv_transpose3d,
    )
)
"""Functions that compare the dtypes of input and parameters themselves."""

DTYPE_READERS = frozenset(
    (
        torch.Tensor.bfloat16,
        torch.Tensor.data.__get__,  # type: ignore[attr-defined]
        torch.Tensor.double,
        torch.Tensor.dtype.__get__,  # type: ignore[attr-defined]
        torch.Tensor.float,
        torch.Tensor.half,
        torch.Tensor.to,
        torch.Tensor.type_as,
    )
)
"""Functions whose result depends on a tensor's dtype by itself: of a parameter it is the candidate's."""


class Computes(Protocol):
    """What the modes hand over to."""

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute one aten operator."""

    def attention(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Compute `torch.nn.functional.scaled_dot_product_attention` as one operator."""

    def shadow_outside(self, value: Any) -> Any:
        """Return a plain floating tensor as a shadow, for a function that itself compares dtypes."""


class Operators(TorchDispatchMode):
    """Lets every aten operator be computed by the arithmetic.

    Args:
        arithmetic: computes it.
    """

    def __init__(self, arithmetic: Computes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._arithmetic = arithmetic

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._arithmetic.run(func, args, kwargs or {})


class Functions(TorchFunctionMode):
    """Functions that are one operator on a device, whatever torch decomposes them into here.

    Args:
        arithmetic: computes them.
    """

    def __init__(self, arithmetic: Computes) -> None:
        super().__init__()
        self._arithmetic = arithmetic

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            return self._arithmetic.attention(args, kwargs or {})
        if func in STRICT_FUNCTIONS or func in DTYPE_READERS:
            args = tuple(self._arithmetic.shadow_outside(x) for x in args)
            kwargs = {name: self._arithmetic.shadow_outside(x) for name, x in (kwargs or {}).items()}
        return REWRITTEN.get(func, func)(*args, **(kwargs or {}))
