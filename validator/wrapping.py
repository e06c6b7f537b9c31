"""Change what a module does from outside: in place of its forward, inside of its hooks."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["replaced", "wrap"]


def wrap(module: Any, replacement: Callable[..., Any]) -> None:
    """Replace a module's forward by `replacement(old_forward, *args, **kwargs)`, inside of its hooks."""
    inner = module.forward

    @functools.wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return replacement(inner, *args, **kwargs)

    module.forward = forward


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give an attribute another value inside of the block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
