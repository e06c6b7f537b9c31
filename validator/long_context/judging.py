"""A port judged in long contexts: one question after the other, each with what is wrong."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor, nn

from validator.long_context.contexts import Context, context_of
from validator.long_context.driving import Drive
from validator.long_context.growth import Growth, memory_growth
from validator.long_context.hypotheses import explanation
from validator.long_context.landmarks import hint, landmarks, told
from validator.long_context.localising import Culprit, localised
from validator.long_context.noise import Band, measured_band
from validator.long_context.observing import LongRun, Seen, joined, reference_sizes, see, with_logits
from validator.long_context.occupancy import Occupancy, occupancy
from validator.long_context.position_errors import LIMIT, PositionErrors, position_errors
from validator.long_context.prefixes import judge_shared_prefix
from validator.long_context.shares import ALONE, Holders, holders
from validator.long_context.stages import placed
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
        holders: the ranks whose logits are judged, and those whose copies of them differ.
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
    holders: Holders


def examined(run: LongRun) -> LongContext:
    """Run a port in long contexts and judge it.

    Raises:
        ValidatorError: it can't be run, or not be compared.
    """
    with tempfile.TemporaryDirectory(prefix="validator-") as name, without_loading_bars():
        target = run.load()
        reference = target.reference()
        context, sizes = context_of(reference), reference_sizes(reference)
        del reference
        folder = Path(name)
        asked = (run, context, sizes.vocabulary)
        seen: list[Seen] = on_ranks(see, asked, nproc=run.nproc, device=run.device, folder=folder)
        first, held_by = _whole(seen, sizes.vocabulary)

        def measured(text: Tensor) -> Band:
            return measured_band(target.reference, text, dtype=first.dtype, recipe=run.declared(target))

        def judge(drive: Drive) -> Judged:
            return _judged(run, drive, first, context, target.reference, measured(drive.tokens), folder)

        whole = judge(first.whole)
        across = None if first.across is None else judge(first.across)
        prefix_problems = None if first.shared is None else judge_shared_prefix(first.shared, measured)
    layers = len(sizes.token_values) or len(context.windows)
    seen = _placed(seen, layers)
    is_shown = any(reading.layers for each in seen for reading in each.whole.readings)
    held = [_held(each, context) if is_shown else [] for each in seen]
    growths = [memory_growth(each.whole, context, sizes.token_values) for each in seen]
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
        holders=held_by,
    )


def _whole(seen: Sequence[Seen], vocabulary: int) -> tuple[Seen, Holders]:
    """Return what the first rank saw, with the model's logits, and which ranks hold these."""
    if len(seen) == 1:
        return seen[0], ALONE
    found = holders({i: each.share for i, each in enumerate(seen) if each.share}, vocabulary=vocabulary)
    logits = joined([seen[rank] for rank in found.ranks], vocabulary)
    return with_logits(seen[0], logits), found


def _placed(seen: Sequence[Seen], layers: int) -> list[Seen]:
    whole = placed([each.whole for each in seen], layers=layers)
    runs = [each.across for each in seen if each.across is not None]
    across = placed(runs, layers=layers) if len(runs) == len(seen) else [each.across for each in seen]
    return [replace(each, whole=w, across=a) for each, w, a in zip(seen, whole, across, strict=True)]


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
            "no matter of the context's length: it is there from the start, where `validator check` looks",
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
