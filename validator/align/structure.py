"""Which module of the candidate is which of the reference, where names don't say: by structure and order.

Below two modules that are one, what is left on both sides is paired by how many parameters it holds, which
neither other names nor fused or stacked weights change. Several that hold as many are paired by
their values, and by order where those don't tell. What has no counterpart is looked through: a level of
the tree that one side alone has.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from scipy.optimize import linear_sum_assignment

from validator.align.patterns import starred
from validator.align.trees import Module, Tree
from validator.align.values import Values

__all__ = ["Structure", "match_structure"]


ALIKE = 0.5
"""So far apart, relative to their size, outputs of one module may be, and relative to any other's distance.

Tensors that have nothing to do with each other are 1 apart or more: the root of two where both are as large.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """What structure says.

    Attributes:
        modules: the reference's name by the candidate's, of those that names did not match.
        left: modules without partner below two that are one: (candidate's, reference's), in order.
        ambiguous: why a module of the reference got no partner although there are some for it.
    """

    modules: Mapping[str, str]
    left: tuple[tuple[tuple[Module, ...], tuple[Module, ...]], ...]
    ambiguous: tuple[tuple[str, str], ...]


def match_structure(
    *,
    cand: Tree,
    ref: Tree,
    named: Mapping[str, str],
    values: Values,
    taken: tuple[Collection[str], Collection[str]] = ((), ()),
) -> Structure:
    """Match what names did not.

    Args:
        cand: the candidate's modules.
        ref: the reference's.
        named: the reference's name of each candidate module that has one by name. The model itself is
            the model itself, unless it has another.
        values: compares parameters.
        taken: what else has a counterpart: (of the candidate, of the reference).
    """
    return _Matcher(cand, ref, dict(named), values, taken).result()


