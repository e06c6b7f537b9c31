"""Run scripts where nothing of ours, and nothing but torch, can be imported: `alone.py OUT SCRIPT...`."""

import contextlib
import io
import json
import runpy
import sys
from collections.abc import Sequence
from typing import Any

FOREIGN = (
    "h5py",
    "hdf5plugin",
    "numba",
    "pandas",
    "safetensors",
    "scipy",
    "tests",
    "transformers",
    "validator",
)


class Refusal:
    """Refuses what the script must not need."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> None:
        if name.partition(".")[0] in FOREIGN:
            raise ImportError(f"the script must not need {name}")


def main(out: str, scripts: Sequence[str]) -> None:
    sys.meta_path.insert(0, Refusal())  # type: ignore[arg-type]
    results = {}
    for script in scripts:
        sys.argv = [script, "--device", "cpu"]
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            try:
                runpy.run_path(script, run_name="__main__")
                code: Any = "it did not exit"
            except SystemExit as end:
                code = end.code
        results[script] = {"code": code, "said": said.getvalue()}
    with open(out, "w") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
