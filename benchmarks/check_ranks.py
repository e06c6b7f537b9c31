"""How long `validator.check` takes for a candidate on 4 ranks beside the same one on 1, capture aside.

    python benchmarks/check_ranks.py [--family NAME] [--ranks N ...] [--repeat N]

A shipped model in bfloat16, sharded by transformers' own tensor-parallel plan. The captures are made first;
then checks of all of them take turns, and each time is the least of several rounds. The reference runs
within each check, on every side alike.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import validator
from tests.models import TRAINED, Setup, checkpoint, inputs, load_candidate, load_reference
from tests.ranks import RankPool
from validator.capturing.session import capture_run
from validator.runs import copied

ALLOWED = 1.5


def main() -> int:
    """Print a row for each number of ranks. Exit code 1 where one costs more than is allowed."""
    parser = argparse.ArgumentParser(description="Time checks of captures of one rank and of several.")
    parser.add_argument("--family", choices=TRAINED, default=TRAINED[0], help="a model that ships")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="beside 1 (default 2 4)")
    parser.add_argument("--repeat", type=int, default=3, help="rounds (default 3)")
    options = parser.parse_args()
    worlds = [1, *options.ranks]
    with tempfile.TemporaryDirectory(prefix="check-ranks-") as name:
        folder = Path(name)
        captures = {world: _captured(options.family, world, folder) for world in worlds}
        times: dict[int, list[float]] = {world: [] for world in worlds}
        for _ in range(options.repeat):
            for world in worlds:
                times[world].append(_timed(options.family, captures[world]))
    least = {world: min(of_world) for world, of_world in times.items()}
    table = Table("ranks", "check, s", "ratio", title=f"{options.family} in bfloat16")
    for world in worlds:
        table.add_row(str(world), f"{least[world]:.2f}", f"{least[world] / least[1]:.2f}")
    Console().print(table, f"allowed is a ratio of {ALLOWED}")
    return int(any(seconds > ALLOWED * least[1] for seconds in least.values()))


def _captured(family: str, world: int, folder: Path) -> Path:
    output = folder / f"ranks{world}"
    pool = RankPool(world)
    try:
        pool.run(_capture, family, output)
    finally:
        pool.close()
    return output


def _capture(rank: int, world_size: int, family: str, output: Path) -> None:
    torch.set_num_threads(1)
    setup = Setup(family=family, tp=world_size)
    given = inputs(setup)
    model = load_candidate(setup, checkpoint(setup, output.parent))
    capture_run(lambda: model(**copied(given)), model, output, inputs=given)


def _timed(family: str, captured: Path) -> float:
    setup = Setup(family=family)
    reference = load_reference(setup, checkpoint(setup, captured.parent))
    start = time.perf_counter()
    result = validator.check(reference=reference, candidate=captured)
    seconds = time.perf_counter() - start
    if result.verdict != "aligned":
        raise RuntimeError(f"{captured.name} is {result.verdict}: what is timed is a healthy run's check")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
