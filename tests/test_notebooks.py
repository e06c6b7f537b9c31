"""The notebooks run from clean, and what they show is what their code gives."""

import math
import re
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from notebooks.execute import FOLDER, executed, notebooks, shown
from notebooks.pictures import PLOTLY
from validator.report.figures.histogram import ulp_histogram

NAMES = [path.stem for path in notebooks()]
QUICK = ["01_first_check", "04_long_context"]
"""The others take longer than these together: two start processes."""

Output = tuple[str, object]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of what the notebooks need of the repository; the copy of their own folder."""
    for folder in (FOLDER, FOLDER.parent / "examples"):
        ignored = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
        shutil.copytree(folder, tmp_path / folder.name, ignore=ignored)
    return tmp_path / FOLDER.name


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in NAMES],
)
def test_a_notebook_shows_what_its_code_gives(copied: Path, name: str) -> None:
    path = copied / f"{name}.ipynb"
    made, kept = executed(path), saved(path)
    assert told(made) == told(kept)
    for ours, theirs in zip(figures(made), figures(kept), strict=True):
        assert other_side(heights(ours), heights(theirs)) == []


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_was_executed_in_order_and_complained_of_nothing(name: str) -> None:
    cells = [cell for cell in saved(FOLDER / f"{name}.ipynb").cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert {output.get("name", "stdout") for cell in cells for output in cell.outputs} <= {"stdout"}
    assert "error" not in {output.output_type for cell in cells for output in cell.outputs}


@pytest.mark.parametrize("name", NAMES)
def test_whatever_is_shown_can_be_seen_without_a_kernel_and_without_scripts(name: str) -> None:
    notebook = saved(FOLDER / f"{name}.ipynb")
    for data in shown(notebook):
        assert set(data) & {"text/plain", "image/png"}
        assert set(data) <= {"text/plain", "text/html", "image/png", PLOTLY}
        assert "<script" not in data.get("text/html", "")
    assert "widgets" not in notebook.metadata


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_the_machine_is_saved(name: str) -> None:
    text = "".join(
        str({kind: value for kind, value in output.get("data", output).items() if kind != "image/png"})
        for cell in saved(FOLDER / f"{name}.ipynb").cells
        for output in cell.get("outputs", ())
    )
    assert re.findall(r"(?:/tmp|/home|/root|/Users)\b[^\s\"']*", text) == []
    assert str(FOLDER.parent) not in text


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_short_and_opens_with_what_is_asked(name: str) -> None:
    cells = saved(FOLDER / f"{name}.ipynb").cells
    assert cells[0].source.startswith("# ")
    assert "**The question:**" in cells[0].source
    assert 8 <= len(cells) <= 15


def test_the_notebooks_are_small_and_all_in_the_readme() -> None:
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[\w+\]\((\w+)\.ipynb\)", readme, re.MULTILINE) == NAMES
    assert sum(path.stat().st_size for path in FOLDER.glob("*.*")) < 2_000_000


@pytest.mark.parametrize("document", ["README", *NAMES])
def test_every_relative_link_leads_to_a_file(document: str) -> None:
    if document == "README":
        text = (FOLDER / "README.md").read_text(encoding="utf-8")
    else:
        cells = saved(FOLDER / f"{document}.ipynb").cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\(([^)#\s]+)", text)
    assert [link for link in links if "://" not in link and not (FOLDER / link).exists()] == []


def test_a_notebook_that_shows_something_else_than_its_code_gives_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "edited.ipynb"
    cells = [new_code_cell("print('layer', 2)"), new_code_cell("print('KL', 1e-4)\nprint('rest')")]
    cells[1].metadata["tags"] = ["measured"]
    nbformat.write(new_notebook(cells=cells), path)
    result = executed(path)
    edited = saved(path)
    edited.cells[0].outputs = [nbformat.v4.new_output("stream", text="layer 3\n")]
    edited.cells[1].outputs = [nbformat.v4.new_output("stream", text="KL 0.00023\nother\n")]
    (right, measured), (wrong, allowed) = told(result), told(edited)
    assert right != wrong
    assert measured == allowed


def edges(*errors: float, verdict: str = "aligned", text: str = "embed<br>0.5") -> dict[str, Any]:
    """A figure of errors over a band."""
    count = len(errors)
    trace = {"type": "scatter", "name": f"{verdict} ({count})", "x": list(range(count)), "y": list(errors)}
    limit = {"type": "line", "x0": 0, "x1": 1, "y0": 1.0, "y1": 1.0}
    layout = {"shapes": [limit], "annotations": [{"text": "first divergence: up", "x": 1, "y": 0.3}]}
    return {"data": [{**trace, "text": [text] * count}], "layout": layout}


def test_figures_of_another_processor_are_the_same_and_those_of_another_run_are_not() -> None:
    """Another order of summing moves an error, here by less than 3 times the limit; a verdict it leaves."""
    figure = edges(0.1, 0.5, 20.0)
    moved = edges(0.4, 2.5, 60.0, text="embed<br>0.7")
    assert (told_figure(moved), other_side(heights(moved), heights(figure))) == (told_figure(figure), [])
    for other in (
        edges(0.1, 0.5),
        edges(0.1, 0.5, 20.0, verdict="divergent"),
        edges(0.1, 0.5, 20.0, text="head<br>0.5"),
        {**figure, "layout": {**figure["layout"], "annotations": []}},
    ):
        assert told_figure(other) != told_figure(figure)
    assert other_side(heights(edges(0.1, 20.0, 0.1)), heights(figure)) == [2]
    heat = {"type": "heatmap", "x": [0, 1], "y": [0], "z": [[-2.0, 1.3]]}
    plain = {"data": [heat], "layout": {"yaxis": {"ticktext": ["up"]}}}
    for change in ({"z": [[None, 1.3]]}, {"x": [0, 2]}):
        assert told_figure({**plain, "data": [{**heat, **change}]}) != told_figure(plain)
    assert told_figure({**plain, "layout": {"yaxis": {"ticktext": ["head"]}}}) != told_figure(plain)
    assert other_side(heights({**plain, "data": [{**heat, "z": [[-2.0, -1.3]]}]}), heights(plain)) == [1]


def test_a_histogram_of_another_processor_is_the_same_and_that_of_more_elements_is_not() -> None:
    counts = [0] * 33
    counts[15:18] = 40, 8, 52
    figure = ulp_histogram(counts)
    moved = ulp_histogram([*counts[:15], 39, 8, 51, 2, *counts[19:]])
    assert told_figure(moved) == told_figure(figure)
    assert told_figure(ulp_histogram([*counts[:15], 39, 8, 52, *counts[18:]])) != told_figure(figure)


def test_a_cell_that_fails_fails_the_notebook(tmp_path: Path) -> None:
    path = tmp_path / "failing.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell("raise ValueError('planted')")]), path)
    with pytest.raises(CellExecutionError, match="planted"):
        executed(path)


def saved(path: Path) -> NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def told(notebook: NotebookNode) -> list[list[Output]]:
    """Return what each code cell tells: of what is measured, the first line without its numbers."""
    return [
        [_told(output, "measured" in cell.metadata.get("tags", ())) for output in cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def _told(output: Any, is_measured: bool) -> Output:
    if output.output_type == "stream":
        return output.name, _line(output.text) if is_measured else output.text
    if PLOTLY in output.data:
        return "figure", told_figure(output.data[PLOTLY])
    text = output.data["text/plain"]
    return "text", _line(text) if is_measured else text


def figures(notebook: NotebookNode) -> list[Any]:
    """Return the figures of a notebook."""
    return [data[PLOTLY] for data in shown(notebook) if PLOTLY in data]


def told_figure(figure: Any) -> Any:
    """Return what of a figure is the same on any processor, in whatever order its kernels sum.

    Which edges there are, what is said of each, and of how many elements; not how large an error is.
    """
    layout = figure["layout"]
    traces = []
    for trace in figure["data"]:
        has_bins = "hovertext" in trace  # as many as the largest error needs
        names = trace.get("text") if trace["type"] == "scatter" else None
        traces.append(
            {
                "type": trace["type"],
                "name": None if has_bins else trace.get("name"),
                "x": None if has_bins else trace.get("x"),
                "rows": trace.get("y") if trace["type"] == "heatmap" else None,
                "of": None if names is None else [text.partition("<br>")[0] for text in names],
            }
        )
    is_heat = any(trace["type"] == "heatmap" for trace in figure["data"])
    counts = [trace["customdata"] for trace in figure["data"] if "hovertext" in trace]
    return {
        "traces": traces,
        "elements": sum(count for bins in counts for (count,) in bins),
        "empty": [place for place, height in enumerate(heights(figure)) if height is None],
        "notes": [(note["text"], note["x"]) for note in layout.get("annotations", ())],
        "names": [layout.get(axis, {}).get("ticktext") for axis in ("xaxis", "yaxis") if is_heat],
        "titles": [layout.get(axis, {}).get("title") for axis in ("xaxis", "yaxis")],
    }


def heights(figure: Any) -> list[float | None]:
    """Return the power of ten of each error over its limit; None where nothing is judged."""
    limits = [shape["y0"] for shape in figure["layout"].get("shapes", ()) if shape["y0"] == shape["y1"]]
    found: list[float | None] = []
    for trace in figure["data"]:
        if trace["type"] == "heatmap":
            found += [cell for row in trace["z"] for cell in row]
        elif trace["type"] == "scatter" and limits:
            found += [None if error is None else math.log10(error / limits[0]) for error in trace["y"]]
    return found


def other_side(ours: list[float | None], theirs: list[float | None]) -> list[int]:
    """Return the places that are clearly within their limit in one figure, and clearly outside in the other.

    Clearly is by a factor of 3: what lies nearer may be moved over the limit by another order of summing.
    """
    clear = math.log10(3)
    return [
        place
        for place, (a, b) in enumerate(zip(ours, theirs, strict=True))
        if a is not None and b is not None and min(a, b) < -clear and max(a, b) > clear
    ]


def _line(text: str) -> str:
    return re.sub(r"\d[\d.e+-]*", "#", text.partition("\n")[0])
