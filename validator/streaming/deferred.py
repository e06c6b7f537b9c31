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
from torch.utils._pytree import tree_leaves, tree_map_only

from validator.errors import UsageError

__all__ = ["DeferredParameter"]


class DeferredParameter(Tensor):
    """A parameter of a model that is streamed.

    Args:
        read: returns the values, `[*]` of the dtype, on the CPU. It is called anew for each use.
        shape: of the values.
        dtype: of the values.
        read_parts: returns the tensors that the values are made of in a checkpoint, by their names in the
            module; nothing where they are not known.

    What an operator makes of it is a plain tensor. Writing to it is an error, and it takes no gradient.
    """

    read: Callable[[], Tensor]
    read_parts: Callable[[], Mapping[str, Tensor]]
    _is_param = True  # what `isinstance(x, nn.Parameter)` asks of a subclass of Tensor

    @staticmethod
    def __new__(  # noqa: D102 - the class says what it takes
        cls,
        read: Callable[[], Tensor],
        *,
        shape: torch.Size,
        dtype: torch.dtype,
        read_parts: Callable[[], Mapping[str, Tensor]] = dict,
    ) -> "DeferredParameter":
        made: DeferredParameter = Tensor._make_wrapper_subclass(
            cls, shape, dtype=dtype, device=torch.device("cpu"), requires_grad=False
        )
        made.read, made.read_parts = read, read_parts
        return made

    @property
    def data(self) -> "DeferredParameter":
        """The parameter itself: what is written to it would be lost as well."""
        return self

    @data.setter
    def data(self, values: Tensor) -> None:
        raise _refused("data")

    def __repr__(self) -> str:  # type: ignore[override]
        return f"DeferredParameter(shape={list(self.shape)}, dtype={self.dtype})"

    def __deepcopy__(self, memo: Any) -> "DeferredParameter":
        return DeferredParameter(self.read, shape=self.shape, dtype=self.dtype, read_parts=self.read_parts)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        # Operators run on plain tensors, as those of any other model do. A mode that looks at single
        # operators must see the parameter itself, by which it knows its name.
        if _is_known(func) or _get_current_dispatch_mode() is not None:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in _WRITING or (name.endswith("_") and not name.endswith("__") and name != "requires_grad_"):
            _require_no_deferred(name, args[:1] or list((kwargs or {}).values())[:1])
        _require_no_deferred(name, (kwargs or {}).get("out"))
        args, kwargs = _values((args, dict(kwargs or {})))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = args[place] if place < len(args) else (kwargs or {}).get(argument.name)
                _require_no_deferred(func._schema.name, given)
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


_WRITING = frozenset(
    ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__", "__iand__", "__ior__")
)


def _require_no_deferred(name: str, written: Any) -> None:
    if any(isinstance(leaf, DeferredParameter) for leaf in tree_leaves(written)):
        raise _refused(name)


def _refused(name: str) -> UsageError:
    return UsageError(
        f"a parameter of a streamed model can't be written to ({name}): its values stay in the checkpoint, "
        "and what is written would be lost. Load the model with from_pretrained to change it"
    )


def _values(arguments: Any) -> Any:
    return tree_map_only(DeferredParameter, lambda parameter: parameter.read(), arguments)
