"""Random layout lines, with a shape that each of them fits and the mesh that it is on."""

import itertools
from math import prod

from hypothesis import strategies as st

from validator.capturing.records import Mesh

__all__ = ["layouts"]

ORDERS = (":zigzag(2)", ":pad(4)", ":1,0", ":0,1,0", ":interleaved", ":interleaved(2)", ":per_kv_group")
SPLITS = ("", ":zigzag", ":interleaved", ":interleaved(2)", "/1", "/2", ":1,0", ":0,0", "=1|2")
NAMES = "abcdefgh"


@st.composite
def layouts(draw: st.DrawFn) -> tuple[str, tuple[int, ...], Mesh]:
    """Draw a line, a shape, and a mesh; a few of the lines fit neither and are errors."""
    sizes = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    axes = ("x", "y", "z")[: len(sizes)]
    mesh = Mesh(axes=axes, shape=sizes, ranks=tuple(range(prod(sizes))))
    uses = [draw(st.sampled_from(["first", "second", "sum", "copies"])) for _ in axes]
    names = itertools.count()
    dims = [
        draw(_dims([axis for axis, use in zip(axes, uses, strict=True) if use == wanted], names))
        for wanted in ("first", "second")
    ]
    terms = "".join(f" +{axis}" for axis, use in zip(axes, uses, strict=True) if use == "sum")
    return " ".join(text for text, _ in dims) + terms, tuple(size for _, size in dims), mesh


@st.composite
def _dims(draw: st.DrawFn, axes: list[str], names: "itertools.count[int]") -> tuple[str, int]:
    def name() -> str:
        return f"n{next(names)}"

    unit = draw(st.integers(0, 4))
    counts = draw(st.lists(st.integers(1, 4), min_size=2, max_size=3))
    alike = [counts[0]] * len(counts)
    match draw(st.sampled_from(["plain", "even", "joined", "nested", "deep"])):
        case "plain":
            text, size = name(), draw(st.integers(0, 13))
        case "even":
            text, size = f"({'|'.join(name() for _ in counts)})", unit * len(counts)
        case "joined":
            counts = draw(st.sampled_from([counts, alike]))
            text, size = f"({'|'.join(f'{name()}={n}' for n in counts)})", unit * sum(counts)
        case "nested":
            text, size = f"({name()}={counts[0]} {name()})", unit * counts[0]
        case _:
            pair = f"({name()}|{name()})" + draw(st.sampled_from(["", ":interleaved", ":1,0"]))
            text, size = f"({name()}={counts[0]} {pair})", 2 * unit * counts[0]
    steps = [f"[{axis}{draw(st.sampled_from(SPLITS))}]" for axis in axes]
    if draw(st.booleans()):
        steps.insert(draw(st.integers(0, len(steps))), draw(st.sampled_from(ORDERS)))
    return text + "".join(steps), size
