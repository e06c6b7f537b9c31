"""A real JupyterLab in a real browser: what shows itself, and each control of the interactive view.

Names in the port are hostile; the results must show them as text, and nothing in them may run.
"""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.browser.conftest import BUTTONS, Opened, contrasts_of_buttons, watched, without
from validator.checks.judged_values import JudgedValues, StoredEdge
from validator.report.figures.drawing import Figure
from validator.report.notebook.elements import MEASURES, View, elements_figure

START_S = 180

HEAD = "<img src=x onerror=\"ran('module')\">'&lt;`\N{GRINNING FACE}\N{RIGHT-TO-LEFT OVERRIDE}" + "x" * 300
SHOWN_HEAD = HEAD.replace("\N{RIGHT-TO-LEFT OVERRIDE}", r"\u202e")
TARGET = "<img src=x onerror=ran('file')>'\"\N{GRINNING FACE}.py"
KEPT = "<img src=x onerror=ran('folder')>"
FIRST = f"(the model itself), into {SHOWN_HEAD} [input] (wiring)"

PORT = f"""
import torch
from torch import nn

HEAD = {HEAD!r}


class Net(nn.Module):
    wrong = False

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 64)
        self.layers = nn.ModuleList([nn.Linear(64, 128)])
        self.add_module(HEAD, nn.Linear(128, 32, bias=False))

    def forward(self, input_ids):
        hidden = self.layers[0](self.embed(input_ids))
        if self.wrong:
            hidden = hidden.clone()
            hidden[:, :, 40] *= 1.5
        return getattr(self, HEAD)(hidden)


def reference():
    torch.manual_seed(0)
    return Net()


def candidate():
    net = reference().to(torch.bfloat16)
    net.wrong = True
    return net


def inputs():
    return {{"input_ids": torch.arange(64).remainder(32).view(2, 32)}}
"""
CHECK = f"""
import json
from pathlib import Path
import validator
from validator.api import check_target
from validator.report.figures.drawing import edge_label
from validator.report.figures.edge import edge_figures
from validator.report.notebook.plots import OUTCOME_FIGURES

kept = {KEPT!r}
result = check_target({TARGET!r}, keep=Path(kept), profiles=True)
judgements = result.outcome.judgements
edges = [(edge_label(j), {{}} if j.profile is None else edge_figures(j.profile)) for j in judgements]
drawn = {{name: draw(result.outcome) for name, draw in OUTCOME_FIGURES.items()}}
expected = json.dumps({{"edges": edges, "overviews": drawn}})
_ = Path("expected.json").write_text(expected)
"""
CELLS = (
    CHECK,
    "result",
    "result.first_divergence",
    "validator.open_capture(kept + '/candidate')",
    "validator.compare(ref=kept + '/reference.h5', cand=kept + '/candidate')",
    "result.explore(kept)",
)


