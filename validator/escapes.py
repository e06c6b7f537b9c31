"""Text without what a terminal would obey instead of show."""

__all__ = ["printable"]


def printable(text: str) -> str:
    """Return `text` with control characters, such as escape codes, spelled out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
