"""What changed between stored results: findings, errors over the band, and metadata.

An edge has moved where its largest errors over the band differ from run to run by more than chance makes
them in runs of the same arithmetic, whose errors over the band keep their scale. How much that is depends
on the number of elements. Let errors be independent, 0 with probability `ZEROS`, else with tails that fall
as `exp(-t / s)`, the heaviest that were measured (float32 sums, NUMERICS section 4). The largest A of n of
them is at most t with probability `(1 - (1 - ZEROS) exp(-t / s))^n`; `chance_factor` is the f beyond which
`P(A > f B or B = 0)` is the chance that is given away, for another run's B, and does not depend on s. With
`ALPHA` shared by all ordered pairs of runs of all edges, at most ALPHA of the pages of such runs show any
edge as moved (union bound). Where all n are 0 more often than that, as `P(B = 0) = ZEROS^n`, no factor is
large enough and nothing is told: a largest error of 0 says something of many elements alone.

Rounding a sum of two numbers of a format to that format is exact at times. If their signs are equal, at
least one bit is dropped, by a carry or by a shift, and is 0 in a half of the cases; if they are not, nothing
may be (Sterbenz). With signs independent of each other that is 3/4 at most, in any format. Below it the
chance is smaller: `P(A > f B or B = 0)` rises with ZEROS. What is exact more often, such as a sum whose
second term is mostly 0, is beyond this law. The grid that such errors lie on, k of 2^d steps, moves no
factor above 1.4 by more than these zeros do.

On a page of 333 edges in 3 runs the factor is infinite for up to 42 elements, 6.8 for 128, 3.0 for 4,096,
and 2.0 for a million. Any law whose hazard above 0 does not fall, such as the normal or the uniform one,
varies less: its errors are a concave function of those above that is 0 at 0, which brings their ratios
nearer to 1. There ALPHA is kept, and some moves that are no chance are not told. Errors that elements share,
as those of a row share that of its mean square, vary like those of fewer elements: there chance may show
more than ALPHA. A move is no fault: another order of summation, or another band, moves an edge as well.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from validator.checks.findings import Check, Verdict
from validator.report.orders import merged
from validator.report.stored_runs import EdgeName, RunEdge, StoredRun

__all__ = [
    "ALPHA",
    "ZEROS",
    "chance_factor",
    "differences",
    "edges_of",
    "errors",
    "findings_changed",
    "found_anywhere",
    "moved",
    "split_judged",
    "uncounted",
]

ALPHA = 0.01
"""Of the pages of runs of the same arithmetic at most so many show an edge as moved."""

ZEROS = 0.75
"""Of the errors of one rounding of a sum at most so many are exactly 0."""

_MOST = 100.0
"""No logarithm of a factor is sought above it."""


def edges_of(runs: Sequence[StoredRun]) -> list[EdgeName]:
    """Return the edges of all runs in one order, which of edges of one run is that of their judging."""
    return merged(run.edges for run in runs)


def found_anywhere(runs: Sequence[StoredRun]) -> tuple[EdgeName, ...]:
    """Return the edges with a finding in any run, in the order of all edges."""
    found = {name for run in runs for name in run.findings}
    return tuple(name for name in edges_of(runs) if name in found)


def split_judged(run: StoredRun, names: Sequence[EdgeName]) -> tuple[list[EdgeName], list[EdgeName]]:
    """Return the edges that a run says anything of, and the others, each in the order of `names`.

    What it says in any call counts where it has no such call: a finding of decode steps has its step's. A
    result older than the list of edges tells of findings alone: it is taken to have judged all the others.
    """
    if "edges" not in run.document:
        return list(names), []
    judged = [name for name, edge in run.edges.items() if edge.verdict is not Verdict.UNCHECKED]
    exact, in_any_call = set(judged), {_without_call(name) for name in judged}
    split: tuple[list[EdgeName], list[EdgeName]] = ([], [])
    for name in names:
        is_judged = name in exact if name in run.edges else _without_call(name) in in_any_call
        split[not is_judged].append(name)
    return split


def findings_changed(before: StoredRun, after: StoredRun) -> tuple[list[EdgeName], list[EdgeName]]:
    """Return the findings that the later run alone has, and those that the earlier run alone has.

    The other run need not have judged their edges.
    """
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

    Returns:
        inf where the other run's largest error alone is 0 with that chance.
    """
    log_zero, log_rest = fewest * math.log(ZEROS), math.log1p(-ZEROS)
    log_positive = math.log(-math.expm1(log_zero))
    # Quadrature over all probabilities v of a B above 0, by the trapezoidal rule in log(v / (1 - v)).
    places, step = np.linspace(-40.0, 40.0, 801, retstep=True)
    log_v, log_1_v = -np.logaddexp(0.0, -places), -np.logaddexp(0.0, places)
    weights = step * np.exp(log_v + log_1_v + log_positive)
    # 1 - u = (1 - v) P(B > 0), of the u of all runs in which B is less
    log_u = _log_complement(log_1_v + log_positive)
    others = np.maximum(log_rest - _log_complement(log_u / fewest), 0.0)

    def excess(log_factor: float) -> float:
        log_below = most * _log_complement(log_rest - math.exp(log_factor) * others)
        return math.exp(log_zero) + float(weights @ -np.expm1(log_below)) - chance

    return math.inf if excess(_MOST) >= 0 else math.exp(brentq(excess, 0.0, _MOST))


