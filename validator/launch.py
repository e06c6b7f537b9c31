"""Run a function on several ranks of this machine, and say in one message what went wrong on which.

torch's elastic launcher starts, watches and ends the processes. What is added here: the process
group, one time limit with where each rank was when it passed, and one error, the cause rather than
its echoes on other ranks. What ranks print is kept aside and quoted when a rank dies without an error.
"""

import contextlib
import faulthandler
import logging
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from validator.errors import LaunchError, UsageError
from validator.rank_errors import cause, time_limit_error, trace_file, write_report

__all__ = ["device_count", "init_process_group", "launch", "require_devices"]

# A rank that lost a peer waits this long before it fails, so that the launcher sees the peer's end first.
_AFTER_LOST_PEER_S = 1.0
# How long after the time limit the ranks are killed: they write where they are in between.
_AFTER_TIME_LIMIT_S = 1.0


def launch(
    entry: Callable[..., None],
    args: tuple[Any, ...],
    *,
    nproc: int,
    timeout_s: float | None,
    device: str = "cpu",
) -> None:
    """Call `entry(rank, world_size, *args)` in `nproc` new processes, each with its process group ready.

    Args:
        entry: function that a new process can import; it sees the environment that `torchrun` sets.
        args: picklable arguments.
        nproc: number of ranks, 1 or more.
        timeout_s: seconds that the ranks may take together, their start included, or None for no limit.
        device: torch device type whose backend the group has, beside gloo for CPU tensors.

    Raises:
        LaunchError: a rank raised, died, or had not finished in time; the other ranks are ended.
        ValidatorError: a rank raised it: same class, same message, after the rank's number.
        UsageError: there are not `nproc` such devices.
    """
    require_devices(nproc, device)
    interrupted: signal.Signals | None = None
    with (
        tempfile.TemporaryDirectory(prefix="validator-ranks-") as name,
        _quiet(),
        _environment(nproc),
        _signals(),
    ):
        folder = Path(name)
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=nproc,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            rdzv_configs={"is_host": True},
            local_addr="127.0.0.1",
            max_restarts=0,
            monitor_interval=0.1,
            start_method="spawn",
            # Ctrl-C is left to Python, whose KeyboardInterrupt ends the ranks as well.
            signals_to_handle="SIGTERM,SIGHUP",
            shutdown_timeout=5,
            logs_specs=DefaultLogsSpecs(log_dir=name, redirects=Std.ALL),
        )
        deadline = None if timeout_s is None else time.time() + timeout_s
        job = _Job(entry=entry, args=args, folder=folder, deadline=deadline, device=device)
        with _killed_after(timeout_s) as expired:
            try:
                elastic_launch(config, _run_rank)(job)
            except ChildFailedError as error:
                if timeout_s is not None and expired.is_set():
                    raise time_limit_error(folder, nproc=nproc, timeout_s=timeout_s) from None
                rank, failure = error.get_first_failure()
                raise cause(folder, rank=rank, exitcode=failure.exitcode) from None
            except SignalException as error:
                interrupted = signal.Signals(error.sigval)
    if interrupted is not None:
        signal.raise_signal(interrupted)
        raise LaunchError(f"the ranks were ended: this process received {interrupted.name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What every rank is sent."""

    entry: Callable[..., None]
    args: tuple[Any, ...]
    folder: Path
    deadline: float | None
    device: str


def _run_rank(job: _Job) -> None:
    """Be one rank: the process's main function."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # Python's own handler would not run while a collective blocks in C++.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with trace_file(job.folder, rank).open("w") as trace:
        print(threading.get_ident(), file=trace, flush=True)
        if job.deadline is not None:
            limit_s = max(job.deadline - time.time(), 0.01)
            faulthandler.dump_traceback_later(limit_s, file=trace)
        try:
            init_process_group(job.device)
            job.entry(rank, world_size, *job.args)
            if dist.is_initialized():
                # A rank that leaves early would look lost to those that still communicate.
                dist.barrier()
                dist.destroy_process_group()
        except BaseException as error:
            if write_report(job.folder, rank, error).lost_peer:
                time.sleep(_AFTER_LOST_PEER_S)
            raise SystemExit(1) from error
        faulthandler.cancel_dump_traceback_later()
        print("finished", file=trace)


def init_process_group(device: str) -> None:
    """Join the process group that the environment describes, and take this rank's device.

    Args:
        device: torch device type whose backend the group has, beside gloo for CPU tensors.
    """
    kind = torch.device(device).type
    if kind == "cpu":
        dist.init_process_group("gloo")
        return
    torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(f"cpu:gloo,{kind}:{dist.get_default_backend_for_device(kind)}")


def device_count(device: str) -> int | None:
    """Return how many devices of a kind this machine has; None for the CPU, where any number of ranks runs.

    Raises:
        UsageError: torch knows no such device.
    """
    try:
        kind = torch.device(device).type
        return None if kind == "cpu" else int(torch.get_device_module(kind).device_count())
    except (RuntimeError, AttributeError):  # kinds such as meta have no module
        raise UsageError(f"--device {device!r} is no device that torch knows; try cpu or cuda") from None


def require_devices(nproc: int, device: str, *, asked: str = "--nproc") -> None:
    """Refuse more ranks than there are devices.

    Args:
        nproc: number of ranks.
        device: torch device, or its type.
        asked: the option that asks for so many.

    Raises:
        UsageError: there are fewer, none, or it is no number of ranks.
    """
    if nproc < 1:
        raise UsageError(f"{asked} is {nproc}; it must be 1 or more")
    count = device_count(device)
    if count is not None and count < nproc:
        kind = torch.device(device).type
        raise UsageError(
            f"{asked} {nproc} with --device {kind} needs {nproc} such devices; this machine has {count}"
        )


@contextlib.contextmanager
def _killed_after(timeout_s: float | None) -> Iterator[threading.Event]:
    """Kill the processes started inside once the limit has passed; the event says that it was done."""
    before = set(multiprocessing.active_children())
    expired = threading.Event()

    def kill() -> None:
        expired.set()
        for process in multiprocessing.active_children():
            if process not in before:
                process.kill()

    timer = None if timeout_s is None else threading.Timer(timeout_s + _AFTER_TIME_LIMIT_S, kill)
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield expired
    finally:
        if timer is not None:
            timer.cancel()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the launcher's log off the terminal: what it says of a failure is said by our one error."""
    names = ("torch.distributed.elastic", "torch.distributed.launcher", "torch.multiprocessing")
    loggers = [logging.getLogger(name) for name in (*names, "torchelastic-events-null")]
    silence = logging.NullHandler()
    saved = [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.propagate = False
        logger.addHandler(silence)
    try:
        yield
    finally:
        for logger, propagate in zip(loggers, saved, strict=True):
            logger.propagate = propagate
            logger.removeHandler(silence)


@contextlib.contextmanager
def _environment(nproc: int) -> Iterator[None]:
    """Set what the ranks inherit where the user has not, and put this process's environment back."""
    saved = dict(os.environ)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // nproc)))
    # All ranks are on this machine: the loopback interface works even where the host's name doesn't resolve.
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    if loopback is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    try:
        yield
    finally:
        for name in os.environ.keys() - saved.keys():
            del os.environ[name]
        os.environ.update(saved)


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Put the signal handlers back that the launcher replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
