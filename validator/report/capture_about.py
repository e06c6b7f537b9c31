"""What is known of a capture without reading a tensor: how it was captured, and how complete it is."""

from collections.abc import Iterator, Mapping
from typing import Any

from validator.capturing.manifest import ProofStatus
from validator.capturing.reader import Capture
from validator.report import phrases
from validator.report.screen import Row, Screen, Section

__all__ = ["about_capture", "about_rows"]

_SHOWN = 3


def about_capture(capture: Capture) -> Screen:
    """Return a screen that describes a capture from its manifest alone."""
    incomplete = "" if capture.complete else "incomplete "
    healthy = capture.complete and capture.manifest.proof.status is not ProofStatus.CHANGED
    return Screen(
        headline=f"{incomplete}capture of {_ranks(capture)}: {capture.path}",
        style="bold" if healthy else "bold yellow",
        sections=(Section(title="how it was captured", rows=tuple(about_rows(capture))),),
    )


def about_rows(capture: Capture) -> Iterator[Row]:
    """Yield what was captured where, and the proof that looking changed nothing."""
    manifest = capture.manifest
    recipe = f", recipe {manifest.recipe}" if manifest.recipe else ""
    yield Row(label="capture", text=f"{capture.path}, level {manifest.level}, {_ranks(capture)}{recipe}")
    yield Row(label="proof", text=f"{manifest.proof.status.replace('_', ' ')}: {manifest.proof.reason}")
    hardware = manifest.run.get("hardware")
    devices = [_device(rank) for rank in hardware or () if isinstance(rank, Mapping)]
    if devices:
        yield Row(label="hardware", text=phrases.listing(list(dict.fromkeys(devices)), _SHOWN, "; "))
    for label in ("software", "inputs"):
        text = _pairs(manifest.run.get(label))
        if text:
            yield Row(label=label, text=text)
    if manifest.planted:
        yield Row(label="planted", text=manifest.planted)
    for label, names in (("silent", manifest.silent), ("left out", manifest.left_out)):
        if names:
            yield Row(label=label, text=f"{len(names)}: {phrases.listing(list(names), _SHOWN)}")


def _ranks(capture: Capture) -> str:
    world = phrases.count(capture.manifest.world_size, "rank")
    return world if len(capture.ranks) == capture.manifest.world_size else f"{len(capture.ranks)} of {world}"


def _device(rank: Mapping[str, Any]) -> str:
    devices = rank.get("devices")
    names = [str(one.get("name", one.get("type"))) for one in devices or () if isinstance(one, Mapping)]
    return ", ".join(names) or str(rank.get("cpu"))


def _pairs(values: Any) -> str:
    """Return `torch 2.10, python 3.12`; of a value with a dtype and a shape these two."""
    if not isinstance(values, Mapping):
        return ""
    return ", ".join(f"{name} {_short(value)}" for name, value in values.items() if value is not None)


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{value.get('dtype')} {value.get('shape')}"
    return str(value)
