"""What `validator report CAPTURE` shows of one capture alone, as text, JSON and a frame."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from validator import digits
from validator.report import phrases
from validator.report.capture_about import about_rows
from validator.report.capture_ranges import CaptureRanges, Place, TensorRange
from validator.report.facts import layer_of
from validator.report.json_report import SCHEMA_VERSION, plain
from validator.report.screen import Column, Kind, Row, Screen, Section, Table
from validator.report.shown import Shown

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CaptureReport"]

_WIDTH = 100
_SHOWN = 3
_LAYERS = 120
_STATISTICS = ("min", "max", "mean", "rms", "nan", "inf")
_FIELDS = ("rank", "module", "side", "path", "dtype", "shape", "calls", "elements")
_FIGURES = ("zeros", "subnormals", "headroom_bits", "is_mask")


@dataclasses.dataclass(frozen=True, slots=True)
class CaptureReport(Shown):
    """The answer to "what is in this capture, and is any of it no number?"."""

    text_width: ClassVar[int] = _WIDTH

    ranges: CaptureRanges

    @property
    def exit_code(self) -> int:
        """1 where there is a NaN, or an infinity that is no mask's; else 3 of an incomplete capture."""
        if self.ranges.first_nan or self.ranges.first_inf:
            return 1
        return 0 if self.ranges.capture.complete else 3

    def to_frame(self) -> "pd.DataFrame":
        """Return one row a tensor of a rank, in the order in which they were first seen."""
        import pandas as pd

        columns = [*_FIELDS, *_STATISTICS, *_FIGURES]
        return pd.DataFrame([_flat(tensor) for tensor in self.ranges.tensors], columns=columns)

    def to_json(self) -> dict[str, Any]:
        """Return the document of schema 1, of the kind `capture`."""
        ranges = self.ranges
        capture = ranges.capture
        document: dict[str, Any] = plain(
            {
                "schema": SCHEMA_VERSION,
                "capture": capture.path,
                "complete": capture.complete,
                "ranks": capture.ranks,
                "level": capture.manifest.level,
                "proof": capture.manifest.proof.status,
                "first_nan": None if ranges.first_nan is None else dataclasses.asdict(ranges.first_nan),
                "first_inf": None if ranges.first_inf is None else dataclasses.asdict(ranges.first_inf),
                "tensors": [_flat(tensor) for tensor in ranges.tensors],
                "unmeasured": ranges.unmeasured,
                "run": capture.manifest.run,
            }
        )
        return document

    def __rich__(self) -> Screen:
        """Return the terminal text for a rich console."""
        ranges = self.ranges
        style = {0: "bold green", 1: "bold red", 3: "bold magenta"}[self.exit_code]
        about = Section(title="how it was captured", rows=tuple(about_rows(ranges.capture)))
        sections = (Section(rows=tuple(_remarks(ranges))), _table(ranges), about)
        return Screen(headline=_headline(ranges), style=style, sections=sections)


def _flat(tensor: TensorRange) -> dict[str, Any]:
    return {
        **{name: getattr(tensor, name) for name in _FIELDS},
        **{name: getattr(tensor.statistics, name) for name in _STATISTICS},
        **{name: getattr(tensor, name) for name in _FIGURES},
    }


def _headline(ranges: CaptureRanges) -> str:
    broken = _broken(ranges)
    if broken:
        what, place = broken[0]
        return f"{what}, first in {_place(place, ranges)}"
    modules = len({tensor.module for tensor in ranges.tensors})
    ranks = len(ranges.capture.ranks)
    counts = f"{phrases.count(len(ranges.tensors), 'tensor')} of {phrases.count(modules, 'module')}"
    numbers = f"all numbers: {counts}" + (f" on {ranks} ranks" if ranks > 1 else "")
    return numbers if ranges.capture.complete else f"incomplete capture, so far {numbers}"


def _broken(ranges: CaptureRanges) -> list[tuple[str, Place]]:
    """Return the first NaN and the first infinity, the earlier one first."""
    found = [("NaN", ranges.first_nan), ("infinity", ranges.first_inf)]
    there = [(what, place) for what, place in found if place is not None]
    return sorted(there, key=lambda one: (one[1].order, one[1].rank))


def _place(place: Place, ranges: CaptureRanges) -> str:
    rank = f", rank {place.rank}" if ranges.capture.manifest.world_size > 1 else ""
    call = f", call {place.call}" if place.call else ""
    index = "" if place.index is None else f", element {list(place.index)}"
    if place.side == "parameter":
        return f"parameter {place.path}{rank}{index}"
    path = f" {place.path}" if place.path else ""
    return f"{phrases.module_name(place.module)}, {place.side}{path}{call}{rank}{index}"


