"""The summary page of day 0: one file, readable offline, without scripts."""

from importlib import resources
from pathlib import Path

from jinja2 import Environment

from validator.day0.records import Day0

__all__ = ["write_page"]


def write_page(answer: Day0, path: Path) -> None:
    """Write the page; names that a user chose are shown as text."""
    source = resources.files("validator.day0").joinpath("page.html.jinja").read_text(encoding="utf-8")
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(source)
    path.write_text(template.render(answer=answer), encoding="utf-8")
