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

BUTTONS = ["Download plot as a PNG", "Zoom", "Pan", "Reset axes"]
"""Those of a plot; plotly has others, such as one that sends the plot to a server of its maker."""


@dataclass(kw_only=True)
class Opened:
    """A page in a browser, and what it did behind the reader's back.

    Attributes:
        page: playwright's.
        complaints: errors and warnings on the console, exceptions, dialogs, and windows that it opened.
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
    page.on("popup", lambda window: made.complaints.append(f"window: {window.url}"))

    def dismiss(dialog: Any) -> None:
        made.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("dialog", dismiss)
    return made


def contrasts_of_buttons(page: Any, plot: str) -> list[float]:
    """Return the contrast of each button of a plot with the ground on which it is seen.

    Source:
        WCAG 2.2, "contrast ratio"; 1.4.11 asks for 3 of what isn't text.
    """
    colours = page.evaluate(
        """plot => {
          const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
          const ground = (one) => {
            const [r, g, b, a = 1] = numbers(getComputedStyle(one).backgroundColor);
            return a === 0 && one.parentElement ? ground(one.parentElement) : [r, g, b, a];
          };
          const buttons = [...document.querySelector(plot).querySelectorAll(".modebar-btn")];
          const ink = (one) => numbers(getComputedStyle(one.querySelector("path")).fill);
          return buttons.map((one) => [ink(one), ground(one)]);
        }""",
        plot,
    )
    return [_contrast(_over(ink, ground), ground) for ink, ground in colours]


def _over(ink: list[float], ground: list[float]) -> list[float]:
    alpha = ink[3] if len(ink) > 3 else 1.0
    return [alpha * above + (1 - alpha) * below for above, below in zip(ink[:3], ground[:3], strict=True)]


def _contrast(first: list[float], second: list[float]) -> float:
    def luminance(colour: list[float]) -> float:
        parts = [part / 255 for part in colour[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


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
