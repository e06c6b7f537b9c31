"""What a page carries in itself: compressed, and in an alphabet that no HTML parser reads anything into."""

import base64
import gzip
import json
from importlib import resources
from typing import Any

from markupsafe import Markup
from plotly.offline import get_plotlyjs

__all__ = ["packed", "packed_data", "packed_plotly", "part"]


def part(name: str) -> str:
    """Return the text of a file beside this one: a template, a style sheet, a script."""
    return resources.files("validator.report.page").joinpath(name).read_text(encoding="utf-8")


def packed(text: str) -> Markup:
    """Return text as base64 of its gzip; the same text always gives the same."""
    return Markup(base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii"))


def packed_data(data: Any) -> Markup:
    """Return plain data, whose numbers are all finite, as packed JSON."""
    return packed(json.dumps(data, separators=(",", ":"), allow_nan=False))


def packed_plotly() -> Markup:
    """Return the packed source of plotly.js, from the installed plotly."""
    return packed(get_plotlyjs())
