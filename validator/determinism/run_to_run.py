"""D0: one candidate on the same inputs and cards, again and again, gives the same bits."""

from validator.capturing.reader import Capture
from validator.determinism.events import count_tensors, first_difference
from validator.determinism.inside import operator_behind
from validator.determinism.records import Answer, Difference, Problem
from validator.determinism.runs import RunSet

__all__ = ["run_to_run"]


def run_to_run(runs: RunSet) -> Answer:
    """Say whether runs of the same inputs differ, where first, and what is behind it.

    Args:
        runs: of `variants.repeat_variants`.

    Raises:
        ValidatorError: further runs, that look inside of the guilty module, fail.
    """
    first = runs.capture("first")
    repeats = [name for name in runs.variants if _is_repeat(name)]
    failed = _failed(runs, is_rebuilt=False)
    if failed:
        text = f"the candidate gives a result, and fails the next time on the same inputs: {failed[0]}"
        return Answer(problems=(Problem(text=text),))
    unbuilt = tuple(
        f"the candidate can't be built again here: {why}" for why in _failed(runs, is_rebuilt=True)
    )
    if not repeats:
        return Answer(skipped="; ".join(unbuilt))
    compared = sum(count_tensors(first.rank(rank)) for rank in first.ranks)
    cards = f"{runs.world_size} card{'s' if runs.world_size > 1 else ''}"
    figures: dict[str, int | str] = {f"tensors compared on {cards}": compared * len(repeats)}
    for name in repeats:
        found = _difference(first, runs.capture(name))
        if found is not None:
            is_rebuilt = runs.variants[name].is_rebuilt
            behind = operator_behind(runs, found, runs.variants["first"], runs.variants[name])
            return Answer(
                problems=(_problem(found, behind, cards, is_rebuilt=is_rebuilt),),
                compared=compared * len(repeats),
                figures=figures,
            )
    return Answer(
        compared=compared * len(repeats),
        figures=figures,
        notes=tuple(f"not applicable: {why}" for why in unbuilt),
        blind=_blind(runs, first),
    )


def _is_repeat(name: str) -> bool:
    return name.startswith("again")


def _failed(runs: RunSet, *, is_rebuilt: bool) -> list[str]:
    """Return why repeats failed: of the same model, or of one that was built again."""
    return [
        runs.failures[variant.name]
        for variant in runs.job.variants
        if _is_repeat(variant.name) and variant.is_rebuilt is is_rebuilt and variant.name in runs.failures
    ]


def _difference(first: Capture, other: Capture) -> Difference | None:
    return first_difference(first.all_ranks(), other.all_ranks())


def _problem(found: Difference, behind: str, cards: str, *, is_rebuilt: bool) -> Problem:
    again = "once it is built again" if is_rebuilt else "the second time"
    cause = f"; behind it: {behind}" if behind else "; what is behind it did not show when looked at again"
    return Problem(
        text=(
            f"the candidate gives other bits {again}, on the same inputs and {cards}: first in {found}{cause}"
        ),
        module=found.culprit,
        rank=found.rank,
        cause=behind,
    )


def _blind(runs: RunSet, first: Capture) -> str | None:
    """Return why the control was not seen, or None where it was."""
    if "control-last-bit" not in runs.variants:
        return runs.failures.get("control-last-bit", "no control was run")
    found = _difference(first, runs.capture("control-last-bit"))
    if found is None or found.culprit != runs.site():
        seen = "none" if found is None else f"in {found}"
        return f"the last bit of an element was changed at {runs.site()}, and the first difference is {seen}"
    return None
