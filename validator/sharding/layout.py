"""The target's `layout`: how tensors are split where it can neither be read nor inferred.

    layout = {"model.layers.*.mlp.down_proj": "input=shard(2), output=replicate"}

A value is one placement, of the module's outputs, or `input=` and `output=` with one each. A
placement is `replicate`, `partial` (the ranks' tensors add up) or `shard(DIM)`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from validator.capturing.records import Placement
from validator.errors import LayoutError

__all__ = ["Layout", "parse_layout", "resolve_layouts"]

_SHARD = re.compile(r"shard\(\s*(-?\d+)\s*\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Placements that a target declares for a module's tensors; None where it says nothing."""

    input: Placement | None = None
    output: Placement | None = None


def parse_layout(text: str) -> Layout:
    """Read one value of `layout`.

    Raises:
        LayoutError: it can't be read; the message points at the place.
    """
    sides: dict[str, Placement] = {}
    for item in re.finditer(r"(?<![^,])[^,]*", text):
        side, equals, placement = (part.strip() for part in item[0].rpartition("="))
        side = side if equals else "output"
        if side not in ("input", "output"):
            raise _error(item, f"no side is called {side!r}; write input= or output=")
        if side in sides:
            raise _error(item, f"{side} is given twice")
        sides[side] = _placement(item, placement)
    return Layout(**sides)


def resolve_layouts(layout: Mapping[str, str], modules: Iterable[str]) -> dict[str, Layout]:
    """Return the layout of each candidate module that a pattern of `layout` matches; the last one holds.

    Raises:
        LayoutError: a value can't be read, or a pattern matches no module.
    """
    names = list(modules)
    resolved: dict[str, Layout] = {}
    for pattern, text in layout.items():
        parsed = parse_layout(text)
        regex = re.compile(".*".join(map(re.escape, pattern.split("*"))))
        matched = [name for name in names if regex.fullmatch(name)]
        if not matched:
            raise LayoutError(
                f"layout {pattern!r} matches no module of the candidate that ran; "
                f"its modules are {', '.join(names[:4])}, ..."
            )
        resolved |= dict.fromkeys(matched, parsed)
    return resolved


def _placement(item: re.Match[str], placement: str) -> Placement:
    if placement == "replicate":
        return Placement(kind="replicate")
    if placement == "partial":
        return Placement(kind="partial", reduce="sum")
    if match := _SHARD.fullmatch(placement):
        return Placement(kind="shard", dim=int(match[1]))
    raise _error(item, f"{placement!r} is no placement; write replicate, partial or shard(DIM)")


def _error(item: re.Match[str], why: str) -> LayoutError:
    text = item[0].strip()
    start = item.start() + item[0].index(text)
    pointer = " " * start + "^" * max(1, len(text))
    return LayoutError(f"layout can't be read: {why}\n  {item.string}\n  {pointer}")
