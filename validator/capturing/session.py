"""Capture a run: around a `with` block, or twice over with the proof that looking changed nothing."""

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypedDict, Unpack

import torch
from torch import nn

from validator.errors import CaptureError

from .hosts import exchange
from .levels import Level
from .manifest import Proof, ProofStatus
from .noise import NoiseSource
from .place import Place
from .proof import RandomState, copy_outputs, judge, repeat, same_bits
from .recording import CaptureSummary, Recording
from .selection import Selection

__all__ = [
    "FLUSH_INTERVAL_S",
    "PARAMETER_LIMIT_BYTES",
    "CaptureOptions",
    "CaptureSummary",
    "capture",
    "capture_run",
    "level_named",
]

PARAMETER_LIMIT_BYTES = 1 << 30
THIN_PARAMETER_LIMIT_BYTES = 64 << 10
"""Where little is kept of activations, the hashes of a parameter's rows do as well."""
FLUSH_INTERVAL_S = 1.0

_Globs = str | Sequence[str] | None


class CaptureOptions(TypedDict, total=False):
    """Keyword options of `capture`, which explains them."""

    include: _Globs
    exclude: _Globs
    ranks: Collection[int] | None
    calls: Collection[int] | None
    operators: _Globs
    level: str
    overwrite: bool
    recipe: str | None
    planted: str | None
    inputs: Mapping[str, Any] | None
    parameter_limit_bytes: int | None
    flush_interval_s: float


@contextlib.contextmanager
def capture(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    include: _Globs = None,
    exclude: _Globs = None,
    ranks: Collection[int] | None = None,
    calls: Collection[int] | None = None,
    operators: _Globs = None,
    level: str = Level.FULL,
    overwrite: bool = False,
    recipe: str | None = None,
    planted: str | None = None,
    inputs: Mapping[str, Any] | None = None,
    parameter_limit_bytes: int | None = None,
    flush_interval_s: float = FLUSH_INTERVAL_S,
) -> Iterator[None]:
    """Capture what a model computes inside the `with` block.

    The block can't be run again without hooks, so the capture records that the proof was skipped:
    `capture_run` gives it. In an initialised process group every rank must enter.

    Args:
        model: the model whose modules are hooked. Hooks are off again after the block, however it ends.
        path: a name that ends in `.h5` is one file, for one rank; any other is a folder with a file a rank.
        include: globs of module names to record, `*` matches dots too; default all.
        exclude: globs of module names to leave out.
        ranks: ranks to record; default all.
        calls: numbers of each module's calls to record, such as `range(2)`; default all.
        operators: globs of recorded modules whose aten operators are recorded as well, with their results;
            default none.
        level: how much of each tensor is kept: `full`, `sample` (about 1%, the same elements on every side;
            small tensors are whole) or `stats` (statistics and a checksum). Integers are whole anyway.
        overwrite: replace a capture of this name, once the new one is complete.
        recipe: name of the rounding recipe that the run declares.
        planted: what a report must say of a fault that was planted in the model.
        inputs: described in the metadata; default what enters the first call.
        parameter_limit_bytes: of larger parameters a hash per row is stored instead of values; default 1 GiB,
            below level `full` 64 KiB.
        flush_interval_s: a killed run loses what it recorded in about its last so many seconds.

    Raises:
        CaptureError: the path is taken, the disk is full, or a pattern matches no module that fired. What was
            recorded by then is left in `NAME.partial`.
    """
    recording = _recording(
        model,
        path,
        {
            "include": include,
            "exclude": exclude,
            "ranks": ranks,
            "calls": calls,
            "operators": operators,
            "level": level,
            "overwrite": overwrite,
            "recipe": recipe,
            "planted": planted,
            "inputs": inputs,
            "parameter_limit_bytes": parameter_limit_bytes,
            "flush_interval_s": flush_interval_s,
        },
    )
    with recording:
        yield
    recording.finish(
        Proof(status=ProofStatus.SKIPPED, reason="the run was captured in a with block and not repeated")
    )


def capture_run(
    run: Callable[[], Any],
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    proof: bool = True,
    noise: NoiseSource | None = None,
    **options: Unpack[CaptureOptions],
) -> CaptureSummary:
    """Capture a run, and prove that the hooks did not change its outputs.

    It runs once without hooks and once with them, from the same random state and without autograd. If the
    outputs differ it runs twice more without hooks, to learn the run's own spread. In an initialised process
    group every rank must call this.

    Args:
        run: the whole run; its return value holds the output tensors that are compared.
        model: the model whose modules are hooked.
        path: as for `capture`.
        proof: run without hooks too; otherwise the capture records that the proof was skipped.
        noise: measures the noise of what was recorded, on a run of one rank; None for a capture without.
        **options: as for `capture`.

    Returns:
        What was captured, with the proof of the worst rank. A run that the hooks changed is no error here.

    Raises:
        CaptureError: as for `capture`.
    """
    recording = _recording(model, path, options)
    with torch.no_grad():
        if not proof:
            with recording:
                run()
            if noise is not None:
                recording.add_noise(noise)
            skipped = Proof(status=ProofStatus.SKIPPED, reason="the proof was not asked for")
            return recording.finish(skipped)
        state = RandomState.now()
        plain = [copy_outputs(run())]
        state.restore()
        with recording:
            hooked = copy_outputs(run())
        with recording.abandoned_on_error():
            # All ranks repeat if one must: their collectives wait for each other.
            if any(exchange(not same_bits(hooked, plain[0]))):
                plain += [repeat(run, state) for _ in range(2)]
            judged = judge(hooked=hooked, plain=plain)
        if noise is not None:
            recording.add_noise(noise)
        return recording.finish(judged)


def _recording(model: nn.Module, path: str | os.PathLike[str], options: CaptureOptions) -> Recording:
    level = level_named(options.get("level", Level.FULL))
    return Recording(
        model,
        Place(path, overwrite=options.get("overwrite", False)),
        Selection.of(
            include=options.get("include"),
            exclude=options.get("exclude"),
            calls=options.get("calls"),
            ranks=options.get("ranks"),
            operators=options.get("operators"),
        ),
        recipe=options.get("recipe"),
        planted=options.get("planted"),
        inputs=options.get("inputs"),
        parameter_limit_bytes=_parameter_limit(level, options.get("parameter_limit_bytes")),
        level=level,
        flush_interval_s=options.get("flush_interval_s", FLUSH_INTERVAL_S),
    )


def level_named(name: str) -> Level:
    """Return the level that `--level` names.

    Raises:
        CaptureError: there is no such level.
    """
    try:
        return Level(name)
    except ValueError:
        known = ", ".join(Level)
        raise CaptureError(f"level {name!r} is not known; there are {known}") from None


def _parameter_limit(level: Level, limit_bytes: int | None) -> int:
    if limit_bytes is not None:
        return limit_bytes
    return PARAMETER_LIMIT_BYTES if level is Level.FULL else THIN_PARAMETER_LIMIT_BYTES