def _remarks(ranges: CaptureRanges) -> Iterator[Row]:
    """What is no number, and what is near the limits of its format."""
    tensors = ranges.tensors
    for what, place in _broken(ranges)[1:]:
        yield Row(label=what, text=f"first in {_place(place, ranges)}")
    for what, having in (
        ("NaN", [tensor for tensor in tensors if tensor.statistics.nan]),
        ("infinity", [tensor for tensor in tensors if tensor.statistics.inf and not tensor.is_mask]),
    ):
        if having:
            yield Row(label="spread", text=f"{what} in {_spread(having)}")
    masks = [tensor for tensor in tensors if tensor.is_mask]
    if masks:
        where = phrases.count(len(masks), "tensor")
        yield Row(label="masks", text=f"negative infinities alone, as masks have, in {where}")
    near = [tensor for tensor in tensors if tensor.is_near_overflow]
    if near:
        yield Row(
            label="overflow",
            text=f"{phrases.count(len(near), 'tensor')} within a factor of 2 of the largest number: "
            + _names(near, lambda t: f"{digits.number(_largest(t))} in {t.dtype}"),
        )
    small = sorted(
        (t for t in tensors if t.is_near_underflow), key=lambda tensor: -(tensor.subnormals or 0.0)
    )
    if small:
        yield Row(
            label="underflow",
            text=f"{phrases.count(len(small), 'tensor')} with a root mean square below the smallest normal "
            "number: " + _names(small, _underflow),
        )
    dead = [t for t in tensors if t.zeros == 1 and t.side == "output"]
    if dead:
        yield Row(label="zeros", text=f"nothing else in {_names(dead, lambda t: t.side)}")
    if ranges.unmeasured:
        names = phrases.listing([phrases.module_name(name) for name in ranges.unmeasured], _SHOWN)
        kinds = "complex numbers, codes, or parameters of which hashes were kept"
        yield Row(label="unmeasured", text=f"{kinds}, in {names}")


def _spread(having: Sequence[TensorRange]) -> str:
    modules = len({tensor.module for tensor in having})
    ranks = [str(rank) for rank in sorted({tensor.rank for tensor in having})]
    on = f"rank{'' if len(ranks) == 1 else 's'} {phrases.listing(ranks, 8)}"
    return f"{phrases.count(len(having), 'tensor')} of {phrases.count(modules, 'module')}, {on}"


def _names(tensors: Sequence[TensorRange], figure: Callable[[TensorRange], str]) -> str:
    shown = [f"{_name(tensor)} ({figure(tensor)})" for tensor in tensors]
    return phrases.listing(list(dict.fromkeys(shown)), _SHOWN, "; ")


def _name(tensor: TensorRange) -> str:
    if tensor.side == "parameter":
        return tensor.path
    side = "" if tensor.side == "output" else f", {tensor.side} {tensor.path}".rstrip()
    return phrases.module_name(tensor.module) + side


def _largest(tensor: TensorRange) -> float:
    return max(abs(tensor.statistics.min), abs(tensor.statistics.max))


def _underflow(tensor: TensorRange) -> str:
    share = tensor.subnormals
    counted = "" if share is None or math.isnan(share) else f", {digits.percent(share)} subnormal"
    return f"{digits.scientific(tensor.statistics.rms)} in {tensor.dtype}{counted}"


def _table(ranges: CaptureRanges) -> Table:
    """One row for each output of a layer, and of what stands beside layers; ranks that agree share it."""
    outputs = [t for t in ranges.tensors if t.side == "output" and t.format is not None]
    rows: dict[tuple[str, ...], list[int]] = {}
    for tensor in _outline(outputs):
        rows.setdefault(_cells(tensor), []).append(tensor.rank)
    several = len(ranges.capture.ranks) > 1
    columns = (
        Column(name="output of", kind=Kind.NAME),
        Column(name="dtype", least_width=_WIDTH),
        Column(name="mean", kind=Kind.NUMBER, least_width=_WIDTH),
        *(Column(name=name, kind=Kind.NUMBER) for name in ("rms", "min", "max", "headroom", "NaN", "inf")),
        *((Column(name="ranks", kind=Kind.NUMBER),) if several else ()),
    )
    more = "" if len(rows) <= _LAYERS else f" (the first {_LAYERS} of {len(rows)}: --csv FILE has all)"
    return Table(
        title=f"layers{more}",
        columns=columns,
        rows=tuple(
            (*cells, ", ".join(digits.ranges(ranks))) if several else cells
            for cells, ranks in list(rows.items())[:_LAYERS]
        ),
    )


def _cells(tensor: TensorRange) -> tuple[str, ...]:
    numbers, bits = tensor.statistics, tensor.headroom_bits
    return (
        phrases.module_name(tensor.module) + (f", {tensor.path}" if tensor.path else ""),
        tensor.dtype,
        *(_figure(value) for value in (numbers.mean, numbers.rms, numbers.min, numbers.max)),
        "" if bits is None else f"2^{digits.number(bits)}",
        str(numbers.nan or ""),
        str(numbers.inf or ""),
    )


def _outline(outputs: Sequence[TensorRange]) -> list[TensorRange]:
    """Return the outputs of layers, and of modules that neither lie in one nor hold one; else all."""
    layers = {layer for tensor in outputs if (layer := layer_of(tensor.module))}
    holders = {layer[:i] for layer in layers for i, c in enumerate(layer) if c == "."} | {""}

    def is_shown(module: str) -> bool:
        return module in layers or (layer_of(module) is None and module not in holders)

    return [tensor for tensor in outputs if is_shown(tensor.module)] or list(outputs)


def _figure(value: float) -> str:
    return "" if math.isnan(value) else digits.number(value)
