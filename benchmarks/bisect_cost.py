"""What a search costs, and whether it finds one fault at a random layer of a deep random-weight model.

    python benchmarks/bisect_cost.py [--out FOLDER] [--trials N] [--layers N] [--jobs N] [--markdown FILE]

Each trial is appended to `FOLDER/results.jsonl` when it ends, and one that is there is not run again:
interrupt it whenever you like and start it again to go on. Exit code 0 means that every fault was named with
its module and, where aten shows it, its operator, and that every healthy port is aligned.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # trials run side by side, and their tensors are small

from joblib import Parallel, delayed
from rich.console import Console
from rich.table import Table

from tests.bisecting.deep_port import write_deep_port
from validator.api import capture_target
from validator.capturing.narrowing import stored_bytes
from validator.capturing.reader import open_capture
from validator.faults import parse
from validator.target_bisect import bisect_target

_ATTENTION = ("scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu")

_FAULTS = (
    ("norm-eps:layer={layer},eps={eps:.3f}", ("add",)),
    ("attn-scale:layer={layer},factor=1.5", _ATTENTION),
    ("rope-sign:layer={layer}", ("neg", "mul")),
    ("act-gelu:layer={layer}", ("silu", "gelu")),
    ("residual-after-norm:layer={layer}", ("add",)),
    ("mlp-swapped:layer={layer}", ()),
)
"""Faults by turns, and the operators that are right to name, by the reference's name or the candidate's.

