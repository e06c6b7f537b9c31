"""A run of several steps in place of one: the reference computes each generation in a single prefill."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from validator.align.prefills import prefill_arguments
from validator.align.step_joins import join_steps
from validator.align.steps import Generation, NotOnePrefillError, find_generations
from validator.align.traces import StepTokens
from validator.capturing.noise import NoiseSource
from validator.capturing.reader import Capture, open_capture
from validator.capturing.records import RankCapture
from validator.capturing.session import capture_run
from validator.runs import copied
from validator.target import moved

__all__ = ["Prefilled", "has_steps", "prefilled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefilled:
    """Both sides of a run, each generation as one call of the model.

    Attributes:
        ref: the reference's capture, on one prefill a generation.
        cand: every rank's capture, its steps put end to end.
        run: feeds the reference.
        steps: of each generation of several steps, by its number.
    """

    ref: Capture
    cand: tuple[RankCapture, ...]
    run: Callable[[nn.Module], Any]
    steps: Mapping[int, tuple[StepTokens, ...]]


def has_steps(cand: Sequence[RankCapture]) -> bool:
    """Tell whether calls of the model in a capture of all ranks continue one another."""
    try:
        return any(len(generation.steps) > 1 for generation in find_generations(cand))
    except NotOnePrefillError:
        return True


def prefilled(
    *,
    reference: nn.Module,
    ref: RankCapture | None,
    cand: Sequence[RankCapture],
    folder: Path,
    include: Sequence[str] | None = None,
    noise: Callable[[Callable[[nn.Module], Any]], NoiseSource] | None = None,
) -> Prefilled | None:
    """Run the reference on one prefill a generation, and put the candidate's steps end to end.

    Args:
        reference: the trusted model, in eval mode.
        ref: its own run in steps, or None where there is none.
        cand: every rank's capture.
        folder: where the reference's capture goes.
        include: globs of the reference's modules to capture, the model's own call among them; None for all.
        noise: makes what measures the reference's noise of what feeds it; None for a capture without.

    Returns:
        None where no call of the model continues another.

    Raises:
        NotOnePrefillError: some do, and no prefill computes the same.
    """
    generations = find_generations(cand)
    if all(len(generation.steps) == 1 for generation in generations):
        return None
    theirs: Sequence[Generation | None] = () if ref is None else find_generations([ref])
    if len(theirs) != len(generations):
        theirs = [None] * len(generations)
    arguments = [
        prefill_arguments(generation, ref=their, reference=reference)
        for generation, their in zip(generations, theirs, strict=True)
    ]

    def run(model: nn.Module) -> list[Any]:
        return [model(**moved(copied(given), model)) for given in arguments]

    def run_reference() -> list[Any]:
        try:
            return run(reference)
        except Exception as error:  # the reference's code may raise anything
            raise NotOnePrefillError(
                f"the reference fails on one prefill of {max(g.tokens for g in generations)} tokens: {error}"
            ) from error

    path = folder / "prefills.h5"
    source = None if noise is None else noise(run)
    capture_run(run_reference, reference, path, proof=False, include=include, noise=source)
    captured = open_capture(path)
    whole = join_steps(cand, generations=generations, ref=captured.rank(0))
    steps = {i: _steps(made) for i, made in enumerate(generations) if len(made.steps) > 1}
    return Prefilled(ref=captured, cand=whole, run=run, steps=steps)


def _steps(generation: Generation) -> tuple[StepTokens, ...]:
    count = len(generation.steps)
    return tuple(
        StepTokens(
            call=step.calls[min(step.calls)].n,
            number=i + 1,
            count=count,
            start=step.start,
            stop=step.stop,
            kept=step.kept,
        )
        for i, step in enumerate(generation.steps)
    )
