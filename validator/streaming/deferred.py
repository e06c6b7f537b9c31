"""A parameter whose values are read whenever an operator meets it, and dropped after that.

It is an ordinary leaf of its module: it has a shape, a dtype and a device, it can be tied, and it stays the
same object. So any code may use it: a parent that reads a child's weight, a view of it, a check. Only what
computes with its values reads them.

Shape legend: * = the parameter's shape.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils._pytree import tree_map_only

__all__ = ["DeferredParameter"]


class DeferredParameter(Tensor):
    """A parameter of a model that is streamed.

    Args:
        read: returns the values, `[*]` of the dtype, on the CPU. It is called anew for each use.
        shape: of the values.
        dtype: of the values.

    What an operator makes of it is a plain tensor. It can't be written to, and it takes no gradient.
    """

    read: Callable[[], Tensor]
    _is_param = True  # what `isinstance(x, nn.Parameter)` asks of a subclass of Tensor

    @staticmethod
    def __new__(  # noqa: D102 - the class says what it takes
        cls, read: Callable[[], Tensor], *, shape: torch.Size, dtype: torch.dtype
    ) -> "DeferredParameter":
        made: DeferredParameter = Tensor._make_wrapper_subclass(
            cls, shape, dtype=dtype, device=torch.device("cpu"), requires_grad=False
        )
        made.read = read
        return made

    @property
    def data(self) -> Tensor:  # type: ignore[override]
        """The values, read now: `[*]`."""
        return self.read()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"DeferredParameter(shape={list(self.shape)}, dtype={self.dtype})"

    def __deepcopy__(self, memo: Any) -> "DeferredParameter":
        return DeferredParameter(self.read, shape=self.shape, dtype=self.dtype)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        # Operators run on plain tensors, as those of any other model do. A mode that looks at single
        # operators must see the parameter itself, by which it knows its name.
        if _is_known(func) or _get_current_dispatch_mode() is not None:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        args, kwargs = _values((args, dict(kwargs or {})))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        args, kwargs = _values((args, dict(kwargs or {})))
        return func(*args, **kwargs)


_METHODS = frozenset(
    (
        Tensor.dim,
        Tensor.element_size,
        Tensor.is_complex,
        Tensor.is_contiguous,
        Tensor.is_floating_point,
        Tensor.ndimension,
        Tensor.numel,
        Tensor.size,
        Tensor.stride,
    )
)
"""What is known of a parameter without its values; so are its attributes, but for views of it."""

_VIEWS = frozenset(getattr(Tensor, name).__get__ for name in ("H", "T", "imag", "mH", "mT", "real"))


def _is_known(func: Any) -> bool:
    return func in _METHODS or (getattr(func, "__name__", "") == "__get__" and func not in _VIEWS)


def _values(arguments: Any) -> Any:
    return tree_map_only(DeferredParameter, lambda parameter: parameter.read(), arguments)
