"""The interactive view, driven through its widgets; a browser drives it in `tests/browser`."""

import dataclasses
import json
import shutil
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from typing import Any

import h5py
import IPython.display
import ipywidgets
import plotly.graph_objects as go
import pytest
from ipywidgets.widgets import widget as widget_module

from validator.checks.findings import Check, Outcome
from validator.errors import CaptureError
from validator.report.notebook import explorer as module
from validator.report.notebook.explorer import Explorer
from validator.report.notebook.plot_widget import PlotWidget
from validator.report.result import Result


def widgets(root: Any) -> Iterator[Any]:
    yield root
    for child in getattr(root, "children", ()):
        yield from widgets(child)


def control(root: Any, description: str) -> Any:
    (found,) = [w for w in widgets(root) if getattr(w, "description", None) == description]
    return found


def plots(root: Any) -> list[PlotWidget]:
    return [w for w in widgets(root) if isinstance(w, PlotWidget)]


def traces(root: Any, place: int) -> list[dict[str, Any]]:
    """Return what a plot draws: the overview, the picked edge or its elements."""
    drawn: list[dict[str, Any]] = plots(root)[place].figure["data"]
    return drawn


def click(root: Any, customdata: Any) -> None:
    """Tell the overview what a page tells it of a click."""
    plots(root)[0]._handle_custom_msg({"clicked": customdata}, [])


def test_it_opens_at_the_first_divergence(faulty: Result, kept: Path) -> None:
    box = faulty.explore(kept).widget
    edge = control(box, "edge")
    assert edge.options[edge.value] == ("(the model itself), into head [input] (wiring)", edge.value)
    assert {trace["type"] for trace in traces(box, 0)} == {"scatter"}
    assert len(traces(box, 1)) >= 1
    assert [trace["type"] for trace in traces(box, 2)] == ["heatmap"]
    assert control(box, "batch").value == faulty.first_divergence.evidence.worst_index[0]


def test_another_overview_edge_plot_and_measure_are_drawn(faulty: Result, kept: Path) -> None:
    box = faulty.explore(kept).widget
    for name in control(box, "overview").options:
        control(box, "overview").value = name
        assert go.Figure(plots(box)[0].figure) == faulty.figure(name)
    plot = control(box, "plot")
    for name in plot.options:
        plot.value = name
        assert go.Figure(plots(box)[1].figure) == faulty.figure(name)
    before = traces(box, 2)[0]["z"]
    control(box, "elements").value = "oracle"
    assert traces(box, 2)[0]["z"] != before
    control(box, "across").value = control(box, "down").value
    assert [len(row) for row in traces(box, 2)[0]["z"]] == [32]


def test_a_page_is_sent_plotly_once_and_each_figure_whole(faulty: Result, kept: Path) -> None:
    """What is sent after a widget was made may come too late to be drawn."""
    first, second = (faulty.explore(kept).widget for _ in range(2))
    made = [*plots(first), *plots(second)]
    assert len({plot.library.model_id for plot in made}) == 1
    for plot in made:
        state = plot.get_state()
        assert state["figure"]["data"]
        assert len(json.dumps({name: state[name] for name in ("_esm", "figure")})) < 500_000


def test_plots_are_drawn_anew_in_place_and_widgets_of_another_edge_are_closed(
    faulty: Result, kept: Path
) -> None:
    """A kernel and a page keep a widget, with all its data, until it is closed."""
    box = faulty.explore(kept).widget
    before = plots(box)
    control(box, "overview").value = "positions"
    control(box, "elements").value = "oracle"
    assert plots(box) == before
    edge, panel = control(box, "edge"), list(widgets(box.children[-1]))[1:]
    edge.value = 0 if edge.value else 1
    assert all(widget.comm is None for widget in panel)
    assert all(widget.comm is not None for widget in widgets(box))


def test_going_to_and_fro_leaves_nothing_behind(faulty: Result, kept: Path) -> None:
    """Each widget has a layout and most a style, which are widgets themselves."""
    edge = control(faulty.explore(kept).widget, "edge")
    first, second = edge.value, 0 if edge.value else 1
    before = set(widget_module._instances)
    for row in (second, first) * 3:
        edge.value = row
    assert len(widget_module._instances) == len(before)


