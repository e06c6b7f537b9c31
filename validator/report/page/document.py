"""A page: one file that opens from disk, asks nothing of any network, and shows every name as text."""

import secrets
from functools import cache
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from validator import digits
from validator.report import phrases
from validator.report.figures.drawing import VERDICTS
from validator.report.figures.toolbar import toolbar_script
from validator.report.page.packing import packed_data, packed_plotly, part

__all__ = ["render"]

_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline'; img-src data:"


def render(template: str, *, title: str, script: str, data: Any, **values: Any) -> str:
    """Return a page.

    Args:
        template: name of a file beside this one that extends `base.html.jinja`.
        title: of the window.
        script: name of a file beside this one, which is run after `drawing.js` and `toolbar.js`.
        data: what the script is handed, with finite numbers alone; None on a page without plots, on which
            nothing runs.
        values: what the template shows. A text is shown as text, and what turns its direction spelled out.
    """
    # What is not ours has no such number, and the page lets no such thing run.
    nonce = secrets.token_urlsafe(16)
    is_drawn = data is not None
    return (
        _environment()
        .get_template(template)
        .render(
            title=title,
            policy=Markup(f"{_POLICY} blob:; script-src 'nonce-{nonce}'" if is_drawn else _POLICY),
            nonce=nonce,
            style=Markup(part("style.css")),
            verdicts={verdict: colour for verdict, (colour, _) in VERDICTS.items()},
            script=Markup(part("drawing.js") + toolbar_script() + part(script)) if is_drawn else None,
            plotly=packed_plotly() if is_drawn else None,
            data=packed_data(data) if is_drawn else None,
            **values,
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(part),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_shown,
    )
    environment.filters["number"] = digits.number
    return environment


def _shown(value: Any) -> Any:
    """Spell out control characters, those that turn the direction of text among them."""
    return phrases.shown(value) if isinstance(value, str) and not isinstance(value, Markup) else value
