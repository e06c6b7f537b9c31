"""Which module a long run first goes wrong in: its steps, as far as the first wrong position, are checked."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from validator.capturing.reader import open_capture
from validator.capturing.session import capture_run
from validator.errors import ValidatorError
from validator.judging import judged
from validator.long_context.calling import cache_argument, configured_cache, device_of, stepped
from validator.long_context.driving import Drive
from validator.long_context.observing import LongRun
from validator.report import facts
from validator.testing.ranks import on_ranks

__all__ = ["Culprit", "localised"]

_MOST_TOKENS = 1024
"""A check captures everything: of longer runs the module is not looked for."""
_BEHIND = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """Who is to blame.

    Attributes:
        module: in the reference's names.
        rank: or None where all are alike.
        summary: what the check found.
    """

    module: str
    rank: int | None
    summary: str


def localised(
    run: LongRun, drive: Drive, build: Callable[[], nn.Module], *, until: int, folder: Path
) -> Culprit | None:
    """Check a run step by step, on its own tokens, up to a position; None where nothing is found.

    Args:
        run: what was run.
        drive: the run.
        build: builds the reference.
        until: the first wrong position.
        folder: for what the ranks return.
    """
    stop = min(until + 1 + _BEHIND, len(drive.tokens))
    if stop > _MOST_TOKENS:
        return None
    sizes = []
    for start, size in zip(drive.schedule.starts, drive.schedule.sizes, strict=True):
        if start < stop:
            sizes.append(min(size, stop - start))
    with tempfile.TemporaryDirectory(dir=folder) as name:
        paths = {side: Path(name) / side for side in ("reference.h5", "candidate")}
        try:
            on_ranks(
                _capture,
                (run, drive.tokens[:stop], tuple(sizes), paths["candidate"]),
                nproc=run.nproc,
                device=run.device,
                folder=folder,
            )
            reference = build()

            def feed(model: nn.Module) -> list[Tensor]:
                return replayed(model, drive.tokens[:stop], sizes)

            capture_run(lambda: feed(reference), reference, paths["reference.h5"], proof=False)
            target = run.load()
            result = judged(
                reference=reference,
                ref=open_capture(paths["reference.h5"]),
                cand=open_capture(paths["candidate"]),
                run=feed,
                recipe=run.declared(target),
                names=target.names,
                layout=target.layout,
                mesh=target.mesh,
                about={},
                progress=lambda stage, done, total: None,
            )
        except ValidatorError:
            return None
    found = facts.first_divergence(result.outcome)
    return None if found is None else Culprit(module=found.module, rank=found.rank, summary=found.summary)


def replayed(model: nn.Module, tokens: Tensor, sizes: list[int] | tuple[int, ...]) -> list[Tensor]:
    """Feed `[T]` tokens to a model in pieces of these sizes, and return the logits that this rank has."""
    argument = cache_argument(model)
    cache = None if argument is None else configured_cache(model, len(tokens))
    made = []
    for piece in torch.split(tokens, list(sizes)):
        logits, cache = stepped(model, piece[None].to(device_of(model)), cache=cache, argument=argument)
        made += [logits] if isinstance(logits, Tensor) else []
    return made


def _capture(
    rank: int, world_size: int, run: LongRun, tokens: Tensor, sizes: tuple[int, ...], output: Path
) -> None:
    model = run.candidate(run.load())
    capture_run(lambda: replayed(model, tokens, sizes), model, output, proof=False)
