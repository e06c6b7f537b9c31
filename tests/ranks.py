"""Ranks that outlive a test: one process group for each world size, shared by the whole session.

A test sends a function to all ranks: `rank_pool(2).run(function, *arguments)` calls
`function(rank, world_size, *arguments)` on both, gloo ready, and returns their results in rank order.
`pool_fixture` is the fixture `rank_pool`; a conftest that imports it makes it available.
"""

import multiprocessing
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

# Once one rank has raised, the others may be waiting for it for ever.
AFTER_FIRST_ERROR_S = 3.0


class JobError(Exception):
    """A job raised on some ranks (`errors`), or some did not answer (`missing`)."""

    def __init__(self, message: str, *, errors: dict[int, Exception], missing: list[int]) -> None:
        super().__init__(message)
        self.errors = errors
        self.missing = missing


class RankPool:
    """Processes with one gloo group, started at first use and again after a job that did not end."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []

    def run(self, function: Callable[..., Any], *args: Any, timeout_s: float = 120) -> list[Any]:
        """Call `function(rank, world_size, *args)` on every rank and return the results in rank order."""
        if not all(process.is_alive() for process in self._processes):
            self.close()
        if not self._processes:
            self._start()
        job = pickle.dumps((function, args))
        for pipe in self._pipes:
            pipe.send((sys.path, job))
        answers = self._answers(timeout_s)
        missing = [rank for rank in range(self.world_size) if rank not in answers]
        errors = {rank: error for rank, (error, _, _) in sorted(answers.items()) if error is not None}
        if missing:
            self.close()
        if missing or errors:
            lines = [f"rank {rank}: {answers[rank][2]}" for rank in errors]
            lines += [f"rank {rank}: died or did not answer" for rank in missing]
            raise JobError("\n".join(lines), errors=errors, missing=missing)
        return [answers[rank][1] for rank in range(self.world_size)]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.kill()
            process.join()
        if self._processes:
            self._folder.cleanup()
        self._processes, self._pipes = [], []

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="rank-pool-")
        store = Path(self._folder.name) / "store"
        for rank in range(self.world_size):
            here, there = context.Pipe()
            # A daemon: it ends with the session, however the session ends.
            process = context.Process(target=_serve, args=(rank, self.world_size, store, there), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def _answers(self, timeout_s: float) -> dict[int, tuple[Exception | None, Any, str]]:
        answers: dict[int, tuple[Exception | None, Any, str]] = {}
        waiting = dict(zip(self._pipes, range(self.world_size), strict=True))
        deadline = time.monotonic() + timeout_s
        while waiting and (left_s := deadline - time.monotonic()) > 0:
            for pipe in wait(list(waiting), timeout=left_s):
                rank = waiting.pop(pipe)
                try:
                    answers[rank] = pipe.recv()
                except EOFError:
                    failed = True
                else:
                    failed = answers[rank][0] is not None
                if failed:
                    deadline = min(deadline, time.monotonic() + AFTER_FIRST_ERROR_S)
        return answers


@pytest.fixture(scope="session", name="rank_pool")
def pool_fixture() -> Iterator[Callable[[int], RankPool]]:
    """Give the session's pool of a world size."""
    pools: dict[int, RankPool] = {}

    def pool(world_size: int) -> RankPool:
        if world_size not in pools:
            pools[world_size] = RankPool(world_size)
        return pools[world_size]

    yield pool
    for started in pools.values():
        started.close()


def _serve(rank: int, world_size: int, store: Path, pipe: Connection) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    while True:
        try:
            sys.path[:], job = pipe.recv()
        except EOFError:
            return
        try:
            function, args = pickle.loads(job)
            answer = pickle.dumps((None, function(rank, world_size, *args), ""))
        except Exception as error:
            text = traceback.format_exc()
            try:
                answer = pickle.dumps((error, None, text))
                pickle.loads(answer)
            except Exception:
                answer = pickle.dumps((RuntimeError(repr(error)), None, text))
        pipe.send_bytes(answer)
