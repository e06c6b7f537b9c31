"""What went wrong on which rank, told from the files that ranks leave in the folder of their run.

A rank that raises writes a report. When the time limit passes, each rank writes its stack into its
trace file (its first line names the main thread; its last is `finished` once the rank is done).
"""

import json
import re
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from validator import errors
from validator.errors import LaunchError, ValidatorError
from validator.frames import Frame, frames_in_dump, innermost_user_frame, where

__all__ = ["RankReport", "cause", "time_limit_error", "trace_file", "write_report"]

# What gloo, NCCL and the store say on a rank whose peer is gone.
_LOST_PEER = re.compile(
    r"connection (was )?(closed|reset|aborted|refused)|broken pipe|socket (was )?closed|failed to recv"
    r"|remote process exited|ncclRemoteError|no error queue|store.*(closed|not available)",
    re.IGNORECASE,
)


def write_report(folder: Path, rank: int, error: BaseException) -> "RankReport":
    """Write the report of a rank that `error` ended, whole or not at all, and return it."""
    place = where(error)
    report = RankReport(
        rank=rank,
        time=time.time(),
        kind=type(error).__name__,
        message=str(error),
        where=None if place is None else str(place),
        lost_peer=any(_LOST_PEER.search(str(link)) for link in _chain(error)),
    )
    unfinished = folder / f"rank{rank}.unfinished"
    unfinished.write_text(json.dumps(asdict(report)))
    unfinished.rename(_report_file(folder, rank))
    return report


def cause(folder: Path, *, rank: int, exitcode: int) -> ValidatorError:
    """Return the error that ended a run, told from those that it set off on other ranks.

    Args:
        folder: of the run.
        rank: the first rank that was seen to fail.
        exitcode: that rank's, negative for a signal.
    """
    if not _report_file(folder, rank).exists():
        return _death(folder, rank, exitcode)
    reports = [RankReport(**json.loads(file.read_text())) for file in folder.glob("rank*.json")]
    return min(reports, key=lambda report: (report.lost_peer, report.time)).error


def time_limit_error(folder: Path, *, nproc: int, timeout_s: float) -> LaunchError:
    """Return the error of a run whose time limit passed, with where each rank was."""
    places = "; ".join(f"rank {rank}: {_place(trace_file(folder, rank))}" for rank in range(nproc))
    return LaunchError(
        f"the ranks had not finished after {timeout_s:g} s and were ended. {places}. "
        "If nothing hangs and the model is only slow, raise --timeout."
    )


def trace_file(folder: Path, rank: int) -> Path:
    """Return the path of a rank's trace file."""
    return folder / f"rank{rank}.trace"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """What a rank writes of the error that ended it.

    Attributes:
        time: when, in seconds since the epoch.
        kind: name of the error's class.
        where: the line that failed, as `str(Frame)`.
        lost_peer: whether the error only says that another rank is gone.
    """

    rank: int
    time: float
    kind: str
    message: str
    where: str | None
    lost_peer: bool

    @property
    def error(self) -> ValidatorError:
        """The error to show: of the rank's own class where that is a `ValidatorError`."""
        kind = getattr(errors, self.kind, None)
        if isinstance(kind, type) and issubclass(kind, ValidatorError):
            return kind(f"rank {self.rank}: {self.message}")
        place = f" ({self.where})" if self.where else ""
        return LaunchError(f"rank {self.rank} raised {self.kind}: {self.message}{place}")


def _chain(error: BaseException) -> list[BaseException]:
    """Return `error` and the errors that it was raised from or while handling."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    return chain


def _death(folder: Path, rank: int, exitcode: int) -> LaunchError:
    if exitcode < 0:
        try:
            name = signal.Signals(-exitcode).name
        except ValueError:
            name = "unknown"
        message = f"rank {rank} was killed by signal {-exitcode} ({name})"
        if -exitcode == signal.SIGKILL:
            message += "; if nobody sent it, the system ran out of memory: see its log (dmesg)"
    else:
        message = f"rank {rank} died with exit code {exitcode}, without an error"
    log = "".join(file.read_text(errors="replace") for file in folder.glob(f"*/attempt_*/{rank}/stderr.log"))
    place = innermost_user_frame(frames_in_dump(log))
    if place is not None:
        message += f", in {place}"
    elif log.strip():
        message += "; it last wrote:\n" + "\n".join(f"  {line}" for line in log.strip().splitlines()[-3:])
    return LaunchError(message)


def _place(trace_file: Path) -> str:
    """Say where a rank was, from what it wrote when the time limit passed."""
    trace = trace_file.read_text() if trace_file.exists() else ""
    if not trace:
        return "not started"
    if trace.endswith("finished\n"):
        return "finished"
    frames = frames_in_dump(trace, thread=int(trace.split(maxsplit=1)[0]))
    user = innermost_user_frame(frames)
    collective = next((frame for frame in reversed(frames) if _is_collective(frame)), None)
    if collective is not None and (user is None or frames.index(collective) > frames.index(user)):
        return str(collective) + (f", called from {user}" if user else "")
    if user is not None:
        return str(user)
    return str(frames[-1]) if frames else "unknown: it wrote no stack"


def _is_collective(frame: Frame) -> bool:
    path = Path(frame.file).as_posix()
    return "/torch/distributed/" in path and "/elastic/" not in path and not path.endswith("c10d_logger.py")


def _report_file(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.json"
