"""Which cases of a test `make test` runs; `make slow` runs the others."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest

__all__ = ["cases"]

Case = TypeVar("Case")


def cases(
    found: Iterable[Case], *, quick: Callable[[Case], bool], label: Callable[[Case], str] = str
) -> list[Any]:
    """Return cases as arguments of a test, marked slow where another case shows nearly the same.

    Args:
        found: the cases.
        quick: tells which ones `make test` runs.
        label: names a case.
    """
    return [
        pytest.param(case, id=label(case), marks=() if quick(case) else pytest.mark.slow) for case in found
    ]
