"""Places and names as short English: the words of the terminal text."""

from collections.abc import Sequence
from typing import Protocol

from validator.checks.findings import Check, Signature
from validator.checks.signatures import signature_words
from validator.checks.where_words import places
from validator.digits import number
from validator.escapes import printable

__all__ = [
    "NO_BREAK_SPACE",
    "Edge",
    "count",
    "edge_name",
    "full_edge_name",
    "group",
    "listing",
    "module_name",
    "places",
    "printable",
    "shape",
    "shown",
    "signature",
]

NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
_DIM_LETTERS = {"batch": "B", "token": "S", "head": "H", "channel": "D", "expert": "E"}


def count(n: int, noun: str) -> str:
    """Return `1 edge` or `2 edges`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def listing(items: Sequence[str], limit: int, separator: str = ", ") -> str:
    """Join the first `limit` items and say how many more there are."""
    shown = separator.join(items[:limit])
    return shown if len(items) <= limit else f"{shown} and {len(items) - limit} more"


def module_name(fqn: str) -> str:
    """Return the fqn as a reader sees it: the model itself has an empty one."""
    return fqn or "(the model itself)"


def group(fqns: Sequence[str]) -> str:
    """Return `lm_head`, or `28 modules (model.layers.0.mlp, ...)`."""
    name = module_name(fqns[0])
    return name if len(fqns) == 1 else f"{len(fqns)} modules ({name}, ...)"


class Edge(Protocol):
    """What an edge is named by: a finding, a judgement, or an edge of a stored run."""

    @property
    def module(self) -> str:
        """Fqn; the model itself has an empty one."""

    @property
    def check(self) -> Check:
        """Which check judged."""

    @property
    def into(self) -> str | None:
        """Fqn of the child whose input it is, or None."""

    @property
    def path(self) -> str:
        """In the inputs or outputs; the name of a parameter."""


def edge_name(edge: Edge) -> str:
    """Name the edge: the module, its parameter, or the child whose input is wrong."""
    prefix = f"{edge.module}." if edge.module else ""
    if edge.check is Check.PARAMETER and edge.path:
        return prefix + edge.path.removeprefix(prefix)
    name = module_name(edge.module)
    return name if edge.into is None else f"{name}, into {edge.into.removeprefix(prefix)}"


def full_edge_name(edge: Edge, *, call: int, rank: int | None = None) -> str:
    """Name the edge so that no other of its run has the same name: with its path, check, call and rank."""
    path = "" if edge.check is Check.PARAMETER or not edge.path else f" [{edge.path}]"
    at = (f", call {call}" if call else "") + ("" if rank is None else f", rank {rank}")
    return f"{edge_name(edge)}{path} ({edge.check}{at})"


def shape(sizes: Sequence[int], dims: Sequence[str] | None) -> str:
    """Return `[B=2, S=16, D=64]` with no-break spaces; a dim of unknown meaning has its size alone."""
    letters = [_DIM_LETTERS.get(dim, "") for dim in dims or [""] * len(sizes)]
    parts = (f"{letter}={n}" if letter else str(n) for letter, n in zip(letters, sizes, strict=True))
    return f"[{f',{NO_BREAK_SPACE}'.join(parts)}]"


def shown(text: str) -> str:
    """Return text as a page shows it: printable, with its no-break spaces."""
    return NO_BREAK_SPACE.join(map(printable, text.split(NO_BREAK_SPACE)))


def signature(found: Signature) -> str:
    """Return the hypothesis: `a factor of 1.02 on channel 40 (residual 0.4 ulp after it)`."""
    residual = "" if found.residual_ulp is None else f" (residual {number(found.residual_ulp)} ulp after it)"
    return signature_words(found) + residual
