"""What captures of less than whole tensors can detect: faults of the registry at every level.

    python benchmarks/levels.py [--out FOLDER] [--count N] [--only TEXT] [--levels LEVEL ...]

Each case is a fault in the first model that can have it, or a healthy one. Its candidate runs at every level,
and each capture is judged as `check` does. Printed is how often a fault was seen, how often the guilty edge
was named first, how many bytes of activations were captured, and each fault that a level did not see. The
noise that samples and statistics are judged by is measured once for each reference. Faults in decode steps
are left out: those are judged at level `full` alone.

A case is appended to `FOLDER/results.jsonl` when it ends, and is not run again: interrupt it whenever you
like, and start it again to go on.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from rich.console import Console
from rich.table import Table

import validator
from tests.models import Setup, checkpoint, inputs, load_reference
from tests.planted import KINDS, Expectation
from tests.trials import Trial, trial_of
from validator.capturing.levels import Level
from validator.capturing.reader import Capture
from validator.capturing.session import capture_run
from validator.checks.findings import Verdict
from validator.judging import judged
from validator.judging_thin import noise_source
from validator.report.result import Result
from validator.runs import copied

_FAULTS = {fault.fault: (kind, fault) for kind, faults in KINDS.items() for fault in faults}
_HEALTHY = ("llama", "qwen3", "tiny-dense", "tiny-moe")
_ALARMS = (Verdict.DIVERGENT, Verdict.UNDECLARED_PRECISION)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is left, and print the table. Exit code 1 if a healthy candidate was called wrong."""
    parser = argparse.ArgumentParser(description="Judge faults at every level of a capture.")
    parser.add_argument("--out", type=Path, default=Path("build/levels"), help="folder of the results")
    parser.add_argument("--count", type=int, default=30, help="faults, spread over all kinds (default 30)")
    parser.add_argument("--only", default="", metavar="TEXT", help="the cases with this in their labels")
    parser.add_argument(
        "--levels", nargs="+", type=Level, default=list(Level), metavar="LEVEL", help="levels (default all)"
    )
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "results.jsonl"
    done: dict[str, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        record = json.loads(line)
        done.setdefault(record["label"], {}).update(record)
    trials = [trial for trial in plan(options.count) if options.only in trial.label]
    for number, trial in enumerate(trials, start=1):
        left = [level for level in options.levels if level not in done.get(trial.label, {})]
        if not left:
            continue
        record = run(trial, left, options.out)
        done.setdefault(trial.label, {}).update(record)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        said = {str(level): record[level]["verdict"] for level in left}
        print(f"[{number}/{len(trials)}] {trial.label}: {said}", file=sys.stderr, flush=True)
    records = [done[trial.label] for trial in trials]
    show(records, options.levels, Console())
    return int(
        any(r["kind"] == "healthy" and r[level]["is_alarm"] for r in records for level in options.levels)
    )


def plan(count: int) -> Iterator[Trial]:
    """Yield the healthy cases, and as many faults, one of each kind in turn."""
    for family in _HEALTHY:
        yield Trial(setup=Setup(family=family))
    queues = [
        [trial_of(fault) for fault in faults if fault.tp == 1 and not trial_of(fault).setup.decode]
        for faults in KINDS.values()
    ]
    longest = max(map(len, queues))
    turns = [queue[i] for i in range(longest) for queue in queues if i < len(queue)]
    yield from turns[:count]


def run(trial: Trial, levels: Sequence[Level], folder: Path) -> dict[str, Any]:
    """Judge a case at some levels."""
    kind, fault = _FAULTS[trial.fault] if trial.fault is not None else ("healthy", None)
    setup = trial.setup
    path = checkpoint(setup, folder)
    given = inputs(setup)
    model = trial.candidate(path)
    record: dict[str, Any] = {"label": trial.label, "kind": kind}
    with tempfile.TemporaryDirectory(prefix="levels-") as scratch:
        for level in levels:
            stored = Path(scratch) / f"{level}.h5"
            capture_run(
                lambda: model(**copied(given)), model, stored, inputs=given, level=level.value, proof=False
            )
            cand = validator.open_capture(stored)
            result = _checked(setup, path, cand, folder, given)
            sizes = {
                "bytes": _activation_bytes(cand, whole=False),
                "of_bytes": _activation_bytes(cand, whole=True),
            }
            record[level] = _said(result, fault, trial.layer) | sizes
    return record


def show(records: Sequence[dict[str, Any]], levels: Sequence[Level], console: Console) -> None:
    """Print a row for each kind of fault, and what each level did not see."""
    table = Table("kind", "cases")
    for level in levels:
        table.add_column(f"{level}: seen", justify="right")
        table.add_column("at the edge", justify="right")
        table.add_column("bytes", justify="right")
    kinds = list(dict.fromkeys(record["kind"] for record in records))
    faulty = [record for record in records if record["kind"] != "healthy"]
    for kind in (*kinds, "all faults"):
        rows = faulty if kind == "all faults" else [r for r in records if r["kind"] == kind]
        cells = []
        for level in levels:
            share = sum(r[level]["bytes"] for r in rows) / max(1, sum(r[level]["of_bytes"] for r in rows))
            cells += [
                str(sum(r[level]["is_alarm"] for r in rows)),
                "" if kind == "healthy" else str(sum(r[level]["is_named"] for r in rows)),
                f"{share:.1%}",
            ]
        table.add_row(kind, str(len(rows)), *cells)
    console.print(table)
    for level in levels:
        missed = [record["label"] for record in faulty if not record[level]["is_alarm"]]
        console.print(f"not seen at {level}: {', '.join(missed) or 'none'}", highlight=False)


def _checked(setup: Setup, path: Path, cand: Capture, folder: Path, given: dict[str, Any]) -> Result:
    """Return what `check` says; the reference's noise is that of an earlier case where it is the same."""
    reference = load_reference(setup, path)
    if cand.manifest.level is Level.FULL:
        return validator.check(reference=reference, candidate=cand.path, inputs=given)
    stored = folder / "references" / f"{setup.label}.h5"
    if not stored.exists():
        stored.parent.mkdir(exist_ok=True)
        dtype: torch.dtype = getattr(torch, setup.dtype)
        source = noise_source(
            model=reference, run=lambda: reference(**copied(given)), recipe=None, dtype=dtype
        )
        Path(f"{stored}.partial").unlink(missing_ok=True)  # of a run that was interrupted
        capture_run(lambda: reference(**copied(given)), reference, stored, proof=False, noise=source)
    return judged(
        reference=reference,
        ref=validator.open_capture(stored),
        cand=cand,
        run=lambda model: model(**copied(given)),
        recipe=None,
        names={},
        layout={},
        mesh=None,
        about={},
        progress=lambda stage, done, total: None,
    )


def _said(result: Result, fault: Expectation | None, layer: int) -> dict[str, Any]:
    first = next(iter(result.findings), None)
    return {
        "verdict": str(result.verdict),
        "is_alarm": result.verdict in _ALARMS,
        "first": None if first is None else first.module,
        "is_named": bool(first and fault and any(edge.covers(first, layer) for edge in fault.guilty)),
    }


def _activation_bytes(cand: Capture, *, whole: bool) -> int:
    """Return how many bytes of activations a capture of one rank was made of, before compression."""
    total = 0
    seen: set[str] = set()
    for call in cand.rank(0).calls:
        for value in (*call.inputs.values(), *call.outputs.values()):
            meta = getattr(value, "meta", None)
            if meta is None or meta.checksum in seen:
                continue
            seen.add(meta.checksum)
            size = torch.Size(meta.shape).numel() * getattr(torch, meta.dtype).itemsize
            total += size if whole else size // meta.one_in if meta.one_in else 0
    return total


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
