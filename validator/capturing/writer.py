"""The thread that writes a rank's capture file, and the queue that feeds it.

The run waits only when the queue is full. What fails in the thread is raised in the run, at the next
thing that it records.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .copies import HostCopy, Layout
from .levels import Level
from .store import CaptureFile

__all__ = ["CaptureWriter"]

_QUEUE_BYTES = 512 << 20
_COMMIT_BYTES = 64 << 20


class CaptureWriter:
    """Writes one rank's file in a thread of its own.

    Args:
        path: the file; what it held is replaced.
        rank: this rank.
        world_size: number of ranks of the run.
        capture_id: the same in all files of a capture, and in no other's.
        flush_interval_s: seconds between flushes: about so much a killed run can lose.
        queue_bytes: values that may wait before the run does.
        level: how much of each tensor is kept.

    Attributes:
        values: tensors recorded so far.
    """

    def __init__(
        self,
        path: Path,
        *,
        rank: int,
        world_size: int,
        capture_id: str = "",
        flush_interval_s: float,
        queue_bytes: int = _QUEUE_BYTES,
        level: Level = Level.FULL,
    ) -> None:
        self.values = 0
        self._file = CaptureFile(path, rank=rank, world_size=world_size, capture_id=capture_id, level=level)
        self._flush_interval_s = flush_interval_s
        self._queue_bytes = queue_bytes
        self._jobs: deque[tuple[int, Callable[[], None]]] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._stopping = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name=f"capture-writer-{rank}", daemon=True)
        self._thread.start()

    def append(self, table: str, *row: Any) -> None:
        """Add a row to a table of `schema.TABLES`.

        Raises:
            CaptureError: an earlier write failed. So do the other methods.
        """
        self._put(0, lambda: self._file.add_row(table, row))

    def put(self, edge: str, row: int, value: HostCopy) -> None:
        """Add a tensor to the edge whose group is at the path `edge`."""
        self.values += 1
        self._put(value.size_bytes, lambda: self._file.add_value(edge, row, value.wait(), value.layout))

    def wait_for_room(self, waiting_bytes: int) -> None:
        """Wait until at most so much is waiting to be written."""
        with self._changed:
            while self._waiting_bytes > waiting_bytes and self._error is None:
                self._changed.wait()
            self._raise_error()

    def put_hashes(
        self, edge: str, row: int, dtype: str, layout: Layout, digest: str, hashes: tuple[str, ...]
    ) -> None:
        """Add a value that is known by the hash of each of its rows alone."""
        self.values += 1
        self._put(0, lambda: self._file.add_hashes(edge, row, dtype, layout, digest, hashes))

    def flush(self) -> None:
        """Wait until all that was recorded is in the file."""
        done = threading.Event()

        def commit() -> None:
            self._file.commit()
            done.set()

        self._put(0, commit)
        while not done.wait(0.05):
            self._raise_error()

    def finish(self, *, manifest: str | None = None) -> None:
        """Write what waits, mark the file as complete and close it."""
        self._stop()
        try:
            self._raise_error()
            self._file.finish(manifest=manifest)
        except Exception as error:
            self._file.abandon(str(error))
            raise

    def abandon(self, failure: str) -> None:
        """Write what waits, if that is possible, and close the file as incomplete, with the reason."""
        self._stop()
        self._file.abandon(str(self._error or failure))

    def _put(self, size_bytes: int, job: Callable[[], None]) -> None:
        with self._changed:
            room = self._queue_bytes - size_bytes
            while self._waiting_bytes > max(0, room) and self._error is None:
                self._changed.wait()
            self._raise_error()
            self._jobs.append((size_bytes, job))
            self._waiting_bytes += size_bytes
            self._changed.notify_all()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    @torch.no_grad()
    def _work(self) -> None:
        committed = time.monotonic()
        try:
            while True:
                due = committed + self._flush_interval_s
                job = self._next(due)
                if job is not None:
                    job()
                elif self._stopping:
                    break
                if time.monotonic() >= due or self._file.pending_bytes >= _COMMIT_BYTES:
                    if self._file.pending_bytes:
                        self._file.commit()
                    committed = time.monotonic()
            self._file.commit()
        except Exception as error:
            with self._changed:
                self._error = error
                self._jobs.clear()
                self._changed.notify_all()

    def _next(self, due: float) -> Callable[[], None] | None:
        with self._changed:
            while not self._jobs and not self._stopping:
                left = due - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)
            if not self._jobs:
                return None
            size_bytes, job = self._jobs.popleft()
            self._waiting_bytes -= size_bytes
            self._changed.notify_all()
            return job
