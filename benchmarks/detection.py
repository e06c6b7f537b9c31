"""Detection power: every planted fault on every model, and every healthy port, judged one by one.

    python benchmarks/detection.py [--out FOLDER] [--quick] [--seeds N]

Each case is appended to `FOLDER/results.jsonl` when it ends, and a case that is there is not run again:
interrupt it whenever you like and start it again to go on. Remove the folder to start from nothing, for
instance after a change of the checks. The same runs are also judged by thresholds on the logits that are
common elsewhere.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from tests.grid import healthy_grid, pairwise
from tests.models import KERNELS
from tests.planted import FAULTS, LAYERS, Expectation
from tests.ranks import RankPool
from tests.trials import Trial, judge, logits, trial_of
from validator.checks.findings import Verdict
from validator.report.result import Result

Record = dict[str, Any]

# What became of a case. A fault: localised exactly, or found but not as it must be, or missed.
EXACT, ELSEWHERE, MISSED = "exact", "elsewhere", "missed"
ALIGNED, FALSE_ALARM, INCONCLUSIVE = "aligned", "false alarm", "inconclusive"
ERROR = "error"

_FAULTS = {fault.fault: fault for fault in FAULTS}


def main() -> int:
    """Run what is left, and print the tables."""
    parser = argparse.ArgumentParser(description="Judge every planted fault and every healthy port.")
    parser.add_argument("--out", type=Path, default=Path("build/detection"), help="folder of the results")
    parser.add_argument(
        "--quick", action="store_true", help="each fault once, and the pairwise healthy ports"
    )
    parser.add_argument("--seeds", type=int, default=3, help="seeds of weights and inputs (default 3)")
    options = parser.parse_args()
    trials = plan(seeds=1 if options.quick else options.seeds, is_quick=options.quick)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "results.jsonl"
    done = {record["label"]: record for record in read_records(path)}
    left = [trial for trial in trials if trial.label not in done]
    print(f"{len(trials)} cases, {len(trials) - len(left)} of them in {path} already", file=sys.stderr)
    try:
        with rank_pools() as pool, tempfile.TemporaryDirectory(prefix="detection-") as scratch:
            for number, trial in enumerate(left, start=1):
                record = run_case(trial, Path(scratch), pool)
                print(f"[{number}/{len(left)}] {progress_line(record)}", file=sys.stderr, flush=True)
                done[trial.label] = record
                if record["outcome"] != ERROR:
                    append_record(path, record)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        status = 130
    else:
        status = 0
    records = [done[trial.label] for trial in trials if trial.label in done]
    show(records, Console())
    is_good = all(record["outcome"] in (EXACT, ALIGNED) for record in records)
    return status or (0 if is_good else 1)


def plan(*, seeds: int, is_quick: bool) -> list[Trial]:
    """Return the cases, faults first."""
    if is_quick:
        return [trial_of(fault) for fault in FAULTS] + [Trial(setup=s) for s in pairwise(healthy_grid())]
    trials = []
    for seed, fault in product(range(seeds), FAULTS):
        for family, dtype in product(fault.families, ("bfloat16", "float16")):
            for layer, kernel in product(LAYERS if fault.has_layer else LAYERS[:1], KERNELS[family]):
                trials.append(
                    trial_of(fault, layer=layer, family=family, dtype=dtype, cand_kernel=kernel, seed=seed)
                )
    return trials + [Trial(setup=setup) for seed in range(seeds) for setup in healthy_grid(seed=seed)]


def run_case(trial: Trial, folder: Path, pool: Callable[[int], RankPool]) -> Record:
    """Judge one case and return its record."""
    start = time.monotonic()
    try:
        result = judge(trial, folder, pool)
        seconds = time.monotonic() - start
        thresholds = other_judges(*logits(trial, folder, pool), getattr(torch, trial.setup.dtype))
    except Exception as error:  # one case's failure must not end a run of hours; it is shown and tried again
        return _record(trial, ERROR, f"{type(error).__name__}: {error}", time.monotonic() - start)
    outcome, why = outcome_of(trial, result)
    first = result.first_divergence
    return _record(trial, outcome, why, seconds) | {
        "first": None if first is None else first.summary,
        "findings": len(result.findings),
        "thresholds": thresholds,
    }


def _record(trial: Trial, outcome: str, why: str, seconds: float) -> Record:
    return {
        "label": trial.label,
        "fault": trial.fault,
        "family": trial.setup.family,
        "outcome": outcome,
        "why": why,
        "seconds": round(seconds, 2),
    }


def outcome_of(trial: Trial, result: Result) -> tuple[str, str]:
    """Return what became of a case, and why where that is not what it should be."""
    if trial.fault is None:
        if result.findings:
            return FALSE_ALARM, result.findings[0].summary
        if result.verdict is not Verdict.ALIGNED:
            return INCONCLUSIVE, "; ".join(result.outcome.why_inconclusive)
        return ALIGNED, ""
    if result.verdict is not Verdict.DIVERGENT:
        return MISSED, f"the verdict is {result.verdict}"
    fault = _FAULTS[trial.fault]
    mistake = fault.first_mistake(result.first_divergence, trial.layer)
    innocent = fault.innocent(result.findings, trial.layer)
    if mistake or innocent:
        return ELSEWHERE, mistake or f"also blamed: {innocent[0].summary}"
    return EXACT, ""


def other_judges(ref: Tensor, cand: Tensor, dtype: torch.dtype) -> dict[str, bool]:
    """Tell which common thresholds would have called these logits different."""
    x, y = ref.double().flatten(), cand.double().flatten()
    centred_x, centred_y = x - x.mean(), y - y.mean()

    def cosine(a: Tensor, b: Tensor) -> float:
        return float(a @ b / (a.norm() * b.norm()))

    try:
        torch.testing.assert_close(cand.to(dtype), ref.to(dtype))
        differs = False
    except AssertionError:
        differs = True
    return {
        "cosine < 0.99": cosine(x, y) < 0.99,
        "PCC < 0.99": cosine(centred_x, centred_y) < 0.99,
        "relative L2 > 1e-3": float((y - x).norm() / x.norm()) > 1e-3,
        "relative L2 > 1e-2": float((y - x).norm() / x.norm()) > 1e-2,
        "torch.testing": differs,
    }


def show(records: list[Record], console: Console) -> None:
    """Print what became of faults and healthy ports, and what other judges say of them."""
    faulty = [record for record in records if record["fault"] is not None]
    healthy = [record for record in records if record["fault"] is None]
    if faulty:
        _show_faults(faulty, console)
    if healthy:
        _show_healthy(healthy, console)
    _show_thresholds(faulty, healthy, console)
    for record in records:
        if record["outcome"] not in (EXACT, ALIGNED):
            console.print(
                f"{record['outcome']}: {record['label']}: {record['why']}", markup=False, soft_wrap=True
            )


def _show_faults(faulty: list[Record], console: Console) -> None:
    table = Table(title="Planted faults")
    table.add_column("fault", overflow="fold")
    for column in ("cases", EXACT, ELSEWHERE, MISSED, ERROR, "s a case"):
        table.add_column(column, justify="right")
    names: list[Expectation | None] = [*FAULTS, None]
    for fault in names:
        rows = [record for record in faulty if fault is None or record["fault"] == fault.fault]
        if rows:
            counts = Counter(record["outcome"] for record in rows)
            cells = [str(counts[outcome]) for outcome in (EXACT, ELSEWHERE, MISSED, ERROR)]
            name = "all" if fault is None else fault.fault
            table.add_row(name, str(len(rows)), *cells, _seconds(rows), end_section=fault is FAULTS[-1])
    console.print(table)


def _show_healthy(healthy: list[Record], console: Console) -> None:
    table = Table("family", title="Healthy ports")
    for column in ("cases", ALIGNED, FALSE_ALARM, INCONCLUSIVE, ERROR, "s a case"):
        table.add_column(column, justify="right")
    for family in [*KERNELS, "all"]:
        rows = [record for record in healthy if family in (record["family"], "all")]
        if rows:
            counts = Counter(record["outcome"] for record in rows)
            cells = [str(counts[outcome]) for outcome in (ALIGNED, FALSE_ALARM, INCONCLUSIVE, ERROR)]
            table.add_row(family, str(len(rows)), *cells, _seconds(rows))
    console.print(table)


def _show_thresholds(faulty: list[Record], healthy: list[Record], console: Console) -> None:
    judged = [record for record in (*faulty, *healthy) if "thresholds" in record]
    if not judged:
        return
    table = Table("judged by", "faults seen", "healthy ports called different", title="The same runs")
    for name in ("validator", *judged[0]["thresholds"]):
        cells = []
        for rows in (faulty, healthy):
            known = [record for record in rows if "thresholds" in record]
            seen = sum(
                record["outcome"] in (EXACT, ELSEWHERE, FALSE_ALARM)
                if name == "validator"
                else record["thresholds"][name]
                for record in known
            )
            cells.append(f"{seen} of {len(known)}")
        table.add_row(name, *cells)
    console.print(table)


def _seconds(records: Iterable[Record]) -> str:
    return f"{statistics.median(record['seconds'] for record in records):.1f}"


def progress_line(record: Record) -> str:
    """Return what a reader wants to see of a case that has just ended."""
    why = f": {record['why']}" if record["why"] else ""
    return f"{record['outcome']} {record['label']} {record['seconds']:.1f} s{why}"


def read_records(path: Path) -> Iterator[Record]:
    """Yield what is stored; the last line of a killed run may be cut short and is left out."""
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                continue


def append_record(path: Path, record: Record) -> None:
    """Store a case, on a line of its own even after one that was cut short."""
    with path.open("a+", encoding="utf-8") as file:
        if file.tell():
            file.seek(file.tell() - 1)
            if file.read(1) != "\n":
                file.write("\n")
        file.write(json.dumps(record) + "\n")


@contextmanager
def rank_pools() -> Iterator[Callable[[int], RankPool]]:
    """Give the pool of each world size, and end them all."""
    pools: dict[int, RankPool] = {}
    try:
        yield lambda world_size: pools.setdefault(world_size, RankPool(world_size))
    finally:
        for pool in pools.values():
            pool.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
