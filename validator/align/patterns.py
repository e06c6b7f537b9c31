"""The target's `names`: patterns of the candidate's names, and the reference's names that they stand for.

    names = {
        "model.layers.*.attn": "model.layers.*.self_attn",
        "model.layers.*.self_attn.qkv": "model.layers.*.self_attn.{q_proj,k_proj,v_proj}",
    }

A `*` stands for any text and is carried over. A pattern names a module and all below it, its
parameters included; the pattern `""` names the model itself. Braces list parts as a shell expands
them: on the right those that one module of the candidate computes, in the order in which it holds them;
on the left modules that the reference has as one; on both sides pairs.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from validator.errors import MismatchError

__all__ = ["Patterns", "starred"]


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: str
    old: tuple[re.Pattern[str], ...]
    new: tuple[str, ...]

    @property
    def renames(self) -> bool:
        return len(self.old) == len(self.new) == 1


class Patterns:
    """Reads the target's `names`.

    Args:
        names: candidate pattern to reference pattern, with as many `*` on both sides.

    Raises:
        MismatchError: a pattern can't be read.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        # A pattern that says more goes first, so that a rule for one child beats that of its parent.
        ordered = sorted(names.items(), key=lambda item: len(item[0].replace("*", "")), reverse=True)
        self._rules = [rule for old, new in ordered for rule in _rules(old, new)]
        self._names = dict(names)

    def __call__(self, name: str) -> str | None:
        """Return the reference's name that a pattern gives, or None where none matches."""
        for rule in self._rules:
            if rule.renames and (match := rule.old[0].match(name)):
                return _below(match, rule.new[0])
        return None

    def fused(self, name: str) -> tuple[str, ...]:
        """Return the reference's names of the parts that a module is declared to hold, in order, or none."""
        for rule in self._rules:
            if len(rule.new) > 1 and (match := rule.old[0].fullmatch(name)):
                return tuple(match.expand(new) for new in rule.new)
        return ()

    def separate(self, names: Collection[str]) -> dict[str, tuple[str, ...]]:
        """Return which modules of the candidate are declared to be one of the reference's, by its name."""
        known = set(names)
        found: dict[str, tuple[str, ...]] = {}
        for rule in self._rules:
            if len(rule.old) == 1:
                continue
            by_stars = [
                {match.groups(): (name, match) for name in known if (match := regex.fullmatch(name))}
                for regex in rule.old
            ]
            for stars, (_, match) in by_stars[0].items():
                if all(stars in matches for matches in by_stars):
                    found[match.expand(rule.new[0])] = tuple(matches[stars][0] for matches in by_stars)
        return found

    def unused(self, names: Iterable[str]) -> list[str]:
        """Return the patterns that match none of these names."""
        names = list(names)
        used = {
            rule.pattern
            for rule in self._rules
            if any(regex.match(name) for regex in rule.old for name in names)
        }
        return [pattern for pattern in self._names if pattern not in used]


def starred(name: str, new: str) -> tuple[str, str]:
    """Return the pattern and its replacement that say what two names do, numbers that both share as `*`."""
    old_parts, new_parts = name.split("."), new.split(".")
    shared = [part for part in old_parts if part.isdigit()]
    if shared != [part for part in new_parts if part.isdigit()]:
        return name, new
    old, replaced = (
        ".".join("*" if part.isdigit() else part for part in parts) for parts in (old_parts, new_parts)
    )
    return old, replaced


def _rules(pattern: str, new: str) -> list[_Rule]:
    if pattern.count("*") != new.count("*"):
        raise MismatchError(
            f"names: {pattern!r} has {pattern.count('*')} wildcards and {new!r} has {new.count('*')}; "
            "each * is carried over, so both need the same number"
        )
    olds, news = _expanded(pattern), _expanded(new)
    if len(olds) == len(news):
        return [_Rule(pattern, (_regex(a),), (_template(b),)) for a, b in zip(olds, news, strict=True)]
    if 1 not in (len(olds), len(news)):
        raise MismatchError(
            f"names: {pattern!r} lists {len(olds)} parts and {new!r} lists {len(news)}; "
            "list as many on both sides, or braces on one side alone"
        )
    return [_Rule(pattern, tuple(map(_regex, olds)), tuple(map(_template, news)))]


def _expanded(pattern: str) -> list[str]:
    """Expand one pair of braces."""
    match = re.fullmatch(r"([^{}]*)\{([^{}]*)\}([^{}]*)", pattern)
    if match is None:
        if "{" in pattern or "}" in pattern:
            raise MismatchError(
                f"names: {pattern!r}: write one pair of braces around the parts, such as {{q_proj,k_proj}}"
            )
        return [pattern]
    before, inside, after = match.groups()
    parts = [part.strip() for part in inside.split(",")]
    if not all(parts) or len(set(parts)) < len(parts) or "*" in inside:
        raise MismatchError(
            f"names: {pattern!r}: the parts in braces have to be different names without wildcards"
        )
    return [before + part + after for part in parts]


def _regex(pattern: str) -> re.Pattern[str]:
    if not pattern:
        return re.compile("")  # the model itself: all names are below it
    return re.compile("(.*?)".join(map(re.escape, pattern.split("*"))) + r"(?=\.|$)")


def _template(new: str) -> str:
    pieces = new.replace("\\", r"\\").split("*")
    return pieces[0] + "".join(rf"\g<{i}>{piece}" for i, piece in enumerate(pieces[1:], 1))


def _below(match: re.Match[str], template: str) -> str:
    return ".".join(filter(None, (match.expand(template), match.string[match.end() :].lstrip("."))))
