"""The buttons of plots: what scripts on a page and in a notebook have in common."""

from importlib import resources

__all__ = ["toolbar_script"]


def toolbar_script() -> str:
    """Return the source of what both scripts begin with."""
    return resources.files("validator.report.figures").joinpath("toolbar.js").read_text(encoding="utf-8")
