"""The tensors that a value holds, and the memory behind tensors.

Shape legend: * = any shape.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor

from validator.capturing.copies import local_part

__all__ = ["sizes_of", "tensors_in"]


def tensors_in(value: Any, *, depth: int) -> Iterator[Tensor]:
    """Yield the tensors `[*]` in containers, and in what functions have closed over.

    Of a tensor that is made of others, a quantised one say, these are yielded.

    Args:
        value: anything.
        depth: how many containers may lie around a tensor.
    """
    if isinstance(value, Tensor):
        parts = value.__tensor_flatten__()[0] if hasattr(value, "__tensor_flatten__") else ()
        for name in parts:
            yield from tensors_in(getattr(value, name), depth=depth)
        if not parts:
            yield value
    elif depth:
        for item in _inside(value):
            yield from tensors_in(item, depth=depth - 1)


def sizes_of(tensors: Sequence[Tensor]) -> dict[int, int]:
    """Return the bytes of each storage behind tensors, by its address: that of several views counts once."""
    found = {}
    for tensor in tensors:
        local = local_part(tensor)
        if local is None or local.device.type == "meta":
            continue
        try:
            storage = local.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        except (RuntimeError, NotImplementedError):  # a wrapper without memory of its own
            continue
    found.pop(0, None)
    return found


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | tuple | set | deque):
        return list(value)
    if isinstance(value, MethodType):
        return [value.__func__]
    if isinstance(value, FunctionType):
        return [_content(cell) for cell in value.__closure__ or ()]
    return []


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None
