"""The candidate in the reference's words: which module and which parameter is which.

By the target's `names` and by equal names first; then by structure, order and values, for what these leave
on both sides. Modules that one side has fused are taken apart or put together, so that what follows finds
one module for one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, permutations

from validator.align.experts import restack_experts
from validator.align.fused import split_fused
from validator.align.fusions import (
    Fusion,
    declared_fusions,
    find_parts,
    fusion_of,
    lacking_below,
    usual_fusions,
)
from validator.align.names import map_modules, map_parameters, require_shared
from validator.align.patterns import Patterns, starred
from validator.align.rewriting import Rewritten
from validator.align.separate import join_separate
from validator.align.structure import match_structure
from validator.align.trees import Module, Tree, tree_of
from validator.align.turned import conv1d_weights, turned
from validator.align.values import Values
from validator.capturing.records import RankCapture
from validator.sharding.layout import Layout

__all__ = ["Named", "name_captures"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Captures whose modules and parameters stand for one each of the reference's.

    Attributes:
        captures: every rank's.
        modules: the reference's name of each module that ran and has a partner that ran.
        names: the reference's name of every module and parameter, whether the reference has it or not.
        owners: the candidate's own module or parameter behind each that was made.
        found: what structure and values told, as `names` would say it.
        problems: `(module of the reference, why)`.
        layouts: what the target declares of the parts of fused modules.
    """

    captures: tuple[RankCapture, ...]
    modules: Mapping[str, str]
    names: Mapping[str, str] = field(repr=False)
    owners: Mapping[str, str]
    found: Mapping[str, str]
    problems: tuple[tuple[str, str], ...]
    layouts: Mapping[str, Layout]

    def rename(self, name: str) -> str | None:
        """Return the reference's name of a module or parameter, or None."""
        return self.names.get(name)

    def own(self, name: str) -> str:
        """Return what the candidate calls the module or parameter."""
        return self.owners.get(name, name)


def name_captures(
    *,
    cand: Sequence[RankCapture],
    ref: RankCapture,
    patterns: Patterns,
    layouts: Mapping[str, Layout] | None = None,
) -> Named:
    """Find out what each module and parameter of the candidate is in the reference.

    Args:
        cand: every rank's capture.
        ref: the reference's.
        patterns: the target's `names`.
        layouts: what the target declares of the candidate's modules: how fused ones hold their parts.

    Raises:
        LayoutError: what is declared of a fused module does not fit its parts.
        MismatchError: the models share nothing, or `names` contradicts them.
    """
    ours, theirs = conv1d_weights(cand), conv1d_weights([ref])
    if ours and not theirs:
        cand = turned(cand, ours)
    namer = _Namer(tree_of(cand), tree_of([ref]), patterns)
    if not namer.is_likely():
        require_shared(namer.by_name, cand=_fired(cand), ref=_fired([ref]))
    split = split_fused(cand, namer.fused, layouts)
    joined = join_separate(split.captures, namer.separate)
    restacked = restack_experts(joined.captures, ref=ref, modules=namer.matched)
    made: list[Rewritten] = [split, joined, restacked]
    captures = restacked.captures
    known = {name for capture in captures for name in capture.modules}
    names = {name: new for name, new in namer.matched.items() if name in known}
    for rewritten in made:
        names |= {name: new for name, new in rewritten.modules.items() if name in known}
        names = {name: new for name, new in names.items() if name not in rewritten.inner}
    ran = set(_fired([ref]))
    modules = {name: names[name] for name in _fired(captures) if names.get(name) in ran}
    names |= map_parameters(
        cand=list(dict.fromkeys(name for capture in captures for name in capture.parameters)),
        modules=names,
        patterns=patterns,
        ref=ref.parameters,
    )
    for rewritten in made:
        names |= rewritten.parameters
    if theirs:
        captures = turned(
            captures, {name for name, new in names.items() if new in theirs and name not in ours}
        )
    return Named(
        captures=captures,
        modules=modules,
        names=names,
        owners={name: owner for rewritten in made for name, owner in rewritten.owners.items()},
        found=dict(starred(name, new) for name, new in namer.found.items()),
        problems=(*namer.problems(), *(problem for rewritten in made for problem in rewritten.problems)),
        layouts=split.layouts,
    )


def _fired(captures: Sequence[RankCapture]) -> list[str]:
    calls = (call for capture in captures for call in sorted(capture.calls, key=lambda call: call.start))
    return list(dict.fromkeys(call.module for call in calls))


