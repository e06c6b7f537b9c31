"""How long jobs tell what they do; `validator.terminal` shows it."""

from collections.abc import Callable

__all__ = ["Progress"]

Progress = Callable[[str, int, int], None]
"""Told the stage, and how much of how much is done."""
