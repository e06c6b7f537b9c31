"""The settings in which a healthy port must be aligned: all, and a selection that holds every pair."""

from collections.abc import Sequence
from dataclasses import fields
from itertools import combinations, product
from typing import Any

from tests.models import DENSE, KERNELS, Setup

__all__ = ["healthy_grid", "pairs", "pairwise"]


def healthy_grid(*, seed: int = 0) -> list[Setup]:
    """Return every combination of family, dtype, kernels, ranks, batch and padding."""
    return [
        Setup(
            family=family,
            dtype=dtype,
            ref_kernel=ref_kernel,
            cand_kernel=cand_kernel,
            tp=tp,
            batch=batch,
            padding=padding,
            seed=seed,
            cache=True,
        )
        for family in DENSE
        for dtype, ref_kernel, cand_kernel, tp, batch, padding in product(
            ("bfloat16", "float16", "float32"),
            KERNELS[family],
            KERNELS[family],
            (1, 2),
            (1, 4),
            (False, True),
        )
    ]


def pairwise(setups: Sequence[Setup]) -> list[Setup]:
    """Select setups that together hold every pair of values that some setup holds.

    Greedy: each time the setup with the most pairs that are still missing, and the first of several such, so
    that the selection is the same on every machine.
    """
    of_setup = {setup: pairs(setup) for setup in setups}
    missing = set().union(*of_setup.values())
    selected = []
    while missing:
        best = max(of_setup, key=lambda setup: len(of_setup[setup] & missing))
        selected.append(best)
        missing -= of_setup[best]
    return selected


def pairs(setup: Setup) -> set[tuple[tuple[str, Any], tuple[str, Any]]]:
    """Return the pairs of a setup's values, each value with its field's name."""
    values = [(field.name, getattr(setup, field.name)) for field in fields(setup)]
    return set(combinations(values, 2))
