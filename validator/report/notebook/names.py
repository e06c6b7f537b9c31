"""Names to choose from: no two of them equal."""

from collections import Counter
from collections.abc import Sequence

__all__ = ["told_apart"]


def told_apart(names: Sequence[str], what: str) -> list[str]:
    """Return names of which no two are equal, for a list in which the second of two can't be chosen.

    Args:
        names: of which some may be.
        what: is named; those that are equal are told by their number: `name (what 3)`.
    """
    told = list(names)
    # A name may be what another one becomes. Two that have their numbers differ, so this comes to an end.
    while len(often := Counter(told)) < len(told):
        told = [f"{name} ({what} {n})" if often[name] > 1 else name for n, name in enumerate(told)]
    return told
