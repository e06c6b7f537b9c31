"""The modules of a run as a tree, each with its edges and the worst that was said of anything below it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from validator.checks.findings import Judgement, Outcome, Verdict
from validator.report import facts, phrases
from validator.report.figures.drawing import edge_label, over_band, told

__all__ = ["EdgeLink", "Node", "tree_of"]

_DEEPEST = 30
"""So many levels are told apart; what is deeper stands there by the dotted rest of its name."""

_GRAVEST = (
    Verdict.DIVERGENT,
    Verdict.UNDECLARED_PRECISION,
    Verdict.INCONCLUSIVE,
    Verdict.UNCHECKED,
    Verdict.ALIGNED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeLink:
    """An edge in the tree.

    Attributes:
        index: of its judgement.
        name: of the edge in its module.
        verdict: of the edge.
        error: the largest over the band, as text.
    """

    index: int
    name: str
    verdict: Verdict
    error: str


@dataclass(slots=True, kw_only=True)
class Node:
    """A module.

    Attributes:
        name: the last part of its fqn, or the rest where that is very deep.
        edges: its own.
        children: modules inside of it, in the order in which they were first judged.
        verdict: the gravest of its edges and those below.
        is_open: whether the first divergence is in it.
    """

    name: str
    edges: list[EdgeLink] = field(default_factory=list)
    children: dict[str, "Node"] = field(default_factory=dict)
    verdict: Verdict = Verdict.ALIGNED
    is_open: bool = False

    @property
    def count(self) -> int:
        """How many edges there are in it."""
        return len(self.edges) + sum(child.count for child in self.children.values())

    @property
    def size(self) -> str:
        """The same in words."""
        return phrases.count(self.count, "edge")


def tree_of(outcome: Outcome) -> Node:
    """Return the model, opened along the path to the first divergence."""
    root = Node(name=phrases.module_name(""), is_open=True)
    first = facts.first_judgement(outcome)
    for index, judgement in enumerate(outcome.judgements):
        path = list(_path(root, judgement.module.split(".", _DEEPEST - 1) if judgement.module else ()))
        for node in path:
            node.is_open = node.is_open or index == first
            node.verdict = min(node.verdict, judgement.verdict, key=_GRAVEST.index)
        path[-1].edges.append(_link(index, judgement))
    return root


def _path(root: Node, parts: Sequence[str]) -> Iterator[Node]:
    """Yield the nodes from the root to a module, made where they are not there yet."""
    yield root
    for part in parts:
        root = root.children.setdefault(part, Node(name=part))
        yield root


def _link(index: int, judgement: Judgement) -> EdgeLink:
    return EdgeLink(
        index=index,
        name=_in_module(judgement),
        verdict=judgement.verdict,
        error=told([over_band(judgement)])[0],
    )


def _in_module(judgement: Judgement) -> str:
    """Return the label of an edge without the name of its module, which the tree says."""
    name = edge_label(judgement).removeprefix(phrases.module_name(judgement.module)).lstrip(",. ")
    return f"output {name}" if judgement.into is None and name.startswith(("(", "[")) else name
