"""Chromium, driven by playwright; where one of the two is missing, the tests that need it are skipped.

With VALIDATOR_NEEDS_BROWSER set they fail: CI sets it where it has a browser, and so none is left out unseen.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@dataclass(kw_only=True)
class Opened:
    """A page in a browser, and what it did behind the reader's back.

    Attributes:
        page: playwright's.
        complaints: errors and warnings on the console, exceptions, and dialogs.
        requests: what it asked for.
    """

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def plot(self, place: str) -> Any:
        """Return data and layout of a figure that is drawn, scrolled to if need be."""
        self.page.locator(place).scroll_into_view_if_needed()
        self.page.wait_for_selector(f"{place}[data-drawn]")
        # Numbers come in typed arrays where plotly likes them better.
        return self.page.evaluate(
            """place => {
              const figure = document.querySelector(place);
              return JSON.parse(JSON.stringify({data: figure.data, layout: figure.layout}));
            }""",
            place,
        )

    def edge_name(self) -> str:
        """Return the edge that the panel shows."""
        name: str = self.page.locator("#edge-name").inner_text()
        return name


def watched(context: Any) -> Opened:
    """Return an empty page of a context, of which is noted what it does."""
    made = Opened(page=context.new_page())
    page = made.page
    page.on("console", lambda message: made.complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: made.complaints.append(str(error)))
    page.on("request", lambda request: made.requests.append(request.url))

    def dismiss(dialog: Any) -> None:
        made.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("dialog", dismiss)
    return made


def without(what: str) -> NoReturn:
    """Skip a test for which something is not installed; where a browser is demanded, fail."""
    if os.environ.get("VALIDATOR_NEEDS_BROWSER"):
        pytest.fail(f"{what}, and VALIDATOR_NEEDS_BROWSER is set")
    pytest.skip(what)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        without("playwright is not installed: pip install playwright")
    if CHROMIUM is None:
        without("no Chromium: install the package chromium of your distribution")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Any]:
    """Open a file: `open_page(path, width=..., color_scheme=...)`; `until` is what shows that it is ready."""
    contexts = []

    def opened(
        path: Path,
        *,
        width: int = 1400,
        color_scheme: str = "light",
        at: str = "",
        scripts: bool = True,
        until: str = "html[data-ready=true]",
    ) -> Opened:
        context = browser.new_context(
            color_scheme=color_scheme,
            java_script_enabled=scripts,
            viewport={"width": width, "height": 900},
        )
        context.set_default_timeout(120_000)
        contexts.append(context)
        made = watched(context)
        made.page.goto(f"{path.resolve().as_uri()}{at}")
        made.page.wait_for_selector(until, state="attached")
        return made

    yield opened
    for context in contexts:
        context.close()
