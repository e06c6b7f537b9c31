"""Pages of several runs, of one capture and of two: what they show, and that they ask for nothing."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import validator
from tests.browser.conftest import Opened
from tests.report.conftest import RUN, finding, judgements
from validator import cli
from validator.checks.findings import Outcome, Verdict
from validator.digits import number, ratio
from validator.report.result import Result

HOSTILE = "<img src=x onerror=alert(1)>\"'&\u202e🦙{{ 7 * 7 }}"
SHOWN = HOSTILE.replace("\u202e", "\\u202e")
LONG = f"{HOSTILE}{'x' * 300}"

Open = Callable[..., Opened]


def page_of(folder: Path, *words: object) -> tuple[Path, Any]:
    """Return the page that a command wrote, and its JSON."""
    files = folder / "page.html", folder / "page.json"
    result = CliRunner().invoke(cli.app, [*map(str, words), "--html", str(files[0]), "--json", str(files[1])])
    assert result.exit_code in (0, 1, 3), result.output
    return files[0], json.loads(files[1].read_text())


def captured(path: Path, factor: float = 1.0) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module(LONG, nn.Linear(8, 8))
    model.add_module("head", nn.Linear(8, 4))
    with torch.no_grad():
        model.head.weight.mul_(factor)
    with validator.capture(model, path):
        model(torch.randn(2, 8))
    return path


def assert_is_quiet(opened: Opened, path: Path, width: int) -> None:
    """See that a page ran nothing of what is in names, asked for nothing, and fits."""
    assert opened.page.locator("img").count() == 0
    assert "\u202e" not in opened.page.content()
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.complaints == []
    assert opened.requests == [path.as_uri()]


def rows_of(opened: Opened, name: str) -> list[list[str]]:
    """Return the cells of a table by the name of the part that it is in."""
    table = opened.page.get_by_role("region", name=name).locator("tbody tr")
    rows: list[list[str]] = table.evaluate_all(
        "rows => rows.map(row => [...row.cells].map(c => c.textContent))"
    )
    return rows


def titles_of(opened: Opened) -> Sequence[str]:
    found: list[str] = opened.page.locator("h2, summary").all_inner_texts()
    return found


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Results of a run with a hostile name, and of one that diverges in a file with a hostile name."""
    edges = judgements()
    named = (replace(edges[1], module=LONG), *edges[2:])
    healthy = Outcome(verdict=Verdict.ALIGNED, findings=(), judgements=named, run=RUN)
    faulty = Outcome(verdict=Verdict.DIVERGENT, findings=(finding(),), judgements=named, run=RUN)
    files = [tmp_path / "healthy.json", tmp_path / f"{HOSTILE}.json"]
    for file, outcome in zip(files, (healthy, faulty), strict=True):
        Result(outcome).write_json(file)
    return files


@pytest.mark.parametrize(("width", "color_scheme"), [(1400, "light"), (375, "dark")])
def test_runs_side_by_side_are_a_page_with_their_plot(
    width: int, color_scheme: str, open_page: Open, runs: list[Path], tmp_path: Path
) -> None:
    path, document = page_of(tmp_path, "report", *runs)
    opened = open_page(path, width=width, color_scheme=color_scheme)
    shown = opened.plot("#plot-0")
    assert opened.page.locator("#plot-0 .scatterlayer .trace").count() == 3  # of each run, and of its finding
    assert [len(trace["x"]) for trace in shown["data"]] == [11, 11, 1]
    assert opened.page.locator("h1").inner_text() == f"2 runs: aligned (healthy), then divergent ({SHOWN})"
    assert rows_of(opened, "2 runs")[1][:3] == [SHOWN, "divergent", "1"]
    assert titles_of(opened)[:2] == ["from run to run", "findings, error over the band"]
    (change,) = rows_of(opened, "from run to run")
    assert change[0] == f"healthy to {SHOWN}"
    (row,) = rows_of(opened, "findings, error over the band")
    (found,) = document["findings"]
    assert row[1:] == [ratio(found["max_over_band"][0]), f"{ratio(found['max_over_band'][1])} divergent"]
    opened.page.locator("details.values summary").click()
    opened.page.locator("details.values table").wait_for()  # made by an event that comes after the click
    values = opened.page.locator("details.values tbody tr")
    assert values.count() == 11
    assert opened.page.locator("details.values thead th").all_inner_texts()[1:] == ["healthy", SHOWN]
    (shown,) = values.filter(has_text=row[0]).all()
    for said, error in zip(shown.locator("td").all_inner_texts(), found["max_over_band"], strict=True):
        assert said.startswith(number(error))
    assert_is_quiet(opened, path, width)


def test_the_theme_of_a_page_of_runs_is_switched_and_its_plot_with_it(
    open_page: Open, runs: list[Path], tmp_path: Path
) -> None:
    opened = open_page(page_of(tmp_path, "report", *runs)[0], color_scheme="dark")
    dark = opened.plot("#plot-0")["layout"]["font"]["color"]
    opened.page.click("#theme")
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert opened.plot("#plot-0")["layout"]["font"]["color"] != dark
    assert opened.complaints == []


@pytest.mark.parametrize(("width", "color_scheme"), [(1400, "dark"), (375, "light")])
def test_a_capture_is_a_page(width: int, color_scheme: str, open_page: Open, tmp_path: Path) -> None:
    path, document = page_of(tmp_path, "report", captured(tmp_path / "run.h5"))
    opened = open_page(path, width=width, color_scheme=color_scheme, until="main")
    tensors = document["tensors"]
    assert opened.page.locator("h1").inner_text().startswith(f"all numbers: {len(tensors)} tensors of ")
    assert titles_of(opened) == ["layers", "how it was captured"]
    rows = {name: cells for name, *cells in rows_of(opened, "layers")}
    assert set(rows) == {f"{SHOWN}{'x' * 300}", "head"}
    (head,) = (t for t in tensors if t["module"] == "head" and t["side"] == "output")
    assert rows["head"][:5] == ["float32", *(number(head[name]) for name in ("mean", "rms", "min", "max"))]
    assert_is_quiet(opened, path, width)


@pytest.mark.parametrize(("width", "color_scheme"), [(1400, "light"), (375, "dark")])
def test_two_captures_compared_are_a_page(
    width: int, color_scheme: str, open_page: Open, tmp_path: Path
) -> None:
    pair = captured(tmp_path / "a.h5"), captured(tmp_path / "b.h5", factor=1.5)
    path, document = page_of(tmp_path, "compare", *pair)
    opened = open_page(path, width=width, color_scheme=color_scheme, until="main")
    differing = [one for one in document["pairs"] if one["metrics"]["mismatched"]]
    assert opened.page.locator("h1").inner_text().startswith(f"inconclusive: {len(differing)} of ")
    rows = rows_of(opened, "inconclusive")
    assert len(rows) == len(differing) >= 2
    (weight,) = (one["metrics"] for one in differing if one["side"] == "parameter")
    assert ["head", "parameter weight", number(weight["rel_l2"]), number(weight["max_abs"])] in [
        row[:4] for row in rows
    ]
    assert opened.page.get_by_role("region", name="Remarks").count() == 1
    assert_is_quiet(opened, path, width)


def test_a_table_that_is_wider_than_the_page_is_scrolled_by_keyboard(open_page: Open, tmp_path: Path) -> None:
    path, _ = page_of(tmp_path, "report", captured(tmp_path / "run.h5"))
    page = open_page(path, width=375, until="main").page
    table = page.get_by_role("region", name="layers")
    table.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.activeElement.scrollLeft > 0")
