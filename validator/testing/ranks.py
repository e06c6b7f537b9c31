"""Call a function on ranks of this machine and bring back what it returns."""

import importlib.machinery
import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any
from uuid import uuid4

from validator.errors import LaunchError, UsageError
from validator.launch import launch

__all__ = ["alone", "on_ranks"]


def on_ranks(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    nproc: int,
    device: str | None,
    folder: Path,
    timeout_s: float | None = None,
) -> list[Any]:
    """Call `function(rank, world_size, *args)` on ranks and return what it returned, rank by rank.

    Args:
        function: of a module that new processes can import.
        args: picklable.
        nproc: number of ranks. A single one is this process, without a process group; more are new
            processes, each with its process group ready.
        device: whose backend the process group has; None is the CPU's.
        folder: for what the ranks return.
        timeout_s: seconds that the ranks may take, or None for no limit.

    Raises:
        UsageError: the function can't be imported elsewhere, or the arguments can't be sent there.
        ValidatorError: a rank failed.
    """
    if nproc == 1:
        return [function(0, 1, *args)]
    _check_importable(function)
    try:
        pickle.dumps((function, args))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(
            f"{_name(function)} and its arguments can't be sent to other processes: {error}"
        ) from None
    results = folder / f"ranks-{uuid4().hex[:8]}"
    results.mkdir(parents=True)
    kind = (device or "cpu").partition(":")[0]
    launch(_on_rank, (function, args, results), nproc=nproc, timeout_s=timeout_s, device=kind)
    return [pickle.loads((results / f"{rank}.pickle").read_bytes()) for rank in range(nproc)]


def alone(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call `function(*args)` in a new process without a process group, and return what it returned.

    Args:
        function: of a module that new processes can import.
        args: picklable, as is what it returns.

    Raises:
        LaunchError: the process died.
        ValidatorError: the function raised it.
    """
    _check_importable(function)
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(function, *args).result()
        except BrokenProcessPool:
            raise LaunchError(
                f"the process that ran {_name(function)} died, as one does that runs out of memory"
            ) from None


def _on_rank(
    rank: int, world_size: int, function: Callable[..., Any], args: tuple[Any, ...], results: Path
) -> None:
    returned = function(rank, world_size, *args)
    try:
        (results / f"{rank}.pickle").write_bytes(pickle.dumps(returned))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise LaunchError(f"what {_name(function)} returned can't be sent back: {error}") from None


def _check_importable(function: Callable[..., Any]) -> None:
    """Refuse a function of a test module that pytest imported by its path: new processes don't find it."""
    package = function.__module__.partition(".")[0]
    if package != "__main__" and importlib.machinery.PathFinder.find_spec(package) is None:
        raise UsageError(
            f"{_name(function)} can't be imported by the ranks, which are new processes: {package} is not on "
            "their path. Move it to a module of a package that is installed"
        )


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"
