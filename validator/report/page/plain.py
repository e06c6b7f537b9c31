"""A page around a piece of HTML that has its own styles, such as a notebook's cell."""

from jinja2 import Environment
from markupsafe import Markup

from validator.escapes import printable

__all__ = ["page_around"]

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{{ title }}</title>
<link rel="icon" href="data:,">
<style>
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 1rem auto; max-width: 100rem; padding: 0 1.25rem; }
</style>
</head>
<body>
{{ body }}
</body>
</html>
"""


def page_around(title: str, body: str) -> str:
    """Return a page that opens from disk.

    Args:
        title: of the page, as text.
        body: HTML that is shown as it is.
    """
    template = Environment(autoescape=True, keep_trailing_newline=True).from_string(_PAGE)
    return template.render(title=printable(title), body=Markup(body))
