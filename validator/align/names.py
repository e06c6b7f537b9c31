"""Which module of the candidate is which of the reference, by name: patterns, wrappers and prefixes.

A wrapper is a module that holds another and nothing else (`module`, `_orig_mod`, ...). It is taken out of a
name wherever it stands, since only what it holds has a counterpart. What is left may lie below another
prefix than the reference's (`model.`, `language_model.model.`): the pair of prefixes by which most
names match is exchanged. The target's patterns come before both.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product

from validator.align.patterns import Patterns
from validator.errors import MismatchError

__all__ = ["map_modules", "map_parameters", "require_shared"]

_HOLDERS = ("module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""What DistributedDataParallel, torch.compile, activation checkpointing and FSDP call what they hold."""

_PREFIX_DEPTH = 3
"""So many names deep a model may lie inside another that is compared with it."""


def map_modules(*, cand: Sequence[str], ref: Collection[str], patterns: Patterns) -> dict[str, str]:
    """Match the modules of both sides by name.

    Args:
        cand: fqns of all modules of the candidate, outer ones first; the model itself is `""`.
        ref: those of the reference.
        patterns: the target's `names`.

    Returns:
        The reference's name of each candidate module that has a partner.

    Raises:
        MismatchError: patterns give two modules the same name.
    """
    known = set(ref)
    matched: dict[str, str] = {}
    owners: dict[str, str] = {}
    inner = _unwrapped(cand, known)
    for name in cand:
        new = patterns(name)
        new = patterns(inner[name]) if new is None and name in inner else new
        if new in known and new is not None:
            if new in owners:
                raise _clash(owners[new], name, new)
            matched[name] = new
            owners[new] = name
    rest = {name: short for name, short in inner.items() if patterns(name) is patterns(short) is None}
    best = _exchanged(rest, known, "", "")
    enough = min(len(rest), len(known)) / 2
    for old, new in product(_prefixes(rest.values()), list(_prefixes(known))):
        if len(best) == len(rest):
            break
        found = _exchanged(rest, known, old, new)
        # Numbers are everywhere: the layers of two lists match whatever they are.
        telling = [name for name in found if not name.rpartition(".")[2].isdigit()]
        if len(found) > len(best) and len(telling) >= enough:
            best = found
    for name, new in best.items():
        if new in owners and not rest[name] == new == "":
            raise _clash(owners[new], name, new)
        if new not in owners:
            matched[name] = new
    return {name: matched[name] for name in cand if name in matched}


def map_parameters(
    *, cand: Sequence[str], modules: Mapping[str, str], patterns: Patterns, ref: Collection[str]
) -> dict[str, str]:
    """Return the reference's name of each parameter: a pattern's, or that in its module's counterpart."""
    names: dict[str, str] = {}
    for name in cand:
        owner, _, leaf = name.rpartition(".")
        new = patterns(name)
        if new not in ref and owner in modules:
            new = f"{modules[owner]}.{leaf}" if modules[owner] else leaf
        if new is not None:
            names[name] = new
    return names


def require_shared(matched: Mapping[str, str], *, cand: Sequence[str], ref: Sequence[str]) -> None:
    """Raise if the two models have nothing in common but that each is one.

    Args:
        matched: the reference's name by the candidate's.
        cand: fqns of the candidate's modules that ran.
        ref: those of the reference.
    """
    # The model itself is "" on every side: that says nothing where there are other modules.
    if any(matched.get(name) for name in cand) or (matched and min(len(cand), len(ref)) == 1):
        return
    raise MismatchError(
        "the two models share no module name, so nothing can be compared.\n"
        f"  candidate: {_some(cand)}\n  reference: {_some(ref)}\n"
        'Say in the target which is which, such as names = {"decoder.blocks.*": "model.layers.*"}'
    )


def _unwrapped(names: Sequence[str], known: Collection[str]) -> dict[str, str]:
    """Return each name without the wrappers on its path; modules that wrap another are left out."""
    children: dict[str, list[str]] = {}
    for name in names:
        if name:
            children.setdefault(name.rpartition(".")[0], []).append(name)
    held = {
        inner
        for inners in children.values()
        for inner in inners
        if inner.rpartition(".")[2] in _HOLDERS and inner not in known and len(inners) == 1
    }
    wrappers = {inner.rpartition(".")[0] for inner in held}
    short: dict[str, str] = {}
    for name in names:
        parts = name.split(".") if name else []
        path = [part for i, part in enumerate(parts) if ".".join(parts[: i + 1]) not in held]
        if name not in wrappers:
            short[name] = ".".join(path)
    return short


def _prefixes(names: Collection[str]) -> Iterator[str]:
    """Yield names of modules that a whole model may lie in, the shortest first."""
    found = {""}
    for name in names:
        parts = name.split(".")[:_PREFIX_DEPTH]
        for count, part in enumerate(parts, 1):
            if part.isdigit():
                break
            found.add(".".join(parts[:count]))
    parents = {name.rpartition(".")[0] for name in names if name}
    yield from sorted(found & parents | {""}, key=lambda prefix: (prefix.count(".") + bool(prefix), prefix))


def _exchanged(names: Mapping[str, str], known: Collection[str], old: str, new: str) -> dict[str, str]:
    """Match the names with one prefix in place of another, and what lies outside of it as it is."""
    matched: dict[str, str] = {}
    start = f"{old}." if old else ""
    for name, short in names.items():
        if short == old or short.startswith(start):
            moved = ".".join(filter(None, (new, short[len(start) :])))
            if moved in known:
                matched[name] = moved
    taken = set(matched.values())
    for name, short in names.items():
        if name not in matched and short in known and short not in taken:
            matched[name] = short
    return matched


def _clash(first: str, second: str, new: str) -> MismatchError:
    return MismatchError(
        f"names: {first!r} and {second!r} of the candidate are both {new!r} of the reference; "
        "make the patterns say which one is"
    )


def _some(names: Sequence[str]) -> str:
    inner = [name for name in names if name]
    shown, rest = inner[:4], len(inner[4:])
    return ", ".join(map(repr, shown)) + (f" and {rest} more" if rest else "") if shown else "the model alone"