class _Matcher:
    def __init__(
        self,
        cand: Tree,
        ref: Tree,
        matched: dict[str, str],
        values: Values,
        taken: tuple[Collection[str], Collection[str]],
    ) -> None:
        self._cand = cand
        self._ref = ref
        self._matched = matched
        self._taken = set(taken[0]) | matched.keys(), set(taken[1]) | set(matched.values())
        self._values = values
        self._found: dict[str, str] = {}
        self._left: list[tuple[tuple[Module, ...], tuple[Module, ...]]] = []
        self._ambiguous: list[tuple[str, str]] = []

    def result(self) -> Structure:
        if "" not in self._taken[0] and "" not in self._taken[1]:
            self._add("", "")
        stack = [fqn for fqn in self._cand.modules if fqn in self._matched]
        seen: set[str] = set()
        while stack:
            fqn = stack.pop(0)
            if fqn not in seen:
                seen.add(fqn)
                stack[:0] = self._below(fqn, self._matched[fqn])
        return Structure(
            modules=self._found, left=tuple(self._left), ambiguous=tuple(dict.fromkeys(self._ambiguous))
        )

    def _below(self, cand: str, ref: str) -> list[str]:
        """Match what is left below two modules that are one, and return what was matched."""
        ours = list(_open(self._cand, cand, self._taken[0]))
        theirs = list(_open(self._ref, ref, self._taken[1]))
        new: list[str] = []
        while ours and theirs:
            for group, others in list(self._groups(ours, theirs)):
                for one, other in self._assigned(group, others):
                    self._add(one.fqn, other.fqn)
                    new.append(one.fqn)
                    ours.remove(one)
                    theirs.remove(other)
            containers = [
                (module.elements, side, module)
                for side, modules in enumerate((ours, theirs))
                for module in modules
                if not module.is_leaf
            ]
            if not containers:
                break
            _, side, largest = max(containers, key=lambda item: (item[0], item[1]))
            tree, modules = (self._ref, theirs) if side else (self._cand, ours)
            place = modules.index(largest)
            modules[place : place + 1] = _open(tree, largest.fqn, self._taken[side])
        if ours and theirs:
            self._left.append((tuple(ours), tuple(theirs)))
        return new

    def _add(self, cand: str, ref: str) -> None:
        self._matched[cand] = self._found[cand] = ref
        self._taken[0].add(cand)
        self._taken[1].add(ref)

    def _groups(
        self, ours: Sequence[Module], theirs: Sequence[Module]
    ) -> Iterator[tuple[list[Module], list[Module]]]:
        """Yield the modules of both sides that could be each other's partners, all those together."""
        left = list(ours)
        while left:
            group, others = [left.pop(0)], list[Module]()
            size = 0
            while size < len(group) + len(others):
                size = len(group) + len(others)
                others = [x for x in theirs if any(self._may_be(one, x) for one in group)]
                group += [one for one in left if any(self._may_be(one, x) for x in others)]
                left = [one for one in left if one not in group]
            if others:
                yield sorted(group, key=ours.index), others

    def _may_be(self, one: Module, other: Module) -> bool:
        world = self._cand.world_size
        if not one.elements <= other.elements <= one.elements * world:
            return False
        if one.is_leaf and other.is_leaf:
            shapes = list(one.shapes.values()), list(other.shapes.values())
            is_turned = "Conv1D" in one.type + other.type
            return len(shapes[0]) == len(shapes[1]) and _fit(*shapes, world, is_turned=is_turned)
        if one.is_leaf or other.is_leaf:
            return world == 1
        return one.is_list == other.is_list

    def _assigned(self, group: Sequence[Module], others: Sequence[Module]) -> list[tuple[Module, Module]]:
        """Pair modules that may all be each other's: by number, else by value, and by order in what is left.

        Order and number tell nothing where the counts differ, or shards are only known not to be too large.
        """
        sizes = {module.elements for module in (*group, *others)}
        is_told = len(group) == len(others) and (len(sizes) == 1)
        if is_told and all(module.leaf.isdigit() for module in (*group, *others)):
            return list(zip(group, others, strict=True))
        if is_told and len(group) == 1:
            return [(group[0], others[0])]
        shared = [[self._values.shared(one.fqn, other.fqn) for other in others] for one in group]
        cost = [
            [abs(i - j) / (len(group) * len(others)) ** 2 - value for j, value in enumerate(row)]
            for i, row in enumerate(shared)
        ]
        pairs = [(int(i), int(j)) for i, j in zip(*linear_sum_assignment(cost), strict=True)]
        if not is_told:
            told = [(i, j) for i, j in pairs if _is_only_one(shared, i, j)]
            told += self._by_outputs(group, others, told)
            known = [set(places) for places in zip(*told, strict=True)] or [set(), set()]
            for i, j in pairs:
                if j not in known[1] and others[j].shapes:
                    choice = [one for k, one in enumerate(group) if k not in known[0]]
                    best = group[i] if i not in known[0] else choice[0] if choice else group[i]
                    self._ambiguous.append((others[j].fqn, _asked(best, choice or [best], others[j])))
            pairs = told
        return [(group[i], others[j]) for i, j in pairs]

    def _by_outputs(
        self, group: Sequence[Module], others: Sequence[Module], told: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Pair those that are left and returned nearly the same, and nearly the same as no other."""
        rows = [i for i in range(len(group)) if i not in {i for i, _ in told}]
        columns = [j for j in range(len(others)) if j not in {j for _, j in told}]
        apart = {(i, j): self._values.distance(group[i].fqn, others[j].fqn) for i in rows for j in columns}

        def is_near(i: int, j: int) -> bool:
            rivals = [d for (k, m), d in apart.items() if (k == i) != (m == j)]
            return apart[i, j] < ALIKE and all(apart[i, j] < ALIKE * rival for rival in rivals)

        return [(i, j) for i in rows for j in columns if is_near(i, j)]


def _open(tree: Tree, fqn: str, taken: Collection[str]) -> Iterator[Module]:
    """Yield what has parameters and no partner below a module; what holds matched modules is opened."""
    for child in tree.modules[fqn].children:
        module = tree.modules[child]
        if child in taken or not module.elements:
            continue
        if any(inner.fqn in taken for inner in tree.inside(child)):
            yield from _open(tree, child, taken)
        else:
            yield module


def _fit(
    ours: Sequence[tuple[int, ...]], theirs: Sequence[tuple[int, ...]], world: int, *, is_turned: bool
) -> bool:
    """Tell whether shapes are the same, or shards of the same; in a `Conv1D` weights lie the other way."""
    if world == 1:
        return sorted(ours) == sorted(theirs) or (
            is_turned and sorted(map(sorted, ours)) == sorted(map(sorted, theirs))
        )
    return all(
        len(own) == len(other) and all(x <= y <= x * world for x, y in zip(own, other, strict=True))
        for own, other in zip(ours, theirs, strict=True)
    )


def _is_only_one(shared: Sequence[Sequence[float]], i: int, j: int) -> bool:
    """Tell whether two modules share values, and neither as many with another."""
    others = [row[j] for k, row in enumerate(shared) if k != i] + [
        x for k, x in enumerate(shared[i]) if k != j
    ]
    return shared[i][j] > max(others, default=0.0)


def _asked(best: Module, choice: Sequence[Module], other: Module) -> str:
    names = " or ".join(repr(module.fqn) for module in choice)
    old, new = starred(best.fqn, other.fqn)
    return f"may be {names} of the candidate: say which, such as names = {{{old!r}: {new!r}}}"
