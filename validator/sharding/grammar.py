"""The layout line: which dims a tensor has and how the ranks hold them, read into records.

    line   side {"," side}
    side   [name "="] [dim {dim}] {"+" axis}
    dim    (name | number | "..." | "(" dim {dim} ")" | "(" dim {"|" dim} ")") ["=" number] {step}
    step   ":" order | "[" axis ["/" number | "=" number {"|" number}] [":" order] "]"
    order  word ["(" number ")"] | number {"," number}

Dims stand in the reference's order. Steps are taken from left to right, from the reference's tensor to the
rank's own. What they mean is in `sharding.layout`.
"""

import re
from dataclasses import dataclass, field

from validator.errors import LayoutError

__all__ = ["Dim", "Order", "Split", "TensorLayout", "pointed", "read_line"]

DIM_ORDERS = {"interleaved": "may", "per_kv_group": "no", "zigzag": "must", "pad": "must"}
"""Orders of a dim, and whether a number in parentheses follows."""
SPLIT_ORDERS = {"contiguous": "no", "zigzag": "no", "interleaved": "may"}

_TOKEN = re.compile(r"\.\.\.|\d+|[A-Za-z_]\w*|[()\[\]|:=/+,-]")
_SIDE = re.compile(r"\s*([A-Za-z_][\w./]*)\s*=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """In which order pieces lie: a word with its number, or a list of places.

    Attributes:
        word: of `DIM_ORDERS` or `SPLIT_ORDERS`, or `""` for a list.
        number: what stood in parentheses.
        places: of a list: for each of the candidate's pieces, or each rank, which of the reference's it is.
        at: the character at which it stands.
    """

    word: str
    number: int | None = None
    places: tuple[int, ...] = ()
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A cut of a dim along a mesh axis.

    Attributes:
        axis: of the mesh.
        sharers: how many neighbours on the axis hold the same shard.
        shares: relative sizes of the shards, or `()` for even ones.
        order: which shard each rank holds, and how it is made.
    """

    axis: str
    sharers: int = 1
    shares: tuple[int, ...] = ()
    order: Order = Order(word="contiguous")
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dim:
    """A dim, or a piece of one.

    Attributes:
        name: what it is called, `""` for a group or a bare number, `"..."` for any number of dims.
        size: the number that was written, or None.
        parts: of a group.
        is_joined: whether the parts follow one another (`|`) rather than nest.
        steps: from the reference's order to the rank's own.
    """

    name: str = ""
    size: int | None = None
    parts: tuple["Dim", ...] = ()
    is_joined: bool = False
    steps: tuple[Order | Split, ...] = ()
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLayout:
    """How ranks hold a tensor.

    Attributes:
        text: the whole line.
        dims: in the reference's order.
        sums: axes whose ranks hold terms of a sum.
        at: where each of `sums` stands in the line.
    """

    text: str = field(compare=False)
    dims: tuple[Dim, ...]
    sums: tuple[str, ...] = ()
    at: tuple[int, ...] = field(default=(), compare=False)

    @property
    def places(self) -> tuple[tuple[str, int], ...]:
        """Each mention of a mesh axis, and the character at which it stands."""
        cuts = [place for dim in self.dims for place in _cuts(dim)]
        return (*cuts, *zip(self.sums, self.at, strict=True))

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that it names, in order."""
        return tuple(dict.fromkeys(axis for axis, _ in self.places))

    def takes(self, ndim: int) -> bool:
        """Tell whether it can be said of tensors with so many dims."""
        if any(dim.name == "..." for dim in self.dims):
            return ndim >= len(self.dims) - 1
        return ndim == len(self.dims)


def read_line(text: str) -> dict[str, TensorLayout]:
    """Read a line.

    Returns:
        What is said of each side by its name; `"output"` where none is given.

    Raises:
        LayoutError: it can't be read; the message points at the character.
    """
    return _Reader(text).line()


def pointed(text: str, at: int, why: str) -> LayoutError:
    """Return an error that points at a character of a line."""
    return LayoutError(f"{why}\n  {text}\n  {' ' * at}^")


def _cuts(dim: Dim) -> list[tuple[str, int]]:
    own = [(step.axis, step.at + 1) for step in dim.steps if isinstance(step, Split)]
    return [*(place for part in dim.parts for place in _cuts(part)), *own]


class _Reader:
    """Reads tokens from left to right, one ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._token = ""
        self._move(0)

    def line(self) -> dict[str, TensorLayout]:
        sides: dict[str, TensorLayout] = {}
        while True:
            start, name = self._at, "output"
            if side := _SIDE.match(self._text, self._at):
                name = side[1]
                self._move(side.end())
            elif sides:
                raise self._error("expected a side such as input= or weight=")
            if name in sides:
                raise self._error(f"{name} is given twice", start)
            sides[name] = self._side()
            if self._token != ",":
                break
            self._next()
        if self._token:
            raise self._error("expected a dim, '+', ',' or the end")
        return sides

    def _side(self) -> TensorLayout:
        dims: list[Dim] = []
        sums: list[str] = []
        at: list[int] = []
        while self._starts_dim():
            dims.append(self._dim())
            if dims[-1].size is not None and dims[-1].name:
                raise self._error("sizes are written inside ( ), such as (heads=8 dim)", dims[-1].at)
        if [dim.name for dim in dims].count("...") > 1:
            raise self._error("... may stand once", [dim.at for dim in dims if dim.name == "..."][1])
        while self._token == "+":
            self._next()
            at.append(self._at)
            sums.append(self._name("a mesh axis"))
        if not dims:
            raise self._error("expected a dim: a name, a number, '...' or '('")
        return TensorLayout(text=self._text, dims=tuple(dims), sums=tuple(sums), at=tuple(at))

    def _starts_dim(self) -> bool:
        return self._token in ("(", "...") or self._token.replace("_", "a").isalnum()

    def _dim(self) -> Dim:
        at, name, size = self._at, "", None
        parts: tuple[Dim, ...] = ()
        is_joined = False
        if self._token == "(":
            parts, is_joined = self._group()
        elif self._token.isdigit():
            size = self._number(least=1)
        else:
            name = self._token
            self._next()
        if self._token == "=" and name:
            self._next()
            size = self._number(least=1)
        return Dim(name=name, size=size, parts=parts, is_joined=is_joined, steps=self._steps(), at=at)

    def _group(self) -> tuple[tuple[Dim, ...], bool]:
        self._expect("(")
        parts = [self._piece()]
        is_joined = self._token == "|"
        while self._token == "|" if is_joined else self._starts_dim():
            if is_joined:
                self._next()
            parts.append(self._piece())
        self._expect(")", "'|'" if is_joined else "a dim")
        return tuple(parts), is_joined

    def _piece(self) -> Dim:
        if self._token == "..." or not self._starts_dim():
            raise self._error("expected a dim: a name, a number or '('")
        return self._dim()

    def _steps(self) -> tuple[Order | Split, ...]:
        steps: list[Order | Split] = []
        while self._token in (":", "["):
            at = self._at
            if self._token == ":":
                steps.append(self._order(DIM_ORDERS))
                continue
            self._next()
            axis = self._name("a mesh axis")
            sharers, shares, order = 1, [], Order(word="contiguous")
            if self._token == "/":
                self._next()
                sharers = self._number(least=1)
            elif self._token == "=":
                self._next()
                shares = [self._number()]
                while self._token == "|":
                    self._next()
                    shares.append(self._number())
            if self._token == ":":
                order = self._order(SPLIT_ORDERS)
            self._expect("]", "':'" if order.word == "contiguous" else "")
            steps.append(Split(axis=axis, sharers=sharers, shares=tuple(shares), order=order, at=at))
        return tuple(steps)

    def _order(self, words: dict[str, str]) -> Order:
        self._expect(":")
        at, word = self._at, self._token
        if word.isdigit():
            return Order(word="", places=self._places(), at=at)
        if word not in words:
            raise self._error(f"expected an order: {', '.join(words)}, or a list such as 1,0")
        self._next()
        number = None
        if words[word] == "must" or (words[word] == "may" and self._token == "("):
            self._expect("(")
            number = self._number(least=1)
            self._expect(")")
        return Order(word=word, number=number, at=at)

    def _places(self) -> tuple[int, ...]:
        """Read `0,2,4-7`. A comma that no digit follows ends the side."""
        at = self._at
        places: list[int] = []
        while True:
            first = last = self._number()
            if self._token == "-":
                self._next()
                last = self._number(least=first)
            places += range(first, last + 1)
            if self._token != "," or not self._text[self._at + 1 :].lstrip()[:1].isdigit():
                break
            self._next()
        if missing := set(range(max(places))) - set(places):
            raise self._error(f"the order leaves out {min(missing)}", at)
        return tuple(places)

    def _name(self, what: str) -> str:
        name = self._token
        if not name.isidentifier():
            raise self._error(f"expected {what}")
        self._next()
        return name

    def _number(self, least: int = 0) -> int:
        if not self._token.isdigit() or int(self._token) < least:
            raise self._error(f"expected a number of {least} or more")
        number = int(self._token)
        self._next()
        return number

    def _expect(self, token: str, other: str = "") -> None:
        if self._token != token:
            raise self._error(f"expected {f'{other} or ' if other else ''}{token!r}")
        self._next()

    def _next(self) -> None:
        self._move(self._at + len(self._token))

    def _move(self, at: int) -> None:
        """Go to the next token at or behind a character; it is `""` at the end."""
        self._at = at + len(self._text[at:]) - len(self._text[at:].lstrip())
        found = _TOKEN.match(self._text, self._at)
        if found is None and self._at < len(self._text):
            self._token = ""
            raise self._error(f"{self._text[self._at]!r} means nothing here")
        self._token = found[0] if found else ""

    def _error(self, why: str, at: int | None = None) -> LayoutError:
        return pointed(self._text, self._at if at is None else at, f"layout can't be read: {why}")
