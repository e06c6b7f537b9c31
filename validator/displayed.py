"""What shows itself in a notebook, and as text where there is none."""

from typing import Any

__all__ = ["Displayed"]


class Displayed:
    """A record that Jupyter shows as HTML, with a twin in plain text.

    It is drawn by `report`, the last package of the flow, which is imported when something is shown: so the
    records of earlier packages show themselves and know nothing of it.
    """

    __slots__ = ()

    def _repr_html_(self) -> str:
        from validator.report.notebook.screens import html_of

        return html_of(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Return both forms; a frontend takes the one that it can show."""
        from validator.report.notebook.screens import html_of, text_of

        return {"text/plain": text_of(self), "text/html": html_of(self)}
