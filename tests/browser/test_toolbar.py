"""The buttons of the plots of a page: which there are, what each does, and that all of them can be read."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.browser.conftest import BUTTONS, Opened, contrasts_of_buttons
from tests.report.conftest import DISTRIBUTION, RUN, judgements
from tests.report.figures.test_edge import profile
from tests.report.figures.test_positions import OUTPUT
from validator.checks.findings import Outcome, Verdict
from validator.report.result import Result

Open = Callable[..., Opened]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A page with each kind of plot."""
    profiled = tuple(replace(judgement, profile=profile()) for judgement in judgements())
    outcome = Outcome(
        verdict=Verdict.ALIGNED,
        findings=(),
        judgements=profiled,
        distribution=DISTRIBUTION,
        output=OUTPUT,
        run=RUN,
    )
    Result(outcome).write_html(tmp_path / "page.html")
    return tmp_path / "page.html"


def plots(opened: Opened) -> list[str]:
    """Have all plots of a page drawn, and return where they are."""
    opened.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    opened.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    opened.page.wait_for_function(
        "() => [...document.querySelectorAll('.plot')].every(one => one.querySelector('.modebar-btn'))"
    )
    count: int = opened.page.locator(".plot").evaluate_all(
        "all => { all.forEach((one, n) => { one.dataset.n = n; }); return all.length; }"
    )
    return [f'[data-n="{n}"]' for n in range(count)]


@pytest.mark.parametrize(("width", "color_scheme"), [(1400, "light"), (375, "dark")])
def test_each_button_of_each_plot_does_what_it_says_here_and_nowhere_else(
    width: int, color_scheme: str, open_page: Open, path: Path
) -> None:
    opened = open_page(path, width=width, color_scheme=color_scheme)
    found = plots(opened)
    assert len(found) == 9
    for place in found:
        buttons = opened.page.locator(f"{place} .modebar-btn")
        assert buttons.evaluate_all("all => all.map(one => one.dataset.title)") == BUTTONS
        opened.page.locator(place).hover()
        for button in buttons.all()[1:]:
            button.click()
    with opened.page.expect_download() as download:
        opened.page.locator(f"{found[-1]} .modebar-btn").first.click()
    assert download.value.suggested_filename.endswith(".png")
    assert opened.complaints == []
    assert [url for url in opened.requests if not url.startswith(("data:", "blob:"))] == [path.as_uri()]


def test_the_tabulator_key_passes_over_the_buttons(open_page: Open, path: Path) -> None:
    opened = open_page(path)
    for place in plots(opened):
        inside = opened.page.locator(f"{place} *")
        assert inside.evaluate_all("all => all.filter(one => one.tabIndex >= 0).length") == 0


@pytest.mark.parametrize("color_scheme", ["light", "dark"])
def test_the_buttons_can_be_read_in_both_themes(color_scheme: str, open_page: Open, path: Path) -> None:
    opened = open_page(path, color_scheme=color_scheme)
    for _ in range(2):
        for place in plots(opened):
            assert min(contrasts_of_buttons(opened.page, place)) >= 3
        opened.page.click("#theme")


def test_a_picture_of_a_plot_has_the_ground_of_the_page(open_page: Open, path: Path) -> None:
    """On a clear ground the light text of the dark theme could be read nowhere else."""
    opened = open_page(path, color_scheme="dark")
    (place, *_) = plots(opened)
    corner = opened.page.evaluate(
        """async place => {
          const picture = new Image();
          picture.src = await Plotly.toImage(document.querySelector(place));
          await picture.decode();
          const canvas = document.createElement("canvas");
          canvas.getContext("2d").drawImage(picture, 0, 0);
          return [...canvas.getContext("2d").getImageData(0, 0, 1, 1).data];
        }""",
        place,
    )
    paper = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert f"rgb({corner[0]}, {corner[1]}, {corner[2]})" == paper
    assert corner[3] == 255
