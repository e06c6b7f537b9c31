"""Which module of one side computes what the other has several for.

The target's `names` say so with braces; usual names are recognised where the other side has the parts and
the shapes allow it. Where names say nothing, modules that follow each other and add up do.

Shape legend: O_i = output channels of a part, on all ranks; I = input channels.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from validator.align.patterns import Patterns
from validator.align.trees import Module, Tree
from validator.errors import MismatchError

__all__ = [
    "Fusion",
    "declared_fusions",
    "find_parts",
    "fusion_of",
    "lacking_below",
    "part_sizes",
    "usual_fusions",
]

_FUSED = ("qkv", "query_key_value", "w_pack", "wqkv", "c_attn", "in_proj", "gate_up", "w13", "kv_proj")
"""How names of fused modules begin, in any case."""

_PARTS = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("q", "k", "v"),
    ("wq", "wk", "wv"),
    ("q_lin", "k_lin", "v_lin"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("k_proj", "v_proj"),
)
"""Parts that are fused, in the order in which a fused module usually holds them."""

_MOST_PARTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """A module that computes what several do on the other side.

    Attributes:
        whole: its fqn.
        parts: fqns of the others, in the order in which it holds them.
        sizes: output channels of each part.
    """

    whole: str
    parts: tuple[str, ...]
    sizes: tuple[int, ...]

    def part_name(self, part: str) -> str:
        """Return what a part is called among the modules of the side that has the whole."""
        return f"{self.whole}[{part.rpartition('.')[2]}]"


def part_sizes(sizes: Sequence[int], width: int, world_size: int) -> tuple[int, ...] | None:
    """Return how much of each part a rank holds whose tensor is so wide, or None where that can't be told.

    Args:
        sizes: O_i.
        width: of what the rank holds of all parts.
        world_size: the parts are whole or divided by a divisor of this; all by the same, unless the first is
            of queries and the others, alike in size, are of fewer heads and divided by less.
    """
    divisors = [n for n in range(1, world_size + 1) if world_size % n == 0]
    for n in divisors:
        if all(size % n == 0 for size in sizes) and sum(sizes) == n * width:
            return tuple(size // n for size in sizes)
    first, *rest = sizes
    if len(rest) < 2 or len(set(rest)) > 1:
        return None
    found = [
        (first // n, *[rest[0] // m] * len(rest))
        for n in divisors
        for m in divisors
        if m < n and n % m == 0 and first % n == 0 and rest[0] % m == 0
        if first // n + rest[0] // m * len(rest) == width
    ]
    return found[0] if len(found) == 1 else None


def declared_fusions(cand: Tree, ref: Tree, patterns: Patterns) -> Iterator[Fusion]:
    """Yield the candidate's modules that `names` declares to hold several of the reference's.

    Raises:
        MismatchError: the reference has no such parts, or their sizes don't add up.
    """
    for fqn, module in cand.modules.items():
        parts = patterns.fused(fqn)
        if not parts:
            continue
        lacking = [part for part in parts if part not in ref.modules]
        if lacking:
            raise MismatchError(f"names: {fqn!r} is said to hold {lacking[0]!r}, which the reference has not")
        fusion = fusion_of(module, [ref.modules[part] for part in parts], cand.world_size)
        if fusion is None and module.shapes:
            ours = ", ".join(f"{leaf} {list(shape)}" for leaf, shape in module.shapes.items())
            theirs = ", ".join(f"{part} {_shapes(ref.modules[part])}" for part in parts)
            raise MismatchError(f"names: {fqn!r} ({ours}) can't hold {theirs}; mend the parts in braces")
        if fusion is not None:
            yield fusion


def usual_fusions(
    whole_side: Sequence[Module], part_side: Sequence[Module], world_size: int
) -> Iterator[Fusion]:
    """Yield modules with a usual name for what the other side has several modules with usual names for.

    Args:
        whole_side: modules without counterpart, below one parent.
        part_side: those of the other side, below its counterpart.
        world_size: ranks that the whole may be split over.
    """
    by_leaf = {module.leaf: module for module in part_side}
    taken: set[str] = set()
    for whole in whole_side:
        if not whole.leaf.lower().startswith(_FUSED):
            continue
        for names in _PARTS:
            if taken.isdisjoint(names) and all(name in by_leaf for name in names):
                fusion = fusion_of(whole, [by_leaf[name] for name in names], world_size)
                if fusion is not None:
                    taken.update(names)
                    yield fusion
                    break


def find_parts(whole: Module, others: Sequence[Module], world_size: int) -> list[Fusion]:
    """Return all runs of modules that follow each other and together have the shapes of another one."""
    found = []
    for start in range(len(others)):
        for stop in range(start + 2, min(start + _MOST_PARTS, len(others)) + 1):
            fusion = fusion_of(whole, others[start:stop], world_size)
            if fusion is not None:
                found.append(fusion)
    return found


def fusion_of(whole: Module, parts: Sequence[Module], world_size: int) -> Fusion | None:
    """Return the fusion of these parts, or None where the shapes contradict it.

    All have the same parameters: `[O_i, I]` weights, `[O_i]` biases. The whole may have more, such as scales.
    """
    leaves = parts[0].shapes.keys()
    if not leaves or not leaves <= whole.shapes.keys() or any(part.shapes.keys() != leaves for part in parts):
        return None
    sizes: set[tuple[int, ...]] = set()
    for leaf in leaves:
        own, others = whole.shapes[leaf], [part.shapes[leaf] for part in parts]
        if not own or not all(others) or any(other[1:] != own[1:] for other in others):
            return None
        rows = tuple(other[0] for other in others)
        if part_sizes(rows, own[0], world_size) is None:
            return None
        sizes.add(rows)
    if len(sizes) > 1:
        return None
    return Fusion(whole=whole.fqn, parts=tuple(part.fqn for part in parts), sizes=sizes.pop())


def lacking_below(
    cand: Tree,
    ref: Tree,
    matched: Mapping[str, str],
    ours_taken: Collection[str],
    theirs_taken: Collection[str],
) -> Iterator[tuple[list[Module], list[Module]]]:
    """Yield the children without counterpart of each two modules that are one, where both sides have some."""
    for fqn, new in matched.items():
        ours = _free(cand, fqn, ours_taken)
        theirs = _free(ref, new, theirs_taken)
        if ours and theirs:
            yield ours, theirs


def _free(tree: Tree, fqn: str, taken: Collection[str]) -> list[Module]:
    children = (tree.modules[child] for child in tree.modules[fqn].children if child not in taken)
    return [child for child in children if child.shapes]


def _shapes(module: Module) -> str:
    return ", ".join(f"{leaf} {list(shape)}" for leaf, shape in module.shapes.items())
