"""What is read of quantised weights: their values, or half the distance to the next code, by either scale."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor

from validator.capturing.records import TensorRef
from validator.quantised.formats import dequantised, format_name, half_steps

__all__ = ["Steps", "read_values", "reading_other_scales", "reading_steps"]


@dataclass(slots=True)
class Steps:
    """What is read while `reading_steps`.

    Attributes:
        formats: of the codes of the quantised weights that were read.
        is_half: whether half the distance to the next code is read in place of the value.
    """

    formats: list[str] = field(default_factory=list)
    is_half: bool = True


_STEPS: ContextVar[Steps | None] = ContextVar("steps", default=None)
_OTHER_SCALES: ContextVar[bool] = ContextVar("other_scales", default=False)


@contextmanager
def reading_steps() -> Iterator[Steps]:
    """Read other numbers of quantised weights than the values that enter products, all in float32.

    They are read wherever values would be, through whatever puts them together. What is no quantised weight
    is read as ever, and adds to no `formats`.
    """
    steps = Steps()
    token = _STEPS.set(steps)
    try:
        yield steps
    finally:
        _STEPS.reset(token)


@contextmanager
def reading_other_scales() -> Iterator[None]:
    """Read codes with two scales beside them by the second one."""
    token = _OTHER_SCALES.set(True)
    try:
        yield
    finally:
        _OTHER_SCALES.reset(token)


def read_values(
    kind: str, refs: Mapping[str, TensorRef], shape: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    """Read a quantised weight as the contexts of this module say, by default its values.

    Args:
        kind: of a `QuantisedWeight`.
        refs: its parts by what they are.
        shape: what stands for the part `"shape"`; empty where there is none.
        dtype: of the values.
    """
    parts = {part: ref.read() for part, ref in refs.items()}
    if shape:
        parts["shape"] = torch.tensor(shape)
    other = parts.pop("other_scale", None)
    if other is not None and _OTHER_SCALES.get():
        parts["scale"] = other
    steps = _STEPS.get()
    if steps is None:
        return dequantised(kind, parts).to(dtype)
    steps.formats.append(format_name(kind, parts))
    return half_steps(kind, parts) if steps.is_half else dequantised(kind, parts)
