"""The interactive view, driven through its widgets; a browser drives it in `tests/browser`."""

import dataclasses
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from typing import Any
from unittest import mock

import ipywidgets
import pytest

from validator.checks.findings import Outcome
from validator.errors import CaptureError
from validator.report.notebook import explorer as module
from validator.report.result import Result


def widgets(root: Any) -> Iterator[Any]:
    yield root
    for child in getattr(root, "children", ()):
        yield from widgets(child)


def control(root: Any, description: str) -> Any:
    (found,) = [w for w in widgets(root) if getattr(w, "description", None) == description]
    return found


def figures(root: Any) -> list[Any]:
    return [w for w in widgets(root) if type(w).__name__ == "FigureWidget"]


def test_it_opens_at_the_first_divergence(faulty: Result, kept: Path) -> None:
    box = faulty.explore(kept).widget
    edge = control(box, "edge")
    assert edge.options[edge.value] == ("(the model itself), into head [input] (wiring)", edge.value)
    overview, profile, elements = figures(box)
    assert {trace.type for trace in overview.data} == {"scatter"}
    assert elements.data[0].type == "heatmap"
    assert control(box, "batch").value == faulty.first_divergence.evidence.worst_index[0]
    assert len(profile.data) >= 1


def test_another_overview_edge_plot_and_measure_are_drawn(faulty: Result, kept: Path) -> None:
    box = faulty.explore(kept).widget
    control(box, "overview").value = "positions"
    assert figures(box)[0].data[0].type == "heatmap"
    plot = control(box, "plot")
    for name in plot.options:
        plot.value = name
        shown, expected = figures(box)[1], faulty.figure(name)
        assert [(t.type, t.name, list(t.x)) for t in shown.data] == [
            (t.type, t.name, list(t.x)) for t in expected.data
        ]
    before = figures(box)[2].data[0].z
    control(box, "elements").value = "oracle"
    assert figures(box)[2].data[0].z != before
    control(box, "across").value = control(box, "down").value
    assert [len(row) for row in figures(box)[2].data[0].z] == [32]


def test_widgets_that_are_replaced_are_closed(faulty: Result, kept: Path) -> None:
    """A kernel and a page keep a widget, with all its data, until it is closed."""
    box = faulty.explore(kept).widget
    overview, profile, elements = figures(box)
    control(box, "overview").value = "positions"
    control(box, "elements").value = "oracle"
    assert [figure.comm is None for figure in (overview, profile, elements)] == [True, False, True]
    edge, panel = control(box, "edge"), list(widgets(box.children[-1]))[1:]
    edge.value = 0 if edge.value else 1
    assert all(widget.comm is None for widget in panel)
    assert all(widget.comm is not None for widget in widgets(box))


def test_a_click_on_a_point_picks_its_edge(faulty: Result) -> None:
    box = faulty.explore().widget
    trace = next(t for t in figures(box)[0].data if t.name.startswith("aligned"))
    points = mock.Mock(point_inds=[1])
    trace._dispatch_on_click(points, None)
    assert control(box, "edge").value == trace.customdata[1]


def test_a_click_on_a_layer_picks_its_worst_edge(faulty: Result) -> None:
    box = faulty.explore().widget
    control(box, "overview").value = "layers"
    trace = figures(box)[0].data[0]
    trace._dispatch_on_click(mock.Mock(point_inds=[(0, 0)]), None)
    assert control(box, "edge").value == trace.customdata[0][0]


def test_without_values_no_elements_are_shown(faulty: Result) -> None:
    assert len(figures(faulty.explore().widget)) == 2


def test_a_result_without_profiles_shows_what_it_has(divergent: Outcome) -> None:
    box = Result(divergent).explore().widget
    assert len(figures(box)) == 1
    assert len(control(box, "edge").options) == 12


def test_a_result_of_no_edges_can_be_explored(inconclusive: Outcome) -> None:
    assert Result(dataclasses.replace(inconclusive, judgements=())).explore().widget is not None


def test_beside_the_widget_is_what_needs_no_kernel(faulty: Result) -> None:
    bundle, _ = faulty.explore()._repr_mimebundle_()
    assert set(bundle) == {"application/vnd.jupyter.widget-view+json", "text/html", "text/plain"}
    assert bundle["text/plain"].startswith("divergent: first at (the model itself), into head")
    assert repr(faulty.explore()) == bundle["text/plain"]
    assert "<table" in bundle["text/html"]


def test_without_ipywidgets_the_static_view_says_what_to_install(
    faulty: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(name: str) -> Any:
        return None if name == "anywidget" else util.find_spec(name)

    monkeypatch.setattr(module, "find_spec", found)
    explorer = faulty.explore()
    assert explorer.widget is None
    bundle = explorer._repr_mimebundle_()
    assert "pip install anywidget" in bundle["text/html"]
    assert "widget-view" not in "".join(bundle)


def test_a_file_that_holds_no_values_is_one_message(faulty: Result, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="can't be read as judged values"):
        faulty.explore(tmp_path)


def test_names_are_text_in_the_widgets_too(faulty: Result) -> None:
    name = "<img src=x onerror=alert(1)>"
    judgements = tuple(dataclasses.replace(j, module=name) for j in faulty.outcome.judgements)
    box = Result(dataclasses.replace(faulty.outcome, judgements=judgements)).explore().widget
    for shown in (w for w in widgets(box) if isinstance(w, ipywidgets.HTML)):
        assert "<img" not in shown.value