@dataclass(frozen=True, kw_only=True)
class Lab:
    """A notebook in JupyterLab, all its cells run.

    Attributes:
        opened: the page.
        address: of the server.
        folder: where it lies.
        overviews: what the plots of the run are to draw, by name.
        edges: shown name of each edge, and its plots by name.
        values: those of the judged edges.
    """

    opened: Opened
    address: str
    folder: Path
    overviews: dict[str, Figure]
    edges: list[tuple[str, dict[str, Figure]]]
    values: JudgedValues

    @property
    def page(self) -> Any:
        return self.opened.page

    def select(self, description: str) -> Any:
        """Return a list to choose from."""
        label = self.page.locator(f"label:text-is('{description}')")
        return self.page.locator(".widget-dropdown", has=label).locator("select")

    def options(self, description: str) -> list[str]:
        texts = self.select(description).locator("option").all_text_contents()
        return [text.replace("\xa0", " ") for text in texts]

    def chosen(self, description: str) -> str:
        picked: str = self.select(description).evaluate("list => list.options[list.selectedIndex].text")
        return picked.replace("\xa0", " ")

    def choose_edge(self, name: str) -> None:
        self.select("edge").select_option(index=[name for name, _ in self.edges].index(name))
        self.wait_for_edge(name)

    def wait_for_edge(self, name: str) -> None:
        """Wait until an edge is shown, with all its plots, after which nothing moves on the page."""
        self.page.locator(".widget-html p", has_text=name).first.wait_for()
        assert self.chosen("edge") == name
        self.wait_for_plot(1, next(iter(dict(self.edges)[name].values())))
        self.page.locator(".jupyter-widgets .js-plotly-plot").nth(2).wait_for()

    def wait_for_plot(self, place: int, expected: Figure) -> None:
        """Wait until a plot (the overview, the edge's or its elements) draws what is expected."""
        end = time.monotonic() + START_S
        while not _is_in(expected["data"], drawn := self.drawn(place)):
            assert time.monotonic() < end, f"plot {place} draws {drawn}, not {expected['data']}"
            self.page.wait_for_timeout(50)

    def drawn(self, place: int) -> Any:
        plots = "[...document.querySelectorAll('.jupyter-widgets .js-plotly-plot')]"
        # Numbers come in typed arrays where plotly likes them better.
        return self.page.evaluate(f"n => JSON.parse(JSON.stringify({plots}[n]?.data ?? null))", place)

    def click_at(self, place: int, column: int, row_of: str) -> None:
        """Click a point of a plot, given by its places on the axes: a number and a script's expression."""
        plot = self.page.locator(".jupyter-widgets .js-plotly-plot").nth(place)
        plot.scroll_into_view_if_needed()
        self.page.mouse.move(0, 0)
        plot.locator(".hoverlayer .hovertext").first.wait_for(state="detached")
        x, y = plot.evaluate(
            """(figure, column) => {
              const layout = figure._fullLayout, box = figure.getBoundingClientRect();
              const row = """
            + row_of
            + """;
              return [box.left + layout.xaxis._offset + layout.xaxis.l2p(column),
                      box.top + layout.yaxis._offset + layout.yaxis.l2p(row)];
            }""",
            column,
        )
        self.page.mouse.move(x, y, steps=3)
        plot.locator(".hoverlayer .hovertext").first.wait_for()
        self.page.mouse.click(x, y)


def _is_in(expected: Any, drawn: Any) -> bool:
    """Tell whether all that is expected is there; plotly adds to what it is given."""
    if isinstance(expected, dict):
        return isinstance(drawn, dict) and all(
            _is_in(value, drawn.get(key)) for key, value in expected.items()
        )
    if isinstance(expected, list | tuple):
        same = isinstance(drawn, list) and len(expected) == len(drawn)
        return same and all(_is_in(*pair) for pair in zip(expected, drawn, strict=True))
    return bool(expected == drawn)


