"""The settings in which a healthy port must be aligned: all, and a selection that holds every pair."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from itertools import combinations, product
from typing import Any, TypeVar

from tests.families import FAMILIES
from tests.models import EXPERTS, KERNELS, TRAINED, Setup

__all__ = ["each_value", "fields_of", "healthy_grid", "pairs", "pairwise"]

Item = TypeVar("Item")


def healthy_grid(family: str, *, seed: int = 0) -> list[Setup]:
    """Return every combination of dtype, kernels, ranks, batch and padding that a family can have."""
    known = FAMILIES.get(family)
    ranks = (1, 2) if family in TRAINED or (known is not None and known.is_sharded) else (1,)
    paddings = (False, True) if known is None or known.is_padded else (False,)
    return [
        Setup(
            family=family,
            dtype=dtype,
            ref_kernel=ref_kernel,
            cand_kernel=cand_kernel,
            ref_experts=ref_experts,
            cand_experts=cand_experts,
            tp=tp,
            batch=batch,
            padding=padding,
            seed=seed,
            cache=True,
        )
        for dtype, ref_kernel, cand_kernel, ref_experts, cand_experts, tp, batch, padding in product(
            ("bfloat16", "float16", "float32"),
            KERNELS[family],
            KERNELS[family],
            EXPERTS[family],
            EXPERTS[family],
            ranks,
            (1, 4),
            paddings,
        )
    ]


def pairs(values: Iterable[tuple[str, Any]]) -> set[tuple[tuple[str, Any], tuple[str, Any]]]:
    """Return the pairs of values, each value with its name."""
    return set(combinations(values, 2))


def fields_of(record: Any) -> list[tuple[str, Any]]:
    """Return the values of a record's fields, with their names."""
    return [(field.name, getattr(record, field.name)) for field in fields(record)]


def each_value(
    items: Sequence[Item], values: Callable[[Item], Iterable[tuple[str, Any]]] = fields_of
) -> list[Item]:
    """Select items that together hold every value that some item holds; see `pairwise`."""
    return _covering([(item, set(values(item))) for item in items])


def pairwise(
    items: Sequence[Item], values: Callable[[Item], Iterable[tuple[str, Any]]] = fields_of
) -> list[Item]:
    """Select items that together hold every pair of values that some item holds.

    Args:
        items: records.
        values: named values of an item; by default its fields.
    """
    return _covering([(item, pairs(values(item))) for item in items])


def _covering(held: Sequence[tuple[Item, set[Any]]]) -> list[Item]:
    """Select items that together hold all that any of them holds.

    Greedy: each time the item with the most that is still missing, and the first of several such, so that the
    selection is the same on every machine.
    """
    missing = set().union(*(things for _, things in held))
    selected = []
    while missing:
        best, things = max(held, key=lambda entry: len(entry[1] & missing))
        selected.append(best)
        missing -= things
    return selected