def moved(runs: Sequence[StoredRun]) -> tuple[EdgeName, ...]:
    """Return the edges without a finding whose error moved, the largest error first.

    Of an edge of unknown size, or of few elements, only an error that is not finite is told beside another.
    """
    known = _known(runs)
    pairs = sum(len(found) * (len(found) - 1) for found in known.values())
    largest = {}
    for name, found in known.items():
        if _differ(found, chance_factor(*_sizes(runs, name), ALPHA / pairs)):
            largest[name] = max(found)
    return tuple(sorted(largest, key=lambda name: -largest[name]))


def uncounted(runs: Sequence[StoredRun]) -> int:
    """Return of how many edges with several errors the number of elements is not known in some run."""
    return sum(any(edge.elements is None for edge in _judged(runs, name)) for name in _known(runs))


def differences(runs: Sequence[StoredRun]) -> dict[str, tuple[str | None, ...]]:
    """Return the metadata of both sides that are not the same in all runs, one value a run or None for none.

    What the candidate is judged by moves every edge as well: the reference and the inputs are looked at too.
    """
    told = [dict(_metadata(run.document.get("run"))) for run in runs]
    names = merged(told)
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


def _without_call(name: EdgeName) -> tuple[str, Check, str | None, str]:
    return name.module, name.check, name.into, name.path


def _judged(runs: Sequence[StoredRun], name: EdgeName) -> list[RunEdge]:
    return [run.edges[name] for run in runs if name in run.edges]


def _sizes(runs: Sequence[StoredRun], name: EdgeName) -> tuple[int, int]:
    """Return of how many independent errors an edge's largest is at least, and at most, in any run.

    The ranks of a run may hold the same values or others. Where something is not known, it is of one.
    """
    edges = _judged(runs, name)
    sizes = [(edge.elements, edge.elements * edge.ranks) for edge in edges if edge.elements]
    if len(sizes) < len(edges):
        return 1, 1
    return min(fewest for fewest, _ in sizes), max(most for _, most in sizes)


def _differ(values: Sequence[float], factor: float) -> bool:
    numbers = [value for value in values if math.isfinite(value)]
    if len(numbers) < len(values):
        return bool(numbers) or len(set(map(math.isnan, values))) > 1
    return max(numbers) > factor * min(numbers)


def _metadata(run: Any) -> Iterator[tuple[str, str | None]]:
    """Yield what makes two runs differ, by name and as text: not what differs in any two processes."""
    for name in ("candidate", "reference"):
        side = _mapping(run).get(name)
        for key, value in _side(_mapping(side)):
            yield f"{name}.{key}", None if value is None else str(value)


def _side(side: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for group in ("software", "parallelism", "determinism"):
        for key, value in _mapping(side.get(group)).items():
            if key != "meshes":
                yield f"{group}.{key}", value
    for key, value in _mapping(side.get("inputs")).items():
        yield f"inputs.{key}", _mapping(value).get("checksum", value)
    for key in ("source", "recipe", "dtype"):
        if key in side:
            yield key, side[key]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