Nothing where no operator is at fault: a gate's output that goes where another's should passes none.
Attention is one kernel, which has the scale.
"""

_EPS = 6e-3
"""Of a layer's mean square, which is about 1 in the first and grows by 1 a layer: the first fault divides by
1.003, and so moves each element by 0.4 to 0.8 ulp of bfloat16. Half of it is as much as a norm that adds up
in bfloat16 is off, on 64 tokens, and is called so: its module is named, as `undeclared_precision`."""

_COLUMNS = (
    "fault",
    "layer",
    "seed",
    "module",
    "operator",
    "right",
    "runs",
    "captured",
    "full capture",
    "share",
)
Record = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One search.

    Attributes:
        number: of the trial.
        layers: of the model.
        fault: as `--plant` takes it, or None for a healthy port.
        operators: that are right to name.
        layer: that it is planted in.
        seed: of weights and inputs.
    """

    number: int
    layers: int
    fault: str | None
    operators: tuple[str, ...]
    layer: int
    seed: int

    @property
    def label(self) -> str:
        """A name that no other trial has."""
        return f"{self.number}-{self.layers}-{self.fault or 'healthy'}-{self.seed}"

    def is_right(self, record: Record) -> bool:
        """Say whether a search named the fault's module and, where aten shows it, its operator first."""
        if self.fault is None:
            return bool(record["verdict"] == "aligned")
        is_named = record["module"] is not None and fnmatchcase(record["module"], parse(self.fault).module)
        return is_named and (not self.operators or record["op"] in self.operators)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is left, and print the table."""
    options = _options(arguments)
    trials = list(plan(trials=options.trials, layers=options.layers))
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "results.jsonl"
    done = {record["label"]: record for record in _stored(path)}
    left = [trial for trial in trials if trial.label not in done]
    print(f"{len(trials)} trials, {len(trials) - len(left)} of them in {path} already", file=sys.stderr)
    status = 0
    try:
        made = Parallel(n_jobs=options.jobs, return_as="generator_unordered")(delayed(run)(t) for t in left)
        for number, record in enumerate(made, start=1):
            print(f"[{number}/{len(left)}] {json.dumps(record)}", file=sys.stderr, flush=True)
            done[record["label"]] = record
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        status = 130
    records = [
        done[t.label] | {"is_right": t.is_right(done[t.label]), "right_ops": list(t.operators)}
        for t in trials
        if t.label in done
    ]
    _show(records, Console())
    if options.markdown is not None:
        options.markdown.write_text(_markdown(records), encoding="utf-8")
    is_good = len(records) == len(trials) and all(record["is_right"] for record in records)
    return status or (0 if is_good else 1)


def plan(*, trials: int, layers: int) -> Iterator[Trial]:
    """Yield the trials: each fault in turn, at a random layer and with a random seed; then a healthy port."""
    draws = random.Random(0)
    for number in range(trials):
        fault, operators = _FAULTS[number % len(_FAULTS)]
        layer, seed = draws.randrange(layers), draws.randrange(1000)
        planted = fault.format(layer=layer, eps=_EPS * (1 + layer))
        yield Trial(number=number, layers=layers, fault=planted, operators=operators, layer=layer, seed=seed)
    yield Trial(number=trials, layers=layers, fault=None, operators=(), layer=0, seed=draws.randrange(1000))


def run(trial: Trial) -> Record:
    """Search, and capture everything beside it, to know what that takes."""
    import torch

    torch.set_num_threads(1)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bisect-") as scratch:
        folder = Path(scratch)
        port = write_deep_port(folder, layers=trial.layers, seed=trial.seed)
        result = bisect_target(str(port), plant=trial.fault)
        seconds = time.monotonic() - start
        full = capture_target(str(port), "candidate", folder / "full", proof=False, plant=trial.fault)
        full_bytes = stored_bytes([open_capture(full).rank(0)])
    first, cost = result.first_divergence, result.cost
    return {
        "label": trial.label,
        "fault": trial.fault,
        "layer": trial.layer,
        "seed": trial.seed,
        "verdict": str(result.verdict),
        "module": None if first is None else first.module,
        "op": None if first is None or first.op is None else _bare(first.op),
        "path": [step.to_json() for step in result.path],
        "runs": cost.runs,
        "size_bytes": cost.size_bytes,
        "largest_bytes": cost.largest_bytes,
        "full_bytes": full_bytes,
        "full_bytes_estimated": cost.full_bytes,
        "seconds": seconds,
    }


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Search deep models for one planted fault each.")
    parser.add_argument("--out", type=Path, default=Path("build/bisect"), help="folder of the results")
    parser.add_argument("--trials", type=int, default=20, help="faults to plant (default 20)")
    parser.add_argument("--layers", type=int, default=48, help="layers of the model (default 48)")
    parser.add_argument("--jobs", type=int, default=2, help="trials side by side (default 2)")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    return parser.parse_args(arguments)


def _stored(path: Path) -> list[Record]:
    if not path.exists():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:  # the last line of a run that was killed
            continue
    return records


def _cells(record: Record) -> tuple[str, ...]:
    return (
        record["fault"] or "healthy",
        str(record["layer"]) if record["fault"] else "-",
        str(record["seed"]),
        record["module"] or "none",
        record["op"] or "-",
        "yes" if record["is_right"] else "NO",
        str(record["runs"]),
        f"{record['size_bytes'] / 1e6:.2f} MB",
        f"{record['full_bytes'] / 1e6:.2f} MB",
        f"{100 * record['size_bytes'] / record['full_bytes']:.0f}%",
    )


def _show(records: Sequence[Record], console: Console) -> None:
    table = Table(title="Searches for one fault each")
    for column in _COLUMNS:
        table.add_column(column, overflow="fold")
    for record in records:
        table.add_row(*_cells(record))
    console.print(table)
    console.print(_total(records), markup=False)


def _markdown(records: Sequence[Record]) -> str:
    head = "| " + " | ".join(_COLUMNS) + " |"
    rule = "|" + "|".join(["---"] * len(_COLUMNS)) + "|"
    rows = ["| " + " | ".join(_cells(record)) + " |" for record in records]
    return "\n".join([head, rule, *rows, "", _total(records)]) + "\n"


def _total(records: Sequence[Record]) -> str:
    faulty = [record for record in records if record["fault"] is not None]
    healthy = [record for record in records if record["fault"] is None]
    if not faulty:
        return "no fault was searched for"
    share = sum(r["size_bytes"] for r in faulty) / sum(r["full_bytes"] for r in faulty)
    shown = [record for record in faulty if record["right_ops"]]
    return (
        f"{sum(r['is_right'] for r in faulty)} of {len(faulty)} faults named with their module, and the "
        f"{len(shown)} of them that aten shows with their operator; "
        f"{sum(r['is_right'] for r in healthy)} of {len(healthy)} healthy ports aligned; "
        f"{sum(r['runs'] for r in faulty) / len(faulty):.1f} candidate runs and {100 * share:.0f}% of a full "
        "capture's bytes on average"
    )


def _bare(op: str) -> str:
    """Return an operator's name without namespace and overload."""
    return op.rpartition("::")[2].removeprefix("aten.").partition(".")[0]


if __name__ == "__main__":
    sys.exit(main())
