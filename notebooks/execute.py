"""Execute notebooks from clean and save them with what they show.

    python -m notebooks.execute [NOTEBOOK...]

What is saved depends on the code and on the arithmetic of the processor alone: no times, versions or paths.
"""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

__all__ = ["FOLDER", "executed", "main", "notebooks", "shown"]

FOLDER = Path(__file__).resolve().parent

_WIDGET = "application/vnd.jupyter.widget-view+json"
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # sums in one order, whatever the number of cores
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",  # they tell times
    "PLOTLY_RENDERER": "plotly_mimetype",  # figures without a copy of plotly's library in each
}
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
_TIMEOUT_S = 600


def notebooks() -> list[Path]:
    """Return the paths of the notebooks of this folder, in the order in which they are told."""
    return sorted(FOLDER.glob("*.ipynb"))


def executed(path: Path) -> NotebookNode:
    """Run all cells of a notebook in a new kernel.

    Args:
        path: of the notebook, which is left as it is. It runs in its own folder.

    Returns:
        The notebook with its outputs.

    Raises:
        CellExecutionError: a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata = nbformat.from_dict(_METADATA)
    client = NotebookClient(
        notebook,
        timeout=_TIMEOUT_S,
        record_timing=False,
        store_widget_state=False,
        resources={"metadata": {"path": str(path.parent)}},
    )
    with tempfile.TemporaryDirectory(prefix="validator-") as scratch:
        client.execute(env=_environment(scratch))
    notebook.metadata = nbformat.from_dict(_METADATA)
    for data in shown(notebook):
        data.pop(_WIDGET, None)  # nothing is behind it without its kernel: the static view is left
    return notebook


def shown(notebook: NotebookNode) -> Iterator[Any]:
    """Yield what each output of a notebook shows, by MIME type."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if "data" in output:
                yield output.data


def main(paths: Sequence[Path]) -> None:
    """Execute notebooks and save them in place, the figures with pictures."""
    from notebooks.pictures import add_pictures  # needs a browser, which running notebooks does not

    for path in paths:
        notebook = executed(path)
        add_pictures(shown(notebook))
        nbformat.write(notebook, path)


def _environment(scratch: str) -> Mapping[str, str]:
    """Return a kernel's environment: it starts without the user's profile of IPython, and leaves nothing."""
    return {**os.environ, **_ENVIRONMENT, "IPYTHONDIR": scratch, "TMPDIR": scratch}


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]] or notebooks())
