"""The notebooks run from clean, and what they show is what their code gives."""

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
    assert told(executed(path)) == told(saved(path))


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
        figure = output.data[PLOTLY]
        return "figure", [(trace["type"], trace.get("name")) for trace in figure["data"]]
    text = output.data["text/plain"]
    return "text", _line(text) if is_measured else text


def _line(text: str) -> str:
    return re.sub(r"\d[\d.e+-]*", "#", text.partition("\n")[0])
