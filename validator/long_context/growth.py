"""Memory a token after warm-up: what the cache takes by its shapes and in truth, and what leaks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from scipy import stats

from validator.long_context.contexts import Context
from validator.long_context.driving import Drive, LayerReading, Reading

__all__ = ["Slope", "memory_growth", "slope_of"]

_CONFIDENCE = 0.999
_WARM_UP = 4
"""The first of so many parts of the readings is left out: buffers that are made once come then."""

_FEWEST = 6
_OVERHEAD = 1.25
"""How many times what its shapes predict a cache may grow: it may be allocated ahead, in blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """Bytes a token: the median of the slopes between all pairs of readings.

    Attributes:
        value: of the slope.
        low, high: hold it with 99.9% confidence.

    Source:
        Sen, "Estimates of the regression coefficient based on Kendall's tau", JASA 63 (1968).
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return `512 bytes a token (500 to 524)`."""
        exact = f"{self.low:.4g}" == f"{self.high:.4g}"
        return f"{self.value:.4g} bytes a token" + ("" if exact else f" ({self.low:.4g} to {self.high:.4g})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How memory grows while tokens are decoded.

    Attributes:
        cache: of the cache; None with too few readings to tell.
        predicted: of the cache, by the shapes of what it holds and by which layers hold all tokens.
        others: of everything else that Python code keeps.
        device: of what the accelerator has given out beside the cache; None without one.
        problems: sentences; empty where nothing leaks.
    """

    cache: Slope | None
    predicted: float
    others: Slope | None
    device: Slope | None
    problems: tuple[str, ...]


def slope_of(fed: Sequence[int], sizes: Sequence[int]) -> Slope | None:
    """Fit a line through bytes against tokens; None for fewer than six readings."""
    if len(fed) < _FEWEST:
        return None
    found = stats.theilslopes(sizes, fed, _CONFIDENCE)
    return Slope(value=float(found[0]), low=float(found[2]), high=float(found[3]))


def memory_growth(drive: Drive, context: Context, token_values: Sequence[int | None] = ()) -> Growth:
    """Judge how memory grew over the decode steps of a run.

    Args:
        drive: the run.
        context: of the reference: which layers have a window.
        token_values: numbers that a token takes in each layer of the reference's own cache; empty where that
            is not known.
    """
    readings = [reading for reading in drive.readings if reading.memory is not None]
    readings = readings[len(readings) // _WARM_UP :]
    fed = [reading.fed for reading in readings]
    memory = [reading.memory for reading in readings if reading.memory is not None]
    cache = slope_of(fed, [each.cache_bytes for each in memory])
    others = slope_of(fed, [each.other_bytes for each in memory])
    on_device = [each.device_bytes - each.cache_bytes for each in memory if each.device_bytes is not None]
    device = slope_of(fed, on_device) if len(on_device) == len(fed) else None
    predicted = _predicted(readings, context)
    problems = []
    if (
        cache is not None
        and any(reading.layers for reading in readings)
        and cache.low > predicted * _OVERHEAD
    ):
        problems.append(
            f"the cache grows by {cache}, and what its layers must hold by {predicted:.4g}: "
            f"{_greediest(readings, context)}"
        )
    if others is not None and others.low > 0:
        problems.append(
            f"memory leaks: {others} beside the cache, after warm-up. {_culprit(drive, readings)}"
        )
    elif device is not None and device.low > 0:
        problems.append(
            f"device memory leaks: {device} beside the cache, after warm-up; no tensor that Python code can "
            "reach grows, so that it is kept by compiled code or by a graph of autograd"
        )
    spread = _spread(drive.readings[-1], token_values) if drive.readings else None
    problems += [] if spread is None else [spread]
    return Growth(cache=cache, predicted=predicted, others=others, device=device, problems=tuple(problems))


def _predicted(readings: Sequence[Reading], context: Context) -> float:
    """Return bytes a token of the layers that grow with each token."""
    if not readings:
        return 0.0
    first, last = readings[0], readings[-1]
    total = 0.0
    for i, layer in enumerate(last.layers):
        if layer is None:
            continue
        window = context.window_of(i)
        is_growing = layer.capacity is None and layer.held is not None
        if is_growing and (window is None or window.may_grow(first.fed)):
            total += _row_bytes(layer)
    return total


def _spread(reading: Reading, token_values: Sequence[int | None]) -> str | None:
    """Say that a token takes more numbers than in the reference's cache, heads of all ranks counted there."""
    for number, (layer, values) in enumerate(zip(reading.layers, token_values, strict=False)):
        if layer is None or values is None:
            continue
        if layer.row_values is not None and layer.row_values > values:
            return (
                f"a token takes {layer.row_values} numbers of the cache of layer {number}, and {values} of "
                "the reference's: keys and values are kept once for every query head, or on every rank"
            )
    return None


def _row_bytes(layer: LayerReading) -> float:
    if layer.row_bytes is not None:
        return layer.row_bytes
    return layer.size_bytes / layer.held if layer.held else 0.0


def _greediest(readings: Sequence[Reading], context: Context) -> str:
    """Name the layer whose cache grows most beyond what it must."""
    fed = [reading.fed for reading in readings]
    shown = {i: layer for i, layer in enumerate(readings[-1].layers) if layer is not None}
    worst, most = min(shown), -1.0
    for i, layer in shown.items():
        sizes = [own.size_bytes for reading in readings if (own := reading.layers[i]) is not None]
        slope = slope_of(fed, sizes)
        window = context.window_of(i)
        must = _row_bytes(layer) if window is None or window.may_grow(fed[0]) else 0.0
        if slope is not None and slope.value - must > most:
            worst, most = i, slope.value - must
    layer = shown[worst]
    window = context.window_of(worst)
    if window is not None and layer.held is not None and layer.held > window.size:
        has = f"its {window.noun} is {window.size}"
        return f"layer {worst} never evicts: it holds {layer.held} tokens, and {has}"
    return f"layer {worst} ({layer.kind}) takes {most:.4g} bytes a token more than its keys and values"


def _culprit(drive: Drive, readings: Sequence[Reading]) -> str:
    """Say which tensors there are more and more of, and which attribute of a module keeps them."""
    before, after = drive.hoarded
    grown = {name: size - before.get(name, 0) for name, size in after.items()}
    name = max(grown, key=lambda key: grown[key], default=None)
    kept = ""
    if name is not None and grown[name] > 0:
        kept = f" They are kept in {name}, which grew from {before.get(name, 0)} to {after[name]} bytes."
    first, last = readings[0].memory, readings[-1].memory
    assert first is not None
    assert last is not None
    more = {kind: count - first.kinds.get(kind, 0) for kind, count in last.kinds.items()}
    kind = max(more, key=lambda key: more[key], default=None)
    tokens = readings[-1].fed - readings[0].fed
    if kind is not None and more[kind] >= tokens / 2:
        return (
            f"There are {more[kind]} more tensors {_kind(kind)} after {tokens} tokens: a list of them.{kept}"
        )
    new = _largest_new(first.kinds, last.kinds)
    grows = "" if new is None else f"One tensor grows: it is {_kind(new)} at the end."
    return f"{grows}{kept.replace('They are', 'It is')}".strip()


def _largest_new(
    first: Mapping[tuple[str, tuple[int, ...]], int], last: Mapping[tuple[str, tuple[int, ...]], int]
) -> tuple[str, tuple[int, ...]] | None:
    return max((kind for kind in last if kind not in first), key=lambda kind: prod(kind[1]), default=None)


def _kind(kind: tuple[str, tuple[int, ...]]) -> str:
    return f"{kind[0]} {list(kind[1])}"
