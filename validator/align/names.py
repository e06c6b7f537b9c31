"""The candidate's names in the reference's words: patterns of the target, and wrappers taken off.

    names = {"model.layers.*.attn": "model.layers.*.self_attn"}

A `*` stands for any text and is carried over. A pattern names a module and all below it, its
parameters included; the pattern `""` names the model itself.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from validator.errors import MismatchError

__all__ = ["NameMap", "map_modules"]

_WRAPPERS = ("module", "_orig_mod", "model")


class NameMap:
    """Translates fqns of the candidate into those of the reference.

    Args:
        patterns: candidate pattern to reference pattern, with as many `*` on both sides.
        strip: prefix that the candidate has and the reference has not.
        add: prefix that the reference has and the candidate has not.

    Raises:
        MismatchError: a pattern and its replacement have different numbers of `*`.
    """

    def __init__(self, patterns: Mapping[str, str], *, strip: str = "", add: str = "") -> None:
        self.strip = strip
        self.add = add
        self._rules = [(old, _regex(old), _template(old, new)) for old, new in patterns.items()]
        # A pattern that says more goes first, so that a rule for one child beats that of its parent.
        self._rules.sort(key=lambda rule: len(rule[0].replace("*", "")), reverse=True)

    def __call__(self, name: str) -> str | None:
        """Return the reference's name, or None for a name outside of the wrapped module."""
        for _, regex, template in self._rules:
            if match := regex.match(name):
                return _join(match.expand(template), name[match.end() :].lstrip("."))
        if self.strip:
            if name != self.strip and not name.startswith(f"{self.strip}."):
                return None
            name = name[len(self.strip) + 1 :]
        return _join(self.add, name)

    def unused(self, names: Iterable[str]) -> list[str]:
        """Return the patterns that match none of these names."""
        names = list(names)
        return [pattern for pattern, regex, _ in self._rules if not any(map(regex.match, names))]


def map_modules(
    *, cand: Sequence[str], ref: Sequence[str], patterns: Mapping[str, str]
) -> tuple[NameMap, dict[str, str]]:
    """Match the modules of both sides by name.

    Names that are equal match. A wrapper (`module.`, `_orig_mod.`, `model.`) is taken off one side or
    the other where more names match so.

    Args:
        cand: fqns of the candidate's modules that ran; the model itself is `""`.
        ref: those of the reference.
        patterns: the target's `names`.

    Returns:
        The translation, and the reference's name of each candidate module that has a partner.

    Raises:
        MismatchError: no name is shared, or two modules get the same name.
    """
    maps = [NameMap(patterns)]
    maps += [NameMap(patterns, strip=wrapper) for wrapper in _WRAPPERS]
    maps += [NameMap(patterns, add=wrapper) for wrapper in _WRAPPERS]
    names, matched = max(((names, _match(names, cand, ref)) for names in maps), key=lambda pair: len(pair[1]))
    # The model itself is "" on every side: that says nothing where there are other modules.
    if any(matched.values()) or (matched and min(len(cand), len(ref)) == 1):
        _require_distinct(matched)
        return names, matched
    raise MismatchError(
        "the two models share no module name, so nothing can be compared.\n"
        f"  candidate: {_some(cand)}\n  reference: {_some(ref)}\n"
        'Say in the target which is which, such as names = {"decoder.blocks.*": "model.layers.*"}'
    )


def _match(names: NameMap, cand: Sequence[str], ref: Collection[str]) -> dict[str, str]:
    known = set(ref)
    return {name: new for name in cand if (new := names(name)) in known and new is not None}


def _require_distinct(matched: Mapping[str, str]) -> None:
    owners: dict[str, str] = {}
    for name, new in matched.items():
        if new in owners:
            raise MismatchError(
                f"names: {owners[new]!r} and {name!r} of the candidate are both {new!r} of the reference; "
                "make the patterns say which one is"
            )
        owners[new] = name


def _regex(pattern: str) -> re.Pattern[str]:
    if not pattern:
        return re.compile("")  # the model itself: all names are below it
    return re.compile("(.*?)".join(map(re.escape, pattern.split("*"))) + r"(?=\.|$)")


def _template(pattern: str, new: str) -> str:
    if pattern.count("*") != new.count("*"):
        raise MismatchError(
            f"names: {pattern!r} has {pattern.count('*')} wildcards and {new!r} has {new.count('*')}; "
            "each * is carried over, so both need the same number"
        )
    pieces = new.replace("\\", r"\\").split("*")
    return pieces[0] + "".join(rf"\g<{i}>{piece}" for i, piece in enumerate(pieces[1:], 1))


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name


def _some(names: Sequence[str]) -> str:
    inner = [name for name in names if name]
    shown, rest = inner[:4], len(inner[4:])
    return ", ".join(map(repr, shown)) + (f" and {rest} more" if rest else "") if shown else "the model alone"
