"""Numbers as a reader sees them: with the digits that matter, and on the right side of a limit."""

import math
from collections.abc import Iterable, Sequence

__all__ = ["index_list", "number", "percent", "ranges", "ratio", "scientific"]


def number(value: float | str) -> str:
    """Return `value` with two or three significant digits; JSON's `"inf"` and `"nan"` are numbers too."""
    value = float(value)
    size = abs(value)
    if size == 0:
        return "0"
    if 99.95 <= size < 1e5:
        return f"{value:.0f}"
    if 0.995 <= size < 99.95:
        return f"{value:.1f}"
    if 0.0995 <= size < 0.995:
        return f"{value:.2f}"
    return scientific(value)


def ratio(value: float) -> str:
    """Return a ratio to a limit, as `number` does but never on the other side of 1 than it is.

    Near 1 it has up to four decimals, as many as that needs; what is nearer yet is 0.9999 or 1.0001.
    """
    text = number(value)
    if value == 1 or float(text) != 1:
        return text
    near = (f"{value:.{decimals}f}" for decimals in (2, 3, 4))
    return next((told for told in near if float(told) != 1), "0.9999" if value < 1 else "1.0001")


def scientific(value: float) -> str:
    """Return `value` as `1.2e-4`; what is not finite as its name."""
    if not math.isfinite(value):
        return str(value)
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def percent(part: float, whole: float = 1.0) -> str:
    """Return `part / whole` in percent; only nothing is `0.0%`, and only all of it `100.0%`."""
    share = 100 * part / whole
    if 0 < share < 0.05:
        return f"{scientific(share)}%"
    if 99.95 <= share < 100:
        return f"{share:.4g}%" if share < 99.995 else "over 99.99%"
    return f"{share:.1f}%"


def ranges(numbers: Iterable[int]) -> list[str]:
    """Return `3-6`, `9`: what ascends by one is joined; the order is kept, which is all of a permutation."""
    return [_range(run) for run in _runs(numbers)]


def index_list(numbers: Sequence[int], limit: int = 4) -> str:
    """Return `3-6, 9 and 12 more`: at most `limit` ranges, and how many of the numbers are left."""
    shown = _runs(numbers)[:limit]
    left = len(numbers) - sum(map(len, shown))
    return ", ".join(map(_range, shown)) + (f" and {left} more" if left else "")


def _runs(numbers: Iterable[int]) -> list[range]:
    found: list[range] = []
    for n in numbers:
        if found and n == found[-1].stop:
            found[-1] = range(found[-1].start, n + 1)
        else:
            found.append(range(n, n + 1))
    return found


def _range(run: range) -> str:
    return str(run.start) if len(run) == 1 else f"{run.start}-{run[-1]}"
