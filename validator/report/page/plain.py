"""A page around a piece of HTML that has its own styles, such as a notebook's cell, and plots below it."""

import secrets
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from validator.escapes import printable
from validator.report.page.packing import packed_data, packed_plotly, part

__all__ = ["page_around"]

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{{ policy }}">
<title>{{ title }}</title>
<link rel="icon" href="data:,">
<style>
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 1rem auto; max-width: 100rem; padding: 0 1.25rem; }
body { border-color: #8886; } /* which the lines of plots take */
figure { margin: 2rem 0; }
.plot { height: 24rem; }
</style>
</head>
<body>
{{ body }}
{% for caption in figures %}
<figure>
<figcaption>{{ caption }}</figcaption>
<div class="plot" role="img" aria-label="{{ caption }}"></div>
</figure>
{% endfor %}
{% if figures %}
<p id="status" role="status">Drawing …</p>
<noscript><p>The plots need scripts. Everything else on this page can be read without.</p></noscript>
<script type="text/plain" id="packed-plotly">{{ plotly }}</script>
<script type="text/plain" id="packed-data">{{ data }}</script>
<script nonce="{{ nonce }}">
{{ script }}
</script>
{% endif %}
</body>
</html>
"""


_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page_around(title: str, body: str, *, figures: Mapping[str, Any] | None = None) -> str:
    """Return a page that opens from disk.

    Args:
        title: of the page, as text.
        body: HTML that is shown as it is.
        figures: plotly figures of finite numbers, by their captions.
    """
    figures = {printable(caption): figure for caption, figure in (figures or {}).items()}
    nonce = secrets.token_urlsafe(16)
    template = Environment(autoescape=True, keep_trailing_newline=True, trim_blocks=True).from_string(_PAGE)
    return template.render(
        title=printable(title),
        body=Markup(body),
        figures=list(figures),
        policy=Markup(f"{_POLICY} blob:; script-src 'nonce-{nonce}'" if figures else _POLICY),
        nonce=nonce,
        script=Markup("".join(map(part, ("drawing.js", "plain.js")))) if figures else "",
        plotly=packed_plotly() if figures else "",
        data=packed_data(list(figures.values())),
    )
