"""Detection power: every planted fault on its models, and healthy ports of every kind, judged one by one.

    python benchmarks/detection.py [--out FOLDER] [--seeds N] [--jobs N] [--only TEXT] [--markdown FILE]

Each case is appended to `FOLDER/results.jsonl` when it ends, with the version of the code that judged it, and
a case that this version has judged is not run again: interrupt it whenever you like and start it again to go
on. Exit code 0 means that every fault was localised exactly and every healthy port was aligned.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # cases run side by side, and their tensors are small

import torch
from joblib import Parallel, delayed
from rich.console import Console

from benchmarks.rules import broken_rules
from benchmarks.tables import (
    ALIGNED,
    DETECTED,
    ERROR,
    EXACT,
    FALSE_ALARM,
    INCONCLUSIVE,
    MISSED,
    Record,
    as_markdown,
    show,
)
from tests.grid import each_value, fields_of, healthy_grid, pairwise
from tests.models import KERNELS
from tests.parallel import cases as ports
from tests.parallel.cases import PortCase
from tests.parallel.ports import judged
from tests.planted import KINDS, Expectation
from tests.ranks import RankPool
from tests.trials import Trial, judge, logits, trial_of
from tests.variations import VARIATIONS
from validator.checks.findings import Verdict
from validator.report.result import Result

_FAULTS = {fault.fault: fault for faults in KINDS.values() for fault in faults}
_KIND = {fault.fault: kind for kind, faults in KINDS.items() for fault in faults}
_ROOT = Path(__file__).resolve().parents[1]
_JUDGES = (
    "validator/**/*.py",
    "tests/changes.py",
    "tests/families.py",
    "tests/models.py",
    "tests/parallel/*.py",
    "tests/planted/*.py",
    "tests/stimuli.py",
    "tests/trials.py",
    "tests/variations.py",
)
"""The files that decide what a case is and what is said of it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is left, and print the tables."""
    options = _options(arguments)
    trials = [trial for trial in plan(seeds=options.seeds) if options.only in trial.label]
    options.out.mkdir(parents=True, exist_ok=True)
    path, version = options.out / "results.jsonl", code_version()
    stored = {record["label"]: record for record in read_records(path)}
    done = {
        label: record
        for label, record in stored.items()
        if options.any_version or record["version"] == version
    }
    left = [trial for trial in trials if trial.label not in done]
    print(f"{len(trials)} cases, {len(trials) - len(left)} of them in {path} already", file=sys.stderr)
    status = 0
    try:
        for number, record in enumerate(run_all(left, options.jobs), start=1):
            print(f"[{number}/{len(left)}] {_progress_line(record)}", file=sys.stderr, flush=True)
            record["version"] = version
            done[record["label"]] = record
            if record["outcome"] != ERROR:
                append_record(path, record)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        status = 130
    records = [done[trial.label] for trial in trials if trial.label in done]
    show(records, Console())
    if options.markdown is not None:
        options.markdown.write_text(as_markdown(records), encoding="utf-8")
    is_good = len(records) == len(trials) and all(r["outcome"] in (EXACT, ALIGNED) for r in records)
    return status or (0 if is_good else 1)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Judge every planted fault and healthy ports of every kind.")
    parser.add_argument("--out", type=Path, default=Path("build/detection"), help="folder of the results")
    parser.add_argument("--seeds", type=int, default=2, help="seeds of weights and inputs (default 2)")
    parser.add_argument("--jobs", type=int, default=2, help="cases side by side (default 2)")
    parser.add_argument("--only", default="", metavar="TEXT", help="the cases with this in their labels")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file")
    parser.add_argument(
        "--any-version",
        action="store_true",
        help="take results of other versions of the code for done; the tables count them",
    )
    return parser.parse_args(arguments)


Case = Trial | PortCase


def plan(*, seeds: int) -> list[Case]:
    """Return the cases, the most telling first, so that a run that is stopped early has them.

    A selection that holds every setting of each fault comes first, for one seed, then the healthy ports (for
    each family and seed a selection that holds every pair of settings, and the variations), then the faults
    with the other seeds, and then in every pair of settings. Ports that are split over ranks in other ways
    than by a plan come last, each once: what runs on ranks waits for what runs in one process anyway.
    """
    first: list[Trial] = []
    healthy: list[Trial] = []
    each: list[Trial] = []
    pairs: list[Trial] = []
    for seed in range(seeds):
        for fault in _FAULTS.values():
            cases = list(_faulty(fault, seed))
            (each if seed else first).extend(each_value(cases, values=_settings))
            pairs += pairwise(cases, values=_settings)
        for family in KERNELS:
            healthy += [Trial(setup=setup) for setup in pairwise(healthy_grid(family, seed=seed))]
        for variation in VARIATIONS.values():
            healthy += [
                Trial(setup=replace(setup, seed=seed), variation=variation.name) for setup in variation.setups
            ]
    return [*dict.fromkeys((*first, *healthy, *each, *pairs)), *ports.CASES]


def _faulty(fault: Expectation, seed: int) -> Iterator[Trial]:
    layers = fault.layers if fault.has_layer else fault.layers[:1]
    for family, dtype, layer in product(fault.families, fault.dtypes, layers):
        for kernel in KERNELS[family]:
            yield trial_of(fault, layer=layer, family=family, dtype=dtype, cand_kernel=kernel, seed=seed)


def _settings(trial: Trial) -> list[tuple[str, Any]]:
    return [*fields_of(trial.setup), ("layer", trial.layer)]


def code_version() -> str:
    """Return a hash of the code that makes and judges the cases."""
    digest = hashlib.sha256()
    for pattern in _JUDGES:
        for path in sorted(_ROOT.glob(pattern)):
            digest.update(path.relative_to(_ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def run_all(cases: Sequence[Case], jobs: int) -> Iterator[Record]:
    """Yield the records of cases as they end: those of one process side by side, then those on ranks."""
    trials = [case for case in cases if isinstance(case, Trial)]
    alone = [trial for trial in trials if trial.setup.tp == 1]
    with tempfile.TemporaryDirectory(prefix="detection-") as scratch:
        folder = Path(scratch)
        parallel = Parallel(n_jobs=jobs, return_as="generator_unordered")
        yield from parallel(delayed(_run_alone)(trial, folder / str(os.getpid())) for trial in alone)
        with rank_pools() as pool:
            for trial in trials:
                if trial.setup.tp > 1:
                    yield run_case(trial, folder, pool)
            for case in cases:
                if isinstance(case, PortCase):
                    yield run_port(case, folder / case.label, pool)


def _run_alone(trial: Trial, folder: Path) -> Record:
    torch.set_num_threads(1)
    own = folder / f"worker{os.getpid()}"
    own.mkdir(parents=True, exist_ok=True)
    with rank_pools() as pool:
        return run_case(trial, own, pool)


def run_case(trial: Trial, folder: Path, pool: Callable[[int], RankPool]) -> Record:
    """Judge one case and return its record."""
    start = time.monotonic()
    record = {"label": trial.label, "family": trial.setup.family, "kind": _kind(trial), "fault": trial.fault}
    try:
        result = judge(trial, folder, pool)
        seconds = time.monotonic() - start
        ref, cand, control = logits(trial, folder, pool)
        rules = broken_rules(ref=ref, cand=cand, control=control, dtype=getattr(torch, trial.setup.dtype))
    except Exception as error:  # one case's failure must not end a run of an hour
        return record | _failure(error, start)
    return record | _said(result, *outcome_of(trial, result), seconds) | {"rules": rules}


def run_port(case: PortCase, folder: Path, pool: Callable[[int], RankPool]) -> Record:
    """Judge one port that is split over ranks; common rules have no logits of it to look at."""
    start = time.monotonic()
    fault = case.name if case.is_faulty else None
    record = {
        "label": case.label,
        "family": case.port.family,
        "kind": f"{case.kind} parallel ports",
        "fault": fault,
    }
    folder.mkdir(parents=True, exist_ok=True)
    try:
        result = judged(case.port, folder, pool, case.spoil)
    except Exception as error:  # as above
        return record | _failure(error, start)
    outcome, why = _healthy_outcome(result) if fault is None else _faulty_outcome(result, case.mistake)
    return record | _said(result, outcome, why, time.monotonic() - start)


def _failure(error: Exception, start: float) -> Record:
    """Return what is shown of a case that could not be judged, and is tried again."""
    why = f"{type(error).__name__}: {error}"
    return {"outcome": ERROR, "why": why, "seconds": round(time.monotonic() - start, 2)}


def _said(result: Result, outcome: str, why: str, seconds: float) -> Record:
    first = result.first_divergence
    return {
        "outcome": outcome,
        "why": why,
        "seconds": round(seconds, 2),
        "verdict": result.verdict.value,
        "first": None if first is None else first.summary,
        "findings": len(result.findings),
    }


def _kind(trial: Trial) -> str:
    if trial.fault is not None:
        return _KIND[trial.fault]
    return trial.setup.family if trial.variation is None else "variations"


def outcome_of(trial: Trial, result: Result) -> tuple[str, str]:
    """Return what became of a case, and why where that is not what it should be."""
    if trial.fault is None:
        return _healthy_outcome(result)
    expected = _FAULTS[trial.fault]
    return _faulty_outcome(result, lambda result: expected.mistake(result, trial.layer))


def _healthy_outcome(result: Result) -> tuple[str, str]:
    if result.findings:
        return FALSE_ALARM, result.findings[0].summary
    if result.verdict is not Verdict.ALIGNED:
        return INCONCLUSIVE, "; ".join(result.outcome.why_inconclusive)
    return ALIGNED, ""


def _faulty_outcome(result: Result, mistake_of: Callable[[Result], str]) -> tuple[str, str]:
    if result.verdict not in (Verdict.DIVERGENT, Verdict.UNDECLARED_PRECISION):
        return MISSED, f"the verdict is {result.verdict}"
    mistake = mistake_of(result)
    return (DETECTED, mistake) if mistake else (EXACT, "")


def _progress_line(record: Record) -> str:
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
    with ExitStack() as stack:
        pools: dict[int, RankPool] = {}

        def pool(world_size: int) -> RankPool:
            if world_size not in pools:
                pools[world_size] = RankPool(world_size)
                stack.callback(pools[world_size].close)
            return pools[world_size]

        yield pool


if __name__ == "__main__":
    sys.exit(main())
