"""An outcome as one screen of terminal text.

The first line is the verdict; then the first finding with its evidence, the other findings, what
was checked and what was not, and the end-to-end figures.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from validator import digits
from validator.capturing.provenance import LOOKING_CHANGED
from validator.checks.findings import Outcome, Unchecked, Unobservable, Verdict
from validator.report import facts, finding_text, phrases
from validator.report.screen import Row, Screen, Section, Table, plain_text

__all__ = ["STYLES", "checked_section", "distribution_rows", "headline", "render", "to_text"]

STYLES = {
    Verdict.ALIGNED: "bold green",
    Verdict.UNDECLARED_PRECISION: "bold yellow",
    Verdict.DIVERGENT: "bold red",
    Verdict.INCONCLUSIVE: "bold magenta",
}
_REASONS = 3
_NAMES = 3
_NOTES = 5
_NOTHING_ELSE = "that nothing else is wrong"


def render(outcome: Outcome) -> Screen:
    """Return the outcome as a rich renderable; it wraps to the width of the console that prints it."""
    subject = facts.subject(outcome)
    sections: list[Section | Table] = []
    if subject is not None:
        sections.append(finding_text.first_section(outcome, subject))
        others = [finding for finding in outcome.findings if finding is not subject]
        if others:
            sections.append(finding_text.further_section(others))
    sections.append(checked_section(outcome))
    return Screen(headline=headline(outcome), style=STYLES[outcome.verdict], sections=tuple(sections))


def to_text(outcome: Outcome, width: int = 80) -> str:
    """Return the outcome as plain text, wrapped at `width` columns, without a trailing newline."""
    return plain_text(render(outcome), width)


def headline(outcome: Outcome) -> str:
    """Return the verdict in one sentence, with the first finding where there is one."""
    subject = facts.subject(outcome)
    verdict = outcome.verdict.replace("_", " ")
    if outcome.verdict is Verdict.INCONCLUSIVE:
        return f"{verdict}: no findings, but {_why_no_proof(outcome)}"
    if subject is None:
        return f"{verdict}: {_explained(outcome)}"
    return f"{verdict}: first at {finding_text.place_of(subject)}"


def checked_section(outcome: Outcome) -> Section:
    """Return what was checked and what was not, the end-to-end figures, and notes."""
    return Section(rows=tuple(_summary(outcome)))


def _why_no_proof(outcome: Outcome) -> str:
    """Return in a few words why an absence of findings proves nothing."""
    are_of_looking = [reason.startswith(LOOKING_CHANGED) for reason in outcome.why_inconclusive]
    words = [LOOKING_CHANGED] if any(are_of_looking) else []
    if not words or not all(are_of_looking):
        words.append("too little was checked to call it aligned")
    return ", and ".join(words)


def _explained(outcome: Outcome) -> str:
    edges = len(facts.edges(outcome))
    layers, recipes, ranks = facts.layers(outcome), facts.recipes(outcome), facts.world_size(outcome)
    device = [
        facts.storage_format(outcome),
        phrases.count(ranks, "rank") if ranks > 1 else "",
    ]
    words = [
        phrases.count(edges, "edge"),
        f"of {phrases.count(layers, 'layer')}" if layers else "",
        "explained by rounding",
        f"({'recipe' if len(recipes) == 1 else 'recipes'} {', '.join(recipes)})" if recipes else "",
    ]
    return ", ".join(filter(None, (" ".join(filter(None, words)), *device))) + " against the float64 oracle"


def _summary(outcome: Outcome) -> Iterator[Row]:
    if outcome.findings:
        yield from _limited("not shown", [f"{_NOTHING_ELSE}: {why}" for why in outcome.why_inconclusive])
    else:
        yield from _limited("why", outcome.why_inconclusive)
    counts = [f"{check} {n}" for check, n in facts.checked(outcome).items() if n]
    yield Row(label="checked", text=", ".join(counts) or "nothing")
    if outcome.unchecked:
        yield Row(label="unchecked", text=_reasons(outcome.unchecked))
    if outcome.unobservable:
        yield from _unobservable(outcome.unobservable)
    yield from distribution_rows(outcome)
    yield from _limited("note", outcome.notes)


def _limited(label: str, texts: Sequence[str]) -> Iterator[Row]:
    for text in texts[:_NOTES]:
        yield Row(label=label, text=text)
    if len(texts) > _NOTES:
        yield Row(label=label, text=f"... and {len(texts) - _NOTES} more")


def _reasons(items: Sequence[Unchecked]) -> str:
    """Return how many there are, and for each of the first reasons which modules have it."""
    by_reason: dict[str, list[str]] = {}
    for item in items:
        by_reason.setdefault(item.why, []).append(phrases.module_name(item.module))
    shown = [f"{phrases.listing(names, _NAMES)} ({why})" for why, names in by_reason.items()]
    return f"{len(items)}: {phrases.listing(shown, _REASONS, '; ')}"


def _unobservable(items: Sequence[Unobservable]) -> Iterator[Row]:
    """One row for each of the first kinds of fault that would not have shown, the most frequent first."""
    kinds: dict[tuple[str, str], dict[str, Unobservable]] = {}
    for item in items:
        kinds.setdefault((item.what, item.why), {}).setdefault(item.module, item)
    ordered = sorted(kinds.items(), key=lambda kind: -len(kind[1]))
    for (what, why), modules in ordered[:_REASONS]:
        first = next(iter(modules.values()))
        yield Row(
            label="unobservable",
            text=f"{what} in {phrases.group(list(modules))}: {why}; {first.propose} would show it",
        )
    if len(ordered) > _REASONS:
        yield Row(label="unobservable", text=f"... and {len(ordered) - _REASONS} more kinds (see --json)")


def distribution_rows(outcome: Outcome) -> Iterator[Row]:
    """Yield rows for the figures of `numerics.distributions`; those that are missing are left out."""
    figures = outcome.distribution or {}
    ways = [
        f"{name} mean {digits.number(figures[key]['mean'])}, max {digits.number(figures[key]['max'])}"
        for key, name in (("kl", "ref to cand"), ("kl_reverse", "cand to ref"))
        if figures.get(key) is not None
    ]
    if ways:
        yield Row(label="KL", text="; ".join(ways) + _floors(figures))
    if figures.get("top1_agreement") is not None:
        positions = f" of {figures['positions']} positions" if "positions" in figures else ""
        share = digits.percent(figures["top1_agreement"])
        yield Row(label="top-1", text=f"same token at {share}{positions}{_flips(figures.get('flips'))}")


def _floors(figures: Mapping[str, Any]) -> str:
    """Say what KL noise alone would give: noise as great as the logits', and that of storing them."""
    if figures.get("kl_noise_floor") is None:
        return ""
    storage = ""
    if figures.get("kl_storage_floor") is not None:
        storage = f", storing them alone {digits.number(figures['kl_storage_floor'])}"
    return f" (noise like that of the logits gives {digits.number(figures['kl_noise_floor'])}{storage})"


def _flips(flips: Mapping[str, Any] | None) -> str:
    if not flips or not flips["count"]:
        return ""
    explained = f"; {flips['explained']} of {phrases.count(flips['count'], 'flip')} explained by the margin"
    if flips.get("p_value") is None:
        return explained
    expected, p = digits.number(flips["expected"]), digits.number(flips["p_value"])
    return f"{explained}, {expected} expected (p = {p})"
