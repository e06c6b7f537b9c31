"""What changed between stored results: findings, errors over the band, and metadata.

An edge has moved where its largest error over the band is twice that of another run, or more. The largest
of n errors of rounding varies little: of 4,096 normal ones it is above 3.1 and below 5.2 standard deviations
in 998 of 1,000 runs, a factor of 1.7. Twice as much is another computation.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from validator.report.stored_runs import EdgeName, StoredRun

__all__ = ["MOVED", "differences", "errors", "findings_changed", "found_anywhere", "moved"]

MOVED = 2.0


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


def moved(runs: Sequence[StoredRun]) -> tuple[EdgeName, ...]:
    """Return the edges without a finding whose error moved, the largest error first."""
    found = set(found_anywhere(runs))
    largest = {}
    for name in dict.fromkeys(name for run in runs for name in run.edges if name not in found):
        known = [error for error in errors(runs, name) if error is not None and not math.isnan(error)]
        if known and max(known) > 0 and max(known) >= MOVED * min(known):
            largest[name] = max(known)
    return tuple(sorted(largest, key=lambda name: -largest[name]))


def differences(runs: Sequence[StoredRun]) -> dict[str, tuple[str | None, ...]]:
    """Return the candidates' metadata that are not the same in all runs, one value a run."""
    told = [dict(_metadata(run.document.get("run"))) for run in runs]
    names = dict.fromkeys(name for one in told for name in one)
    values = {name: tuple(one.get(name) for one in told) for name in names}
    return {name: found for name, found in values.items() if len(set(found)) > 1}


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