class _Namer:
    """Names modules step by step: what a later step finds was left by those before."""

    def __init__(self, cand: Tree, ref: Tree, patterns: Patterns) -> None:
        self._cand = cand
        self._ref = ref
        self._values = Values(cand=cand, ref=ref)
        self.fused = list(declared_fusions(cand, ref, patterns))
        self.separate = list(_declared_separate(cand, ref, patterns))
        self.found: dict[str, str] = {}
        self._ambiguous: list[tuple[str, str]] = []
        taken = {fusion.whole for fusion in self.fused} | {
            x for fusion in self.separate for x in fusion.parts
        }
        names = [name for name in cand.modules if name not in taken]
        self.matched = map_modules(cand=names, ref=ref.modules, patterns=patterns)
        self._usual()
        self._by_structure()

    @property
    def by_name(self) -> dict[str, str]:
        """The reference's name, or one of them, of each module of the candidate that names say it of."""
        pairs = {fusion.whole: fusion.parts[0] for fusion in self.fused if fusion.whole not in self.found}
        pairs |= {part: fusion.whole for fusion in self.separate for part in fusion.parts}
        return pairs | {name: new for name, new in self.matched.items() if name not in self.found}

    def is_likely(self) -> bool:
        """Tell whether most of either model has a counterpart: any two models have some shapes in common."""
        sides = zip((self._cand, self._ref), self._taken(), strict=True)
        return all(
            2 * sum(module.own_elements for name, module in tree.modules.items() if name in taken)
            > tree.modules[""].elements
            for tree, taken in sides
        )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield what was asked for and not found after all."""
        known = set(self._taken()[1])
        yield from (problem for problem in self._ambiguous if problem[0] not in known)

    def _taken(self) -> tuple[set[str], set[str]]:
        """Return the modules of the candidate, and of the reference, that have a counterpart."""
        ours, theirs = set(self.matched), set(self.matched.values())
        for fusion in self.fused:
            ours.add(fusion.whole)
            theirs.update(fusion.parts)
        for fusion in self.separate:
            ours.update(fusion.parts)
            theirs.add(fusion.whole)
        return ours, theirs

    def _usual(self) -> None:
        for ours, theirs in list(lacking_below(self._cand, self._ref, self.matched, *self._taken())):
            self._add_usual(ours, theirs)

    def _add_usual(self, ours: Sequence[Module], theirs: Sequence[Module]) -> None:
        self.fused += usual_fusions(ours, theirs, self._cand.world_size)
        self.separate += usual_fusions(theirs, ours, 1)

    def _by_structure(self) -> None:
        ours, theirs = self._taken()
        structure = match_structure(
            cand=self._cand,
            ref=self._ref,
            named=self.matched,
            taken=(ours, theirs),
            values=self._values,
        )
        self.matched |= structure.modules
        self.found |= structure.modules
        self._ambiguous += structure.ambiguous
        for mine, others in structure.left:
            self._add_usual(mine, others)
            taken = self._taken()
            for whole in mine:
                if whole.fqn not in taken[0]:
                    self._add_run(whole, [other for other in others if other.fqn not in self._taken()[1]])
            for whole in others:
                if whole.fqn not in self._taken()[1]:
                    free = [one for one in mine if one.fqn not in self._taken()[0]]
                    self.separate += find_parts(whole, free, 1)[:1]

    def _add_run(self, whole: Module, others: Sequence[Module]) -> None:
        """Add modules that follow each other and make up another one, if there is one choice."""
        runs = find_parts(whole, others, self._cand.world_size)
        held = [fusion for run in runs for fusion in self._orders(run)]
        chosen = held[:1] or (runs if len(runs) == 1 else [])
        for fusion in chosen:
            self.fused.append(fusion)
            self.found[whole.fqn] = _braced(fusion)
        if runs and not chosen:
            old, new = starred(whole.fqn, _braced(runs[0]))
            why = f"may be in {whole.fqn!r} of the candidate: say which, such as names = {{{old!r}: {new!r}}}"
            self._ambiguous.append((runs[0].parts[0], why))

    def _orders(self, fusion: Fusion) -> Iterator[Fusion]:
        """Yield the order of the parts in which a module on one rank holds the reference's values."""
        if self._cand.world_size > 1:
            return
        leaf = next(iter(self._ref.modules[fusion.parts[0]].shapes))
        pairs = list(zip(fusion.parts, fusion.sizes, strict=True))
        for order in permutations(pairs):
            starts = accumulate((size for _, size in order), initial=0)
            if all(
                self._values.holds(f"{fusion.whole}.{leaf}", f"{part}.{leaf}", row=row)
                for (part, _), row in zip(order, starts, strict=False)
            ):
                yield Fusion(
                    whole=fusion.whole, parts=tuple(p for p, _ in order), sizes=tuple(s for _, s in order)
                )


def _declared_separate(cand: Tree, ref: Tree, patterns: Patterns) -> Iterator[Fusion]:
    for whole, parts in patterns.separate(cand.modules).items():
        if whole in ref.modules:
            fusion = fusion_of(ref.modules[whole], [cand.modules[part] for part in parts], 1)
            if fusion is not None:
                yield fusion


def _braced(fusion: Fusion) -> str:
    """Write the parts as `names` would."""
    parent = fusion.parts[0].rpartition(".")[0]
    inner = ",".join(part.rpartition(".")[2] for part in fusion.parts)
    return f"{parent}.{{{inner}}}".lstrip(".")
