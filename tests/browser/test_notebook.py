"""What JupyterLab shows of a result, and the interactive view driven there by a reader's clicks."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.report.notebook.conftest import FAULTY
from tests.small_port import write_port

START_S = 180
CHECK = """
from pathlib import Path
from validator.api import check_target
result = check_target("port.py", keep=Path("run"), profiles=True)
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a JupyterLab on a folder with a port and a notebook."""
    if find_spec("jupyterlab") is None:
        pytest.skip("JupyterLab is not installed: pip install jupyterlab")
    folder = tmp_path_factory.mktemp("lab")
    write_port(folder, FAULTY)
    cells = [nbformat.v4.new_code_cell(source) for source in (CHECK, "result", "result.explore('run')")]
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
    server = subprocess.Popen(
        [*command, *options],
        cwd=folder,
        env=os.environ | homes | {"IPYTHONDIR": str(folder / ".ipython")},
        stdout=(folder / "lab.log").open("wb"),
        stderr=subprocess.STDOUT,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{address}/api/status", server, folder / "lab.log")
        yield f"{address}/lab/tree/look.ipynb?reset"
    finally:
        server.terminate()
        server.wait(60)


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
def page(browser: Any, lab: str) -> Iterator[Any]:
    """The notebook, all its cells run."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    context.set_default_timeout(START_S * 1000)
    opened = context.new_page()
    opened.goto(lab)
    opened.wait_for_selector(".jp-Notebook .jp-Cell")
    opened.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
    opened.get_by_role("menuitem", name="Run", exact=True).click()
    opened.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    opened.wait_for_selector(".jupyter-widgets .js-plotly-plot")
    yield opened
    context.close()


def _select(page: Any, description: str) -> Any:
    return page.locator(".widget-dropdown", has=page.locator(f"label:text-is('{description}')")).locator(
        "select"
    )


def _shown(page: Any, description: str) -> str:
    picked: str = _select(page, description).evaluate("list => list.options[list.selectedIndex].text")
    return picked.replace("\xa0", " ")


def _wait_for_elements(page: Any, condition: str) -> None:
    """Wait for a heat map of which a condition holds: an edge into the head has 128 channels, another 64."""
    page.wait_for_function(
        """() => [...document.querySelectorAll('.jupyter-widgets .js-plotly-plot')].some(
            plot => plot.data?.[0]?.type == 'heatmap' && """
        f"{condition})"
    )


def test_a_result_is_shown_with_its_table_and_the_first_finding_can_be_opened(page: Any) -> None:
    output = page.locator(
        ".jp-RenderedHTMLCommon", has_text="divergent: first at (the model itself), into head"
    )
    output.first.scroll_into_view_if_needed()
    cells = output.first.locator("table").first.locator("td")
    assert "(the model itself), into head" in cells.all_inner_texts()
    folded = output.first.locator("details").last
    worst = folded.get_by_text("oracle", exact=False).first
    assert not worst.is_visible()
    folded.locator("summary").click()
    assert worst.is_visible()


def test_the_view_opens_at_the_first_divergence_and_its_worst_element(page: Any) -> None:
    assert _shown(page, "edge") == "(the model itself), into head [input] (wiring)"
    page.wait_for_function(
        """() => [...document.querySelectorAll('.jupyter-widgets .js-plotly-plot')]
            .map(plot => plot.data?.[0]?.type).join() == 'scatter,scatter,heatmap'"""
    )


def test_a_click_on_the_overview_picks_an_edge(page: Any) -> None:
    _select(page, "edge").select_option(label="embed (function)")
    _wait_for_elements(page, "plot.data[0].x.length == 64")
    point = page.locator(".jupyter-widgets .js-plotly-plot").first.locator("path.point").last
    point.scroll_into_view_if_needed()
    point.dispatch_event("mousemove")
    box = point.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    panel = page.locator(".widget-html p", has_text="(the model itself), into head [input] (wiring)")
    panel.wait_for()
    _wait_for_elements(page, "plot.data[0].x.length == 128")
    assert _shown(page, "edge") == "(the model itself), into head [input] (wiring)"


def test_another_measure_is_read_from_the_file_and_shown(page: Any) -> None:
    _select(page, "elements").select_option(label="candidate")
    _wait_for_elements(page, "plot.data[0].colorbar.title.text == 'candidate'")
