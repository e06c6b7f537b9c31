"""The operator behind a difference: the runs are repeated with the guilty module's operators captured."""

from collections.abc import Sequence
from dataclasses import replace

from validator.capturing.reader import Capture
from validator.capturing.records import RankCapture
from validator.determinism.events import first_difference
from validator.determinism.records import Difference
from validator.determinism.reductions import described, reducing
from validator.determinism.runs import RunSet
from validator.determinism.variants import Variant

__all__ = ["listed", "operator_behind", "operators_of", "reductions_of"]

_TRIES = 3
"""A run that is not deterministic may repeat itself once."""


def operator_behind(runs: RunSet, difference: Difference, a: Variant, b: Variant) -> str:
    """Return which operator, or collective, makes two runs of the same inputs differ; empty if unknown.

    Args:
        runs: where both were run.
        difference: the first.
        a: one variant.
        b: another, of the same inputs.
    """
    if difference.side in ("left", "entered"):
        return difference.op
    site = (difference.culprit,)
    pairs = [variant for _ in range(_TRIES) for variant in (a, b)]
    looks = [_again(variant, site, f"look-{i}") for i, variant in enumerate(pairs)]
    more = runs.more(*looks)
    done = [more.capture(look.name) for look in looks]
    for one, other in zip(done[::2], done[1::2], strict=True):
        found = first_difference(one.all_ranks(), other.all_ranks())
        if found is not None and found.side in ("operators", "left"):
            return described(found.op)
    return listed(reductions_of(done[0].all_ranks(), difference.culprit))


def operators_of(runs: RunSet, module: str, *variants: Variant) -> list[Capture]:
    """Run variants again with the operators of a module captured."""
    looks = [_again(variant, (module,), f"look-{i}") for i, variant in enumerate(variants)]
    more = runs.more(*looks)
    return [more.capture(look.name) for look in looks]


def reductions_of(captures: Sequence[RankCapture], module: str) -> list[str]:
    """Return the operators directly inside of a module that reduce, each with what it reduces."""
    found = [
        described(name)
        for capture in captures
        for call in capture.calls
        if call.module == module
        for name in reducing(call.operators)
    ]
    return list(dict.fromkeys(found))


def listed(names: Sequence[str]) -> str:
    """Return the reductions of which one may be behind a difference, as such; empty for none."""
    return f"perhaps {' or '.join(names[:3])}" if names else ""


def _again(variant: Variant, operators: tuple[str, ...], name: str) -> Variant:
    return replace(variant, name=name, include=operators, operators=operators)