@pytest.fixture(scope="module")
def server(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Address of a JupyterLab, and its folder with a port and a notebook."""
    if find_spec("jupyterlab") is None:
        without("JupyterLab is not installed: pip install jupyterlab")
    folder = tmp_path_factory.mktemp("lab")
    (folder / TARGET).write_text(PORT, encoding="utf-8")
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), folder / "look.ipynb")
    settings = folder / ".CONFIG" / "lab" / "user-settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    # Else a question lies over the notebook.
    (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false"}')
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    homes = {f"JUPYTER_{name}_DIR": str(folder / f".{name}") for name in ("CONFIG", "DATA", "RUNTIME")}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}"]
    options = ["--ip=127.0.0.1", "--IdentityProvider.token="]
    process = subprocess.Popen(
        [*command, *options],
        cwd=folder,
        env=os.environ | homes | {"IPYTHONDIR": str(folder / ".ipython")},
        stdout=(folder / "lab.log").open("wb"),
        stderr=subprocess.STDOUT,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{address}/api/status", process, folder / "lab.log")
        yield address, folder
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()  # that it ends in time is not what is tested; its kernels end with it
            process.wait()


def _wait_for(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if server.poll() is not None:
            break
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                json.load(answer)
            return
        except OSError:
            time.sleep(0.5)
    pytest.fail(f"JupyterLab did not start: {log.read_text(errors='replace')[-2000:]}")


@pytest.fixture(scope="module")
def lab(browser: Any, server: tuple[str, Path]) -> Iterator[Lab]:
    address, folder = server
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    context.set_default_timeout(START_S * 1000)
    context.add_init_script("window.ran = (what) => console.error(`${what} ran`)")
    opened = watched(context)
    page = opened.page
    page.goto(f"{address}/lab/tree/look.ipynb?reset")
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    page.wait_for_selector(".jupyter-widgets .js-plotly-plot")
    expected = json.loads((folder / "expected.json").read_text())
    yield Lab(
        opened=opened,
        address=address,
        folder=folder,
        overviews=expected["overviews"],
        edges=[(name.replace(HEAD, SHOWN_HEAD), plots) for name, plots in expected["edges"]],
        values=JudgedValues(folder / KEPT / "judged.h5"),
    )
    context.close()


@pytest.fixture(autouse=True)
def nothing_is_complained_of_and_nobody_else_is_asked(lab: Lab) -> Iterator[None]:
    yield
    talk = ("log: ", "info: ", "debug: ")
    assert [said for said in lab.opened.complaints if not said.startswith(talk)] == []
    # A picture of a name that became an element would be asked for here.
    strangers = [url for url in lab.opened.requests if not url.startswith((lab.address, "blob:", "data:"))]
    assert strangers == []
    assert [url for url in lab.opened.requests if re.search(r"/x$", url)] == []


def elements_of(lab: Lab, view: View, measure: str) -> Figure:
    """Return what the heat map of the first divergence is to draw."""
    return elements_figure(lab.values, first_of(lab), view, measure)


def first_of(lab: Lab) -> StoredEdge:
    (edge,) = (edge for edge in lab.values.edges if edge.into == HEAD)
    return edge


def test_results_show_hostile_names_as_text(lab: Lab) -> None:
    outputs = lab.page.locator(".jp-OutputArea-output")
    for number, start in enumerate(
        (
            f"divergent: first at (the model itself), into {SHOWN_HEAD}",
            f"divergent: (the model itself), into {SHOWN_HEAD}",
            f"capture of 1 rank: {KEPT}/candidate",
            "inconclusive: ",
            f"divergent: first at (the model itself), into {SHOWN_HEAD}",
        )
    ):
        shown = outputs.nth(number).inner_text()
        assert shown.lstrip().startswith(start)
        assert number == 2 or SHOWN_HEAD in shown
        assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in shown
    assert outputs.locator("img, iframe, script").count() == 0
    folded = outputs.first.locator("details").last
    worst = folded.get_by_text("oracle", exact=False).first
    assert not worst.is_visible()
    folded.locator("summary").click()
    assert worst.is_visible()


def test_the_view_opens_at_the_first_divergence_and_any_overview_can_be_chosen(lab: Lab) -> None:
    assert lab.options("edge") == [name for name, _ in lab.edges]
    assert lab.chosen("edge") == FIRST
    assert lab.options("overview") == [name for name, figure in lab.overviews.items() if figure]
    assert {"edges", "layers", "positions"} <= set(lab.options("overview"))
    for name in reversed(lab.options("overview")):
        lab.select("overview").select_option(label=name)
        lab.wait_for_plot(0, lab.overviews[name])
    note = lab.page.locator(".jupyter-widgets .js-plotly-plot").first.locator(".annotation-text")
    assert note.text_content().startswith("first divergence: (the model itself), into <img src=x onerror=")


def test_the_buttons_of_the_plots_can_be_read_and_are_no_stops_of_the_tabulator_key(lab: Lab) -> None:
    plots = lab.page.locator(".jupyter-widgets .js-plotly-plot")
    plots.nth(2).wait_for()
    for plot in plots.all():
        buttons = plot.locator(".modebar-btn")
        assert buttons.evaluate_all("all => all.map(one => one.dataset.title)") == BUTTONS
        assert plot.locator("*").evaluate_all("all => all.filter(one => one.tabIndex >= 0).length") == 0
    assert min(contrasts_of_buttons(lab.page, ".jupyter-widgets .js-plotly-plot")) >= 3


def test_a_click_on_a_point_and_on_a_layer_picks_an_edge(lab: Lab) -> None:
    names = [name for name, _ in lab.edges]
    other = "embed (function)"
    lab.choose_edge(other)
    lab.select("overview").select_option(label="edges")
    lab.wait_for_plot(0, lab.overviews["edges"])
    heights = {
        n: y
        for trace in lab.overviews["edges"]["data"]
        for n, y in zip(trace["customdata"], trace["y"], strict=True)
    }
    row = names.index(FIRST)
    lab.click_at(0, row, f"layout.yaxis.d2l({heights[row]})")
    lab.wait_for_edge(FIRST)
    lab.select("overview").select_option(label="layers")
    lab.wait_for_plot(0, lab.overviews["layers"])
    (heat,) = lab.overviews["layers"]["data"]
    worst = heat["customdata"][0][0]
    lab.click_at(0, 0, "0")
    lab.wait_for_edge(names[worst])
    assert names[worst] != FIRST


def test_any_edge_and_any_of_its_plots_can_be_chosen(lab: Lab) -> None:
    for name in ("embed (function)", FIRST):
        lab.choose_edge(name)
        figures = dict(lab.edges)[name]
        buttons = lab.page.locator(".widget-toggle-buttons button")
        assert buttons.all_inner_texts() == list(figures)
        for plot, figure in reversed(figures.items()):
            buttons.get_by_text(plot, exact=True).click()
            lab.wait_for_plot(1, figure)


def test_any_part_of_the_elements_can_be_read_from_the_file(lab: Lab) -> None:
    lab.choose_edge(FIRST)
    view = View(rows=1, columns=2, start=(0, 0, 0))
    for dim in range(3):  # to the first element, whichever the worst is
        _slider(lab, dim).press("Home")
    for measure in reversed(MEASURES):
        lab.select("elements").select_option(label=measure)
        lab.wait_for_plot(2, elements_of(lab, view, measure))

    def shows(**changes: Any) -> None:
        nonlocal view
        view = replace(view, **changes)
        lab.wait_for_plot(2, elements_of(lab, view, "error / allowed"))

    _slider(lab, 0).press("End")
    shows(start=(1, 0, 0))
    _slider(lab, 2).press("End")
    shows(start=(1, 0, 127))
    _slider(lab, 1).press("End")
    shows(start=(1, 31, 127))
    _slider(lab, 2).press("Home")
    shows(start=(1, 31, 0))
    lab.select("down").select_option(label="batch")
    shows(rows=0)
    lab.select("across").select_option(label="token")
    shows(columns=1)
    lab.select("down").select_option(label="token")
    shows(rows=None)


def _slider(lab: Lab, dim: int) -> Any:
    handle = lab.page.locator(".widget-slider .noUi-handle").nth(dim)
    handle.scroll_into_view_if_needed()
    return handle


def test_a_saved_notebook_whose_kernel_is_gone_shows_the_result(lab: Lab) -> None:
    saved = lab.folder / "saved.ipynb"
    saved.write_text(saved_text(lab), encoding="utf-8")
    other = watched(lab.page.context)  # JupyterLab complains there of the widgets that it can't show
    other.page.goto(f"{lab.address}/lab/tree/saved.ipynb?reset")
    outputs = other.page.locator(".jp-Cell").last.locator(".jp-OutputArea-output")
    outputs.first.get_by_text(f"divergent: first at (the model itself), into {SHOWN_HEAD}").first.wait_for()
    assert not [said for said in other.complaints if said.endswith(" ran")]
    other.page.close()


def test_a_page_that_is_opened_again_while_the_kernel_lives_draws_the_plots(lab: Lab) -> None:
    saved_text(lab)
    other = watched(lab.page.context)
    other.page.goto(f"{lab.address}/lab/tree/look.ipynb?reset")
    other.page.locator(".jupyter-widgets .js-plotly-plot .main-svg").first.wait_for()
    other.page.close()


def saved_text(lab: Lab) -> str:
    """Save the notebook, and return it as soon as it holds the view."""
    path = lab.folder / "look.ipynb"
    lab.page.keyboard.press("Escape")
    lab.page.keyboard.press("Control+s")
    while "widget-view" not in path.read_text(encoding="utf-8"):
        lab.page.wait_for_timeout(100)
    return path.read_text(encoding="utf-8")
