"""Refusals of records that describe arithmetic: `Recipe` and `Emulation` name and limit fields alike."""

from collections.abc import Sequence
from typing import Any, NoReturn

from validator.errors import UsageError
from validator.numerics.formats import FORMATS

__all__ = ["FLOATS", "demand_accumulator_bits", "demand_at_least_one", "demand_one_of", "refuse"]

FLOATS = ("float64", "float32", "float16", "bfloat16")
"""Formats that arithmetic is described with."""


def refuse(record: Any, name: str, value: object, why: str) -> NoReturn:
    """Refuse a field of a record.

    Raises:
        UsageError: always, with the field, its value and the reason.
    """
    shown = value if value is None or isinstance(value, bool | int) else repr(str(value))
    raise UsageError(f"{type(record).__name__}({name}={shown}): {why}")


def demand_one_of(record: Any, name: str, legal: Sequence[str | None]) -> None:
    """Refuse a choice that is none of the legal ones."""
    value = getattr(record, name)
    if value not in legal:
        refuse(record, name, value, "legal are " + ", ".join("None" if x is None else str(x) for x in legal))


def demand_at_least_one(record: Any, *names: str) -> None:
    """Refuse a count below 1; None is no count."""
    for name in names:
        value = getattr(record, name)
        if value is not None and value < 1:
            refuse(record, name, value, "it must be 1 or more")


def demand_accumulator_bits(record: Any) -> None:
    """Refuse an accumulator that keeps more bits than its format has."""
    if record.accumulator_bits is None:
        return
    most = FORMATS[record.accumulate].precision - 1
    if not 1 <= record.accumulator_bits <= most:
        refuse(record, "accumulator_bits", record.accumulator_bits, f"{record.accumulate} keeps 1 to {most}")
