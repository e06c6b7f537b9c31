"""Show the baselines of a folder, and one of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from validator.baselines.records import SCHEMA_VERSION, Baseline
from validator.baselines.store import listed, size_of
from validator.report import phrases

__all__ = ["listing", "listing_json", "shown"]


def listing(folder: Path) -> Table | Text:
    """Return a table of the baselines of a folder.

    Raises:
        UsageError: there is no such folder.
    """
    found = listed(folder)
    if not found:
        return Text(
            f"no baselines in {folder}: record one with `validator baseline record NAME TARGET`", style="dim"
        )
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("baseline", "holds", "of", "recorded", "size"):
        table.add_column(name, overflow="fold")
    for entry in found:
        if isinstance(entry, Baseline):
            cells = (entry.name, _holds(entry), entry.source, entry.recorded, decimal(size_of(entry)))
        else:
            cells = ("?", f"can't be read: {entry}", "", "", "")
        table.add_row(*(Text(phrases.printable(cell)) for cell in cells))
    return table


def listing_json(folder: Path) -> dict[str, Any]:
    """Return the same for a program."""
    found = listed(folder)
    return {
        "schema": SCHEMA_VERSION,
        "baselines": [
            {
                "name": entry.name,
                "kind": str(entry.kind),
                "source": entry.source,
                "recorded": entry.recorded,
                "bytes": size_of(entry),
            }
            for entry in found
            if isinstance(entry, Baseline)
        ],
        "unreadable": [str(entry) for entry in found if not isinstance(entry, Baseline)],
    }


def shown(baseline: Baseline) -> Group:
    """Return what a baseline holds, and how it came about."""
    rows = Table.grid(padding=(0, 2))
    for label, text in _rows(baseline):
        rows.add_row(Text(label, style="dim"), Text(phrases.printable(text), overflow="fold"))
    return Group(Text(phrases.printable(baseline.name), style="bold"), rows)


def _rows(baseline: Baseline) -> Iterator[tuple[str, str]]:
    yield "holds", f"{_holds(baseline)}, {decimal(size_of(baseline))}"
    yield "of", baseline.source
    yield "recorded", f"{baseline.recorded} by {baseline.command or 'a program'}"
    run = baseline.run
    for rank in run.get("hardware") or ():
        devices = ", ".join(str(device.get("name", device.get("type"))) for device in rank.get("devices", ()))
        yield f"rank {rank.get('rank')}", f"{rank.get('cpu')}{f', {devices}' if devices else ''}"
    yield "software", _pairs(run.get("software"))
    yield "ranks", str((run.get("parallelism") or {}).get("world_size", "unknown"))
    for name, described in (run.get("inputs") or {}).items():
        yield (
            f"input {name}",
            f"{described.get('dtype')} {described.get('shape')}, {described.get('checksum')}",
        )
    yield "seeds", _pairs((run.get("seeds") or {}).get("torch"))
    yield "flags", _pairs(run.get("determinism"))
    if run.get("settings"):
        yield "settings", _pairs(run["settings"])
    for path, digest in baseline.files.items():
        yield "file", f"{path}  {digest}"
    for name, figure in baseline.figures.items():
        error = "" if figure.error is None else f" +- {figure.error:.3g}"
        yield "figure", f"{name} {figure.value}{error} {figure.unit}".rstrip()


def _holds(baseline: Baseline) -> str:
    if baseline.figures:
        return phrases.count(len(baseline.figures), "figure")
    return "both sides of a run" if baseline.candidate is not None else "the reference's run"


def _pairs(values: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in (values or {}).items()) or "unknown"
