"""Hold the figures of a suite to those that were recorded."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePath
from typing import Any

from validator.baselines.records import figure_from, parsed, run_from
from validator.errors import CaptureError
from validator.numerics.bands import normal_lambda
from validator.testing.records import Ending, Figure

__all__ = ["FigureVerdict", "Judged", "Measured", "is_of_the_machine", "judge_figures", "read_figures"]

_ALPHA = 1e-3
_EXACT = 400
"""Up to so many pairs of measurements the exact test is made, which ties within a set leave as it is."""

# Those of a run of suites that its figures depend on.
_SETTINGS = ("target", "nproc", "device", "dtype", "tp", "recipe", "card_counts", "samples", "long")
_WORDS = ("second", "millisecond", "microsecond", "nanosecond", "minute", "hour", "byte")
_TIMES = (
    "s",
    "ms",
    "us",
    "\u00b5s",
    "\u03bcs",
    "ns",
    "sec",
    "secs",
    "msec",
    "usec",
    "nsec",
    "min",
    "mins",
    "h",
    "hr",
    "hrs",
)
_SIZES = ("B", "kB", "KB", "MB", "GB", "TB", "PB", "KiB", "MiB", "GiB", "TiB", "PiB")
_RATES = tuple(f"{prefix}{unit}" for unit in ("FLOPS", "Hz") for prefix in ("", *"kKMGTPE"))
_MACHINE_UNITS = frozenset((*_TIMES, *_SIZES, *_RATES, *_WORDS, *(f"{word}s" for word in _WORDS)))


class FigureVerdict(StrEnum):
    """What is said of one figure."""

    SAME = "same"
    EXPLAINED = "explained"
    CHANGED = "changed"
    UNKNOWN = "unknown"
    MISSING = "missing"
    NEW = "new"
    REFUSED = "refused"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The figures of a file.

    Attributes:
        figures: by name.
        run: what they were measured with: machine, versions, ranks, flags and settings.
        verdict: how the suites ended, or None where the file does not say.
    """

    figures: Mapping[str, Figure]
    run: Mapping[str, Any]
    verdict: Ending | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A figure, then and now.

    Attributes:
        verdict: `same`; `explained` by the standard errors; `changed` beyond them; `unknown` where it changed
            and has none; `missing` now, or `new`; `refused` where it is of another machine; `measured`
            where it is one of speed or memory on the same machine, which is told and not judged.
        why: one sentence.
    """

    name: str
    verdict: FigureVerdict
    then: Figure | None
    now: Figure | None
    why: str


def read_figures(path: Path) -> Measured:
    """Read the figures of a file, and the metadata of the run that they are of.

    Args:
        path: what `validator run --json` wrote, or `{"figures": {NAME: {"value": ..., "unit": ...,
            "error": ..., "samples": [...]}}, "run": {...}, "settings": {...}}`.

    Raises:
        CaptureError: it can't be read, holds no figure, or two of one name.
    """
    try:
        document = parsed(path.read_bytes())
        named = document["figures"].items() if "figures" in document else _of_suites(document["suites"])
        figures: dict[str, Figure] = {}
        for name, found in named:
            if name in figures:
                raise CaptureError(
                    f"{path} has two figures called {name!r}, which can't be told apart: give each a name of "
                    "its own in validation.figure()"
                )
            figures[str(name)] = figure_from(name, found)
        run, settings = dict(document.get("run") or {}), dict(document.get("settings") or {})
        kept = {name: settings[name] for name in _SETTINGS if name in settings}
        run = run_from({**run, **({"settings": kept} if kept else {})})
        verdict = document.get("verdict")
        ended = None if verdict is None else Ending(verdict)
    except OSError as error:
        raise CaptureError(
            f"{path} can't be read: {error.strerror}; name the file of a suite's figures"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CaptureError(
            f"{path} holds no figures ({type(error).__name__}: {error}): give what `validator run "
            "--json` wrote"
        ) from error
    if not figures:
        raise CaptureError(f"{path} holds no figure, so there is nothing to keep or to compare")
    return Measured(figures=figures, run=run, verdict=ended)


def is_of_the_machine(figure: Figure) -> bool:
    """Say whether a figure is one of speed or memory: its unit has a time, bytes or a rate in it."""
    return any(part.strip() in _MACHINE_UNITS for part in re.split(r"/|\bper\b", figure.unit))


def judge_figures(
    then: Mapping[str, Figure], now: Mapping[str, Figure], *, another_machine: bool
) -> tuple[Judged, ...]:
    """Say of each figure whether it is what it was.

    A figure with a standard error may move by what both errors explain; speed and memory are told where both
    were measured on one machine and refused otherwise.

    Source:
        The largest of n normal errors, `validator.numerics.bands.normal_lambda`.
    """
    limit = normal_lambda(len(then))
    return tuple(
        _judged(name, then.get(name), now.get(name), limit, another_machine)
        for name in dict.fromkeys([*then, *now])
    )


def _of_suites(suites: Any) -> Iterator[tuple[str, Any]]:
    """Yield the figures of suites, each under the suite's name, the test's and its own.

    A suite is named after its file, however its path was written.
    """
    for suite in suites:
        for answer in suite["answers"]:
            file, _, test = answer["id"].partition("::")
            name = PurePath(file).stem.removeprefix("test_")
            for figure in answer["figures"]:
                yield f"{name}.{test}.{figure['name']}", figure


def _judged(
    name: str, then: Figure | None, now: Figure | None, limit: float, another_machine: bool
) -> Judged:
    def said(verdict: FigureVerdict, why: str) -> Judged:
        return Judged(name=name, verdict=verdict, then=then, now=now, why=why)

    if then is None:
        return said(FigureVerdict.NEW, "the baseline does not have it")
    if now is None:
        return said(FigureVerdict.MISSING, "the baseline has it, and the run does not")
    if then.unit != now.unit:
        return said(FigureVerdict.CHANGED, f"its unit was {then.unit or 'none'} and is {now.unit or 'none'}")
    if is_of_the_machine(then):
        if another_machine:
            return said(
                FigureVerdict.REFUSED, "speed and memory of another machine say nothing about this one"
            )
        return said(FigureVerdict.MEASURED, _ratio(then, now))
    if then.value == now.value:
        return said(FigureVerdict.SAME, "the same")
    if isinstance(then.value, str) or isinstance(now.value, str):
        return said(FigureVerdict.CHANGED, "it is another word")
    if then.error is None or now.error is None:
        return said(
            FigureVerdict.UNKNOWN, "it has no standard error, so nothing says what explains the change"
        )
    error = math.hypot(then.error, now.error)
    moved = abs(now.value - then.value)
    if not moved <= limit * error:
        return said(FigureVerdict.CHANGED, f"it moved by {moved:.3g}, and errors explain {limit * error:.3g}")
    return said(
        FigureVerdict.EXPLAINED, f"it moved by {moved:.3g} of {limit * error:.3g} that errors explain"
    )


def _ratio(then: Figure, now: Figure) -> str:
    """Say how speed or memory compare, with the test that two sets of measurements part by chance."""
    if isinstance(then.value, str) or isinstance(now.value, str) or not then.value:
        return f"{then.value}, now {now.value}"
    ratio = f"{now.value / then.value:.3g} of what it was"
    before, after = len(then.samples), len(now.samples)
    # Two sets of which one is beyond all of the other come of chance so often.
    if 2 / math.comb(before + after, before) > _ALPHA:
        return f"{ratio}; too few measurements to tell from chance"
    from scipy.stats import mannwhitneyu

    method = "exact" if before * after <= _EXACT else "asymptotic"
    p = float(mannwhitneyu(then.samples, now.samples, method=method).pvalue)
    return f"{ratio}; {'chance explains it' if p > _ALPHA else 'not by chance'} (Mann-Whitney p {p:.2g})"
