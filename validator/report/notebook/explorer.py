"""An interactive view of a result: from its layers to an edge, and to single elements.

Where there are no widgets (no kernel, no ipywidgets) it shows what a result shows of itself.
"""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from validator.checks.findings import Outcome
from validator.checks.judged_values import JudgedValues
from validator.report.digest import digest
from validator.report.notebook.cell import to_html
from validator.report.screen import Screen, plain_text

__all__ = ["Explorer", "explore"]

_NEEDED = ("ipywidgets", "anywidget")
_WITHOUT_KERNEL = "Run this cell to go from layers to edges, and to single elements."


def explore(outcome: Outcome, values: Path | None) -> "Explorer":
    """Return the view.

    Args:
        outcome: of a run, best with profiles.
        values: `judged.h5`, or the folder that holds it; None shows no single elements.

    Raises:
        CaptureError: `values` is no such file.
    """
    file = values / "judged.h5" if values is not None and values.is_dir() else values
    return Explorer(outcome, None if file is None else JudgedValues(file))


class Explorer:
    """The view; a notebook shows it where it is the last value of a cell.

    Attributes:
        widget: an ipywidgets box of the controls and plots, or None where no widget can be made.
    """

    def __init__(self, outcome: Outcome, values: JudgedValues | None) -> None:
        self._screen: Screen = digest(outcome)
        self.widget: Any = None
        if all(find_spec(name) for name in _NEEDED):
            from validator.report.notebook.widgets import explorer_box

            self.widget = explorer_box(outcome, values)

    def __repr__(self) -> str:
        """Return the result as text, for where nothing else can be shown."""
        return plain_text(self._screen)

    def _repr_html_(self) -> str:
        """Return what a reader without a kernel sees."""
        missing = [name for name in _NEEDED if not find_spec(name)]
        hint = f"<p>To explore it: pip install {' '.join(missing)}</p>" if missing else ""
        return to_html(self._screen) + hint

    def _ipython_display_(self) -> None:
        """Show what needs no kernel, and below it the widgets.

        As an output of its own: where widgets have lost their kernel, JupyterLab shows an error in their
        place, and nothing of what else the same output holds.
        """
        from IPython.display import publish_display_data

        publish: Callable[[dict[str, Any]], None] = publish_display_data
        publish({"text/plain": repr(self), "text/html": self._repr_html_()})
        if self.widget is not None and self.widget.comm is not None:  # None once it was closed
            publish({**self.widget._repr_mimebundle_(), "text/plain": _WITHOUT_KERNEL})
