"""Pictures of plotly figures, for viewers of notebooks that show pictures alone, such as GitHub's.

They are drawn by plotly's own library in a Chromium without network.
"""

import shutil
from collections.abc import Iterable
from typing import Any

from playwright.sync_api import sync_playwright
from plotly.offline import get_plotlyjs

__all__ = ["PLOTLY", "add_pictures"]

PLOTLY = "application/vnd.plotly.v1+json"
_PNG = "image/png"
_SIZE = {"width": 900, "height": 420, "scale": 1.5}


def add_pictures(shown: Iterable[Any]) -> None:
    """Put a PNG beside each figure.

    Args:
        shown: outputs of a notebook, by MIME type; they are changed in place.

    Raises:
        FileNotFoundError: there is no Chromium.
    """
    figures = [data for data in shown if PLOTLY in data]
    if not figures:
        return
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_chromium(), args=["--no-sandbox"])
        page = browser.new_page()
        page.add_script_tag(content=get_plotlyjs())
        for data in figures:
            url = page.evaluate(
                "([{data, layout}, size]) => Plotly.toImage({data, layout}, {format: 'png', ...size})",
                [data[PLOTLY], _SIZE],
            )
            data[_PNG] = url.partition(",")[2]
        browser.close()


def _chromium() -> str:
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        raise FileNotFoundError("no Chromium: install the package chromium of your distribution")
    return found