def test_after_all_widgets_were_closed_a_new_view_can_be_made(
    faulty: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = faulty.explore()
    ipywidgets.Widget.close_all()
    (static,) = displayed(closed, monkeypatch)
    assert "text/html" in static
    (library,) = {plot.library for plot in plots(faulty.explore().widget)}
    assert library.get_state()["source"]
    assert widget_module._instances[library.model_id] is library


def test_a_click_on_a_point_picks_its_edge(faulty: Result) -> None:
    box = faulty.explore().widget
    trace = next(t for t in traces(box, 0) if t["name"].startswith("aligned"))
    click(box, trace["customdata"][1])
    assert control(box, "edge").value == trace["customdata"][1]


def test_a_click_on_a_layer_picks_its_worst_edge(faulty: Result) -> None:
    box = faulty.explore().widget
    control(box, "overview").value = "layers"
    click(box, traces(box, 0)[0]["customdata"][0][0])
    assert control(box, "edge").value == traces(box, 0)[0]["customdata"][0][0]


@pytest.mark.parametrize("customdata", [None, -1, 10_000, "1", [1]])
def test_a_click_on_what_is_no_edge_picks_none(faulty: Result, customdata: Any) -> None:
    box = faulty.explore().widget
    before = control(box, "edge").value
    click(box, customdata)
    assert control(box, "edge").value == before


def test_without_values_no_elements_are_shown(faulty: Result) -> None:
    assert len(plots(faulty.explore().widget)) == 2


def test_a_result_without_profiles_shows_what_it_has(divergent: Outcome) -> None:
    box = Result(divergent).explore().widget
    assert len(plots(box)) == 1
    assert len(control(box, "edge").options) == 12


def test_a_result_of_no_edges_can_be_explored(inconclusive: Outcome) -> None:
    assert Result(dataclasses.replace(inconclusive, judgements=())).explore().widget is not None


def displayed(explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Return the outputs of a cell."""
    made: list[dict[str, str]] = []
    monkeypatch.setattr(IPython.display, "publish_display_data", made.append)
    explorer._ipython_display_()
    return made


def test_above_the_widgets_is_an_output_that_needs_no_kernel(
    faulty: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    static, widgets = displayed(faulty.explore(), monkeypatch)
    assert set(static) == {"text/html", "text/plain"}
    assert static["text/plain"].startswith("divergent: first at (the model itself), into head")
    assert repr(faulty.explore()) == static["text/plain"]
    assert "<table" in static["text/html"]
    assert set(widgets) == {"application/vnd.jupyter.widget-view+json", "text/plain"}
    assert widgets["text/plain"].startswith("Run this cell")


def test_without_ipywidgets_the_static_view_says_what_to_install(
    faulty: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(name: str) -> Any:
        return None if name == "anywidget" else util.find_spec(name)

    monkeypatch.setattr(module, "find_spec", found)
    explorer = faulty.explore()
    assert explorer.widget is None
    (static,) = displayed(explorer, monkeypatch)
    assert "pip install anywidget" in static["text/html"]


def test_a_file_that_holds_no_values_is_one_message(faulty: Result, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="can't be read as judged values"):
        faulty.explore(tmp_path)


def test_a_view_holds_no_file_open_and_says_when_it_is_gone(
    faulty: Result, kept: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copy(kept / "judged.h5", tmp_path))
    box = faulty.explore(path).widget
    with h5py.File(path, "a"):
        pass  # which HDF5 refuses while the same process reads it
    path.unlink()
    control(box, "elements").value = "oracle"
    assert traces(box, 2) == []
    trouble = box.children[-1].children[-2]
    assert f"{path} can&#x27;t be read as judged values" in trouble.value
    shutil.copy(kept / "judged.h5", tmp_path)
    control(box, "elements").value = "candidate"
    assert traces(box, 2)[0]["colorbar"]["title"]["text"] == "candidate"
    assert trouble.value == ""


def test_an_edge_whose_values_are_not_kept_says_so(faulty: Result, kept: Path) -> None:
    judgements = tuple(dataclasses.replace(j, path="other") for j in faulty.outcome.judgements)
    box = Result(dataclasses.replace(faulty.outcome, judgements=judgements)).explore(kept).widget
    assert len(plots(box)) == 2
    assert "holds no elements of this edge" in box.children[-1].children[-1].value


def test_names_are_text_in_the_widgets_too(faulty: Result) -> None:
    name = "<img src=x onerror=alert(1)>"
    judgements = tuple(dataclasses.replace(j, module=name) for j in faulty.outcome.judgements)
    box = Result(dataclasses.replace(faulty.outcome, judgements=judgements)).explore().widget
    for shown in (w for w in widgets(box) if isinstance(w, ipywidgets.HTML)):
        assert "<img" not in shown.value


def test_edges_that_look_the_same_stay_two_options(faulty: Result) -> None:
    """A character that turns the text around is spelled out, and then two names may be one."""
    first, second, *rest = (
        dataclasses.replace(j, check=Check.EXACT, into=None, path="", module=module)
        for j, module in zip(faulty.outcome.judgements, ["a\u202eb", r"a\u202eb", "c", "d"], strict=False)
    )
    outcome = dataclasses.replace(faulty.outcome, judgements=(first, second, *rest), findings=())
    edge = control(Result(outcome).explore().widget, "edge")
    names = [name for name, _ in edge.options]
    assert names[:3] == [r"a\u202eb (exact) (edge 0)", r"a\u202eb (exact) (edge 1)", "c (exact)"]
    for row in range(len(names)):
        edge.value = row
        assert (edge.value, edge.label) == (row, names[row])
