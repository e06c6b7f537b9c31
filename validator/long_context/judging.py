"""A port judged in long contexts: one question after the other, each with what is wrong."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from validator.long_context.contexts import Context, context_of
from validator.long_context.driving import Drive
from validator.long_context.growth import Growth, memory_growth
from validator.long_context.hypotheses import explanation
from validator.long_context.landmarks import hint, landmarks, told
from validator.long_context.localising import Culprit, localised
from validator.long_context.noise import Band, measured_band
from validator.long_context.observing import LongRun, Seen, see, token_values_of
from validator.long_context.occupancy import Occupancy, occupancy
from validator.long_context.position_errors import LIMIT, PositionErrors, position_errors
from validator.long_context.prefixes import judge_shared_prefix
from validator.pretrained import without_loading_bars
from validator.testing.ranks import on_ranks

__all__ = ["Judged", "LongContext", "examined", "said_by_rank"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The errors of one run.

    Attributes:
        drive: the run.
        errors: by position.
        problem: what is wrong; None for nothing.
        culprit: the module and rank to blame, where no other explanation was found and they were.
    """

    drive: Drive
    errors: PositionErrors
    problem: str | None
    culprit: Culprit | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LongContext:
    """What was found.

    Attributes:
        context: of the reference.
        argument: what the candidate calls its cache; None where it takes none.
        cache: name of the cache's class; None without one.
        is_shown: whether the cache shows what it holds.
        whole: errors of a prompt longer than any window in chunks, then decoding.
        across: errors of decoding across the window's edge; None where `whole` has it, or there is none.
        occupancy: of the first rank's cache in the first run; None where it doesn't show what it holds.
        cache_problems: of what the caches of all ranks held.
        growth: of the first rank's memory.
        memory_problems: of the memory of all ranks.
        prefix_problems: of shared prefixes; None where there is no cache.
    """

    context: Context
    argument: str | None
    cache: str | None
    is_shown: bool
    whole: Judged
    across: Judged | None
    occupancy: Occupancy | None
    cache_problems: tuple[str, ...]
    growth: Growth
    memory_problems: tuple[str, ...]
    prefix_problems: tuple[str, ...] | None


def examined(run: LongRun) -> LongContext:
    """Run a port in long contexts and judge it.

    Raises:
        ValidatorError: it can't be run, or not be compared.
    """
    with tempfile.TemporaryDirectory(prefix="validator-") as name, without_loading_bars():
        target = run.load()
        reference = target.reference()
        context, token_values = context_of(reference), token_values_of(reference)
        del reference
        folder = Path(name)
        seen: list[Seen] = on_ranks(see, (run, context), nproc=run.nproc, device=run.device, folder=folder)
        first = seen[0]

        def measured(text: Tensor) -> Band:
            return measured_band(target.reference, text, dtype=first.dtype, recipe=run.declared(target))

        def judge(drive: Drive) -> Judged:
            return _judged(run, drive, first, context, target.reference, measured(drive.tokens), folder)

        whole = judge(first.whole)
        across = None if first.across is None else judge(first.across)
        prefix_problems = None if first.shared is None else judge_shared_prefix(first.shared, measured)
    is_shown = any(reading.layers for reading in first.whole.readings)
    held = [_held(each, context) if is_shown else [] for each in seen]
    growths = [memory_growth(each.whole, context, token_values) for each in seen]
    return LongContext(
        context=context,
        argument=first.argument,
        cache=first.whole.cache,
        is_shown=is_shown,
        whole=whole,
        across=across,
        occupancy=held[0][0] if is_shown else None,
        # What one run shows the other shows too, with other numbers.
        cache_problems=said_by_rank(
            [next((run.problems for run in runs if run.problems), ()) for runs in held]
        ),
        growth=growths[0],
        memory_problems=said_by_rank([growth.problems for growth in growths]),
        prefix_problems=prefix_problems,
    )


def _held(seen: Seen, context: Context) -> list[Occupancy]:
    drives = [drive for drive in (seen.whole, seen.across) if drive is not None]
    return [occupancy(drive, context) for drive in drives]


def said_by_rank(problems: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return what several ranks say, each sentence once, with its ranks where not all say it."""
    ranks: dict[str, list[int]] = {}
    for rank, said in enumerate(problems):
        for text in dict.fromkeys(said):
            ranks.setdefault(text, []).append(rank)
    return tuple(
        text if len(on) == len(problems) else f"on rank {', '.join(map(str, on))}: {text}"
        for text, on in ranks.items()
    )


def _judged(
    run: LongRun,
    drive: Drive,
    seen: Seen,
    context: Context,
    build: Callable[[], nn.Module],
    band: Band,
    folder: Path,
) -> Judged:
    errors = position_errors(cand=drive.logits, band=band)
    problem, culprit = None, None
    if errors.onset is not None:
        why = explanation(
            build,
            cand=drive.logits,
            tokens=drive.tokens,
            band=band,
            errors=errors,
            context=context,
            dtype=seen.dtype,
        )
        if why is None:
            culprit = localised(run, drive, build, until=errors.onset, folder=folder)
        problem = _onset_text(drive, errors, errors.onset, seen, context, why)
    elif errors.grows:
        problem = (
            f"the error grows with position, and its noise does not: {errors.growth:.3g} times as large at "
            f"the end of {len(errors.ratio)} tokens as at the beginning ({errors.growth_low:.3g} to "
            f"{errors.growth_high:.3g}). Likely angles of the rotary embedding, from frequencies in a narrow "
            "format"
        )
    return Judged(drive=drive, errors=errors, problem=problem, culprit=culprit)


def _onset_text(
    drive: Drive, errors: PositionErrors, onset: int, seen: Seen, context: Context, why: str | None
) -> str:
    marks = landmarks(context, drive.schedule, seen.dtype)
    place, likely = told(onset, marks), hint(onset, marks)
    quarter = len(drive.tokens) // 4
    start = quarter if context.window is None else min(context.window.size, quarter)
    if onset < min(start - 1, 8):
        place, likely = (
            f"at position {onset}",
            "no matter of the context's length: it is there from the start",
        )
    if why is not None:
        likely = None
    causes = [
        *([] if why is None else [f"It is what {why} makes"]),
        *([] if likely is None else [f"Likely {likely}"]),
    ]
    before = "" if onset == 0 else f", and {errors.typical:.2g} times before"
    figures = (
        f"From there it is {errors.beyond:.3g} times its noise at the median{before}; {len(errors.outside)} "
        f"of {len(errors.ratio)} positions are over the limit of {LIMIT:g} times"
    )
    return "\n".join((f"the error leaves its noise {place}", *causes, figures))
