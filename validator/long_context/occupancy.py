"""Whether a cache holds what attention needs: enough tokens, no more than it must, unchanged."""

from collections.abc import Sequence
from dataclasses import dataclass

from validator.long_context.contexts import Context, Window
from validator.long_context.driving import Drive, LayerReading, Reading

__all__ = ["Occupancy", "occupancy"]

_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """What the cache held at the end, and what was wrong on the way.

    Attributes:
        held: tokens of each layer at the end; None for a state that holds none one by one, or a layer that
            another stage has.
        size_bytes: of all layers.
        problems: sentences; empty where all is well.
    """

    held: tuple[int | None, ...]
    size_bytes: int
    problems: tuple[str, ...]


def occupancy(drive: Drive, context: Context) -> Occupancy:
    """Judge what the cache of a run held.

    Args:
        drive: the run, whose cache showed its layers.
        context: of the reference: which layers have a window.
    """
    last = drive.readings[-1]
    wrong: dict[str, list[int]] = {}
    for number in range(len(last.layers)):
        window = context.window_of(number)
        text = _first_problem(drive.readings, number, window) or _keeps_too_much(
            drive.readings, number, window
        )
        if text is not None:
            wrong.setdefault(text, []).append(number)
    problems = [f"the cache of {_layers(numbers)} {text}" for text, numbers in wrong.items()]
    return Occupancy(
        held=tuple(None if layer is None else layer.held for layer in last.layers),
        size_bytes=sum(layer.size_bytes for layer in last.layers if layer is not None),
        problems=tuple(problems),
    )


def _layers(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_SHOWN])) + (", ..." if len(numbers) > _SHOWN else "")
    return f"layer {shown}" if len(numbers) == 1 else f"layers {shown}"


def _first_problem(readings: Sequence[Reading], number: int, window: Window | None) -> str | None:
    before = None
    for reading in readings:
        layer = reading.layers[number] if number < len(reading.layers) else None
        text = None if layer is None else _problem(layer, reading, before, window)
        if text is not None:
            return text
        before = reading
    return None


def _problem(
    layer: LayerReading, reading: Reading, before: Reading | None, window: Window | None
) -> str | None:
    if layer.held is None:
        return None
    fed = reading.fed
    needed = fed if window is None else window.needed(fed)
    if layer.held < needed:
        when = "" if before is None else f" (it had enough after {before.fed})"
        of = "attention to all tokens" if window is None else f"a {window.noun} of {window.size}"
        return (
            f"evicts too early: after {fed} tokens{when} it holds {layer.held}, and {of} needs {needed}; "
            f"{needed - layer.held} are gone while still in use"
        )
    if layer.seen is not None and layer.seen != fed:
        return f"counts {layer.seen} tokens after {fed} were fed: positions and masks follow its count"
    if layer.changed is not None:
        first, last = layer.changed
        return (
            f"changes what it holds: keys or values of tokens {first} to {last} are others after {fed} "
            "tokens than before. A block was overwritten or cleared while still in use"
        )
    return None


def _keeps_too_much(readings: Sequence[Reading], number: int, window: Window | None) -> str | None:
    """Say that a layer with a window holds tokens, and blocks of them, that no query sees any more."""
    fed, layer = readings[-1].fed, readings[-1].layers[number]
    if window is None or layer is None or layer.held is None:
        return None
    # The last block may be begun, and the first be seen in part.
    if layer.held <= window.size + 2 * (layer.block - 1):
        return None
    what = "never evicts" if layer.held == fed else "evicts too late"
    return (
        f"{what}: after {fed} tokens it holds {layer.held}, and its {window.noun} of {window.size} needs "
        f"{window.size - 1}"
    )
