"""What changed between stored results: findings, errors over the band, and metadata.

An edge has moved where its largest errors over the band differ from run to run by more than chance makes
them in runs of the same arithmetic, whose errors over the band keep their scale. How much that is depends
on the number of elements. Let errors be independent with tails that fall as `exp(-t / s)`, the heaviest
that were measured (float32 sums, NUMERICS section 4). The largest A of n of them is below t with
probability `(1 - exp(-t / s))^n`; `chance_factor` is the f beyond which `P(A > f B)` is the chance that is
given away, for another run's B, and does not depend on s. With `ALPHA` shared by all ordered pairs of runs
of all edges, at most ALPHA of the pages of such runs show any edge as moved (union bound).

On a page of 333 edges in 3 runs the factor is 18 for 8 elements, 2.6 for 4,096, and 1.9 for a million. Any
law whose hazard does not fall, such as the normal or the uniform one (a single rounding), varies less: its
errors are a concave function of exponential ones that is 0 at 0, which brings their ratios nearer to 1.
There ALPHA is kept, and some moves that are no chance are not told. Errors that elements share, as those of
a row share that of its mean square, vary like those of fewer elements: there chance may show more than
ALPHA. A move is no fault: another order of summation, or another band, moves an edge as well.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from validator.report.stored_runs import EdgeName, StoredRun

__all__ = [
    "ALPHA",
    "chance_factor",
    "differences",
    "errors",
    "findings_changed",
    "found_anywhere",
    "moved",
    "uncounted",
]

ALPHA = 0.01
"""Of the pages of runs of the same arithmetic at most so many show an edge as moved."""


def found_anywhere(runs: Sequence[StoredRun]) -> tuple[EdgeName, ...]:
    """Return the edges with a finding in any run, as the first run that has it orders them."""
    return tuple(dict.fromkeys(name for run in runs for name in run.findings))


def findings_changed(before: StoredRun, after: StoredRun) -> tuple[list[EdgeName], list[EdgeName]]:
    """Return the findings that the later run alone has, and those that the earlier run alone has."""
    earlier, later = set(before.findings), set(after.findings)
    appeared = [name for name in after.findings if name not in earlier]
    return appeared, [name for name in before.findings if name not in later]


def errors(runs: Sequence[StoredRun], name: EdgeName) -> list[float | None]:
    """Return an edge's largest error over the band in each run; None where it was not judged so."""
    return [run.edges[name].max_over_band if name in run.edges else None for run in runs]


@lru_cache(maxsize=4096)
def chance_factor(fewest: int, most: int, chance: float) -> float:
    """Return how many times a run's largest error is another's, or more, with a chance.

    Args:
        fewest: how many elements the other run has, at least 1.
        most: how many the first has.
        chance: less than a half.
    """
    # Quadrature over all probabilities u, by the trapezoidal rule in log(u / (1 - u)).
    places, step = np.linspace(-40.0, 40.0, 801, retstep=True)
    log_u, log_rest = -np.logaddexp(0.0, -places), -np.logaddexp(0.0, places)
    weights = step * np.exp(log_u + log_rest)
    others = -_log_complement(log_u / fewest)  # below which the other run's largest error is in u of all runs

    def excess(log_factor: float) -> float:
        log_below = most * _log_complement(-math.exp(log_factor) * others)
        return float(weights @ -np.expm1(log_below)) - chance

    return math.exp(brentq(excess, 0.0, 100.0))


def moved(runs: Sequence[StoredRun]) -> tuple[EdgeName, ...]:
    """Return the edges without a finding whose error moved, the largest error first.

    An edge of unknown size is held to have one element, whose error chance moves a hundred thousandfold.
    """
    known = _known(runs)
    pairs = sum(len(found) * (len(found) - 1) for found in known.values())
    largest = {}
    for name, found in known.items():
        sizes = _sizes(runs, name)
        if _differ(found, chance_factor(min(sizes), max(sizes), ALPHA / pairs)):
            largest[name] = max(found)
    return tuple(sorted(largest, key=lambda name: -largest[name]))


def uncounted(runs: Sequence[StoredRun]) -> int:
    """Return of how many edges with several errors the number of elements is not known in some run."""
    return sum(None in _counts(runs, name) for name in _known(runs))


def differences(runs: Sequence[StoredRun]) -> dict[str, tuple[str | None, ...]]:
    """Return the candidates' metadata that are not the same in all runs, one value a run."""
    told = [dict(_metadata(run.document.get("run"))) for run in runs]
    names = dict.fromkeys(name for one in told for name in one)
    values = {name: tuple(one.get(name) for one in told) for name in names}
    return {name: found for name, found in values.items() if len(set(found)) > 1}


def _log_complement(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return `log(1 - exp(x))` of negative numbers, without loss at either end."""
    middle = -math.log(2)
    return np.where(x > middle, np.log(-np.expm1(x)), np.log1p(-np.exp(np.minimum(x, middle))))


def _known(runs: Sequence[StoredRun]) -> dict[EdgeName, list[float]]:
    """Return the errors of the edges without a finding that several runs have errors of, not zeros alone."""
    found = set(found_anywhere(runs))
    names = dict.fromkeys(name for run in runs for name in run.edges if name not in found)
    known = {name: [error for error in errors(runs, name) if error is not None] for name in names}
    return {name: values for name, values in known.items() if len(values) > 1 and any(values)}


def _counts(runs: Sequence[StoredRun], name: EdgeName) -> list[int | None]:
    return [run.edges[name].elements for run in runs if name in run.edges]


def _sizes(runs: Sequence[StoredRun], name: EdgeName) -> list[int]:
    """Return how many elements an edge has in each run, as far as that is known of all."""
    counts = [count for count in _counts(runs, name) if count]
    return counts if len(counts) == len(_counts(runs, name)) else [1]


def _differ(values: Sequence[float], factor: float) -> bool:
    numbers = [value for value in values if math.isfinite(value)]
    if len(numbers) < len(values):
        return bool(numbers) or len(set(map(math.isnan, values))) > 1
    return max(numbers) > factor * min(numbers)


def _metadata(run: Any) -> Iterator[tuple[str, str]]:
    """Yield what makes two runs differ, by name and as text: not what differs in any two processes."""
    side = run.get("candidate") if isinstance(run, Mapping) else None
    if not isinstance(side, Mapping):
        return
    for group in ("software", "parallelism", "determinism"):
        values = side.get(group)
        for key, value in values.items() if isinstance(values, Mapping) else ():
            if key != "meshes":
                yield f"{group}.{key}", str(value)
    for key in ("source", "recipe", "dtype"):
        if key in side:
            yield key, str(side[key])
