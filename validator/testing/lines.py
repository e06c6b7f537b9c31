"""Text as lines of a terminal: wrapped, and free of what a terminal would obey instead of show."""

import textwrap
from collections.abc import Mapping
from typing import Any

from validator.escapes import printable

__all__ = ["WIDTH", "message_text", "wrapped"]

WIDTH = 80


def message_text(message: str, *, module: str | None, rank: int | None, evidence: Mapping[str, Any]) -> str:
    """Return a message with whom it blames and its evidence beneath, in lines of at most 80 columns."""
    rows = {
        **({} if module is None else {"module": module or "(the model itself)"}),
        **({} if rank is None else {"rank": rank}),
        **evidence,
    }
    lines = [line for part in message.splitlines() or [""] for line in wrapped(part)]
    column = max(map(len, rows), default=0)
    for name, value in rows.items():
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        lines += wrapped(shown, head=f"  {name:{column}}  ")
    return "\n".join(lines)


def wrapped(text: str, *, head: str = "") -> list[str]:
    """Return a line's text wrapped under what stands before it; its own indentation is kept."""
    own = text[: len(text) - len(text.lstrip(" "))]
    return textwrap.wrap(
        printable(text.strip()),
        WIDTH,
        initial_indent=printable(head) + own,
        subsequent_indent=" " * len(head) + own + ("" if head else "  "),
        break_on_hyphens=False,
        break_long_words=False,
    ) or [""]
