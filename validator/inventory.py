"""What a target's models consist of: modules by class, parameters by format, on each side and rank."""

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console, ConsoleOptions, RenderResult
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text
from torch import nn
from torch.distributed.tensor import DTensor

from validator.report import phrases
from validator.target import load_target
from validator.testing.ranks import on_ranks

__all__ = ["Inventory", "ModuleClass", "SideInventory", "inventory_of", "model_inventory"]

SCHEMA_VERSION = 1
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleClass:
    """The modules of one class.

    Attributes:
        name: of the class.
        count: how many modules.
        parameters: elements of their own parameters; of a DTensor all, of another tensor those that this rank
            has.
    """

    name: str
    count: int
    parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SideInventory:
    """What one model consists of, as one rank has it.

    Attributes:
        side: `"reference"` or `"candidate"`.
        rank: of the process that holds it.
        classes: the modules, by class, in the order of their first one.
        parameters: elements by name of the parameter; of a DTensor all, of another tensor those that this
            rank has.
        dtypes: elements by format.
        local_bytes: of the parameters and buffers that this rank holds.
        devices: where they lie.
        shared: names of the parameters that are one tensor with an earlier one, by that one's name.
        sharded: how many parameters are DTensors with a shard.
        plain: how many parameters are no DTensors.
        problems: sentences about what can't be right.
    """

    side: str
    rank: int
    classes: tuple[ModuleClass, ...]
    parameters: Mapping[str, int]
    dtypes: Mapping[str, int]
    local_bytes: int
    devices: tuple[str, ...]
    shared: Mapping[str, tuple[str, ...]]
    sharded: int
    plain: int
    problems: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """Elements of all parameters, one that is shared counted once."""
        return sum(self.parameters.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Both models of a target, side by side."""

    source: str
    reference: SideInventory
    candidate: tuple[SideInventory, ...]

    @property
    def sides(self) -> tuple[SideInventory, ...]:
        """The reference, and the candidate of each rank."""
        return (self.reference, *self.candidate)

    @property
    def problems(self) -> tuple[str, ...]:
        """What can't be right, on either side."""
        return tuple(dict.fromkeys(problem for side in self.sides for problem in side.problems))

    @property
    def parameters(self) -> dict[str, int]:
        """Elements of the candidate's parameters by name, of all ranks: as the rank has it that has most."""
        found: dict[str, int] = {}
        for side in self.candidate:
            for name, size in side.parameters.items():
                found[name] = max(size, found.get(name, 0))
        return found

    @property
    def classes(self) -> dict[str, ModuleClass]:
        """The candidate's modules by class, each as the rank has it that has most of them."""
        found: dict[str, ModuleClass] = {}
        for one in (one for side in self.candidate for one in side.classes):
            best = found.get(one.name, one)
            found[one.name] = ModuleClass(
                name=one.name,
                count=max(one.count, best.count),
                parameters=max(one.parameters, best.parameters),
            )
        return found

    @property
    def exit_code(self) -> int:
        """0, or 1 where something can't be right."""
        return 1 if self.problems else 0

    @property
    def summary(self) -> str:
        """One sentence."""
        ours = self.reference
        modules = max(sum(one.count for one in side.classes) for side in self.candidate)
        elements = _short_count(sum(self.parameters.values()))
        several = len(self.candidate) > 1
        theirs = f"{modules} a rank and {elements} on {len(self.candidate)} ranks"
        return (
            f"{sum(c.count for c in ours.classes)} modules and {_short_count(ours.total)} parameters, "
            f"the candidate {theirs if several else f'{modules} and {elements}'}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "schema": SCHEMA_VERSION,
            "source": self.source,
            "summary": self.summary,
            "reference": asdict(self.reference),
            "candidate": [asdict(side) for side in self.candidate],
            "notes": list(self._notes()),
            "problems": list(self.problems),
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the classes of both sides, what else is known of each, and what can't be right."""
        yield Text(phrases.printable(self.summary), style="bold red" if self.problems else "bold")
        yield Text("")
        yield self._table()
        yield Text("")
        rows = Table.grid(padding=(0, 2))
        for label, text in self._rows():
            rows.add_row("", Text(label, style="dim"), Text(phrases.printable(text)))
        yield rows

    def _table(self) -> Table:
        table = Table(box=None, header_style="dim")
        table.add_column("class", overflow="fold")
        for name in ("reference", "candidate", "parameters", "in the candidate"):
            table.add_column(name, justify="right", no_wrap=True)
        ours = {found.name: found for found in self.reference.classes}
        theirs = self.classes
        for name in dict.fromkeys([*ours, *theirs]):
            cells = [name]
            cells += [str(side[name].count) if name in side else "" for side in (ours, theirs)]
            cells += [_short_count(side[name].parameters) if name in side else "" for side in (ours, theirs)]
            table.add_row(*(Text(phrases.printable(cell)) for cell in cells))
        return table

    def _rows(self) -> Iterator[tuple[str, str]]:
        for side in (self.reference, *self.candidate):
            label = side.side if side.side == "reference" else f"candidate, rank {side.rank}"
            formats = ", ".join(f"{_short_count(count)} {dtype}" for dtype, count in side.dtypes.items())
            yield label, f"{formats}; {decimal(side.local_bytes)} on {', '.join(side.devices) or 'no device'}"
        yield from (("note", note) for note in self._notes())
        yield from (("problem", problem) for problem in self.problems)

    def _notes(self) -> Iterator[str]:
        theirs = self.candidate[0]
        ours, both = self.reference.parameters, self.parameters
        for own, other, name in ((ours, both, "reference"), (both, ours, "candidate")):
            alone = [parameter for parameter in own if parameter not in other]
            if alone:
                yield (
                    f"{phrases.count(len(alone), 'parameter')} of the {name} alone by name, such as "
                    f"{phrases.listing(alone, _SHOWN)}: renamed or fused ones are matched by the check"
                )
        for side in (self.reference, theirs):
            for first, others in side.shared.items():
                yield f"in the {side.side} {first} is also {phrases.listing(list(others), _SHOWN)}"
        if theirs.sharded:
            sharded = phrases.count(theirs.sharded, "parameter")
            yield f"{sharded} of the candidate: sharded DTensors, counted whole"
        if theirs.plain and len(self.candidate) > 1:
            yield (
                f"{phrases.count(theirs.plain, 'parameter')} of the candidate: plain tensors, of which a "
                "rank's own elements are counted; the check finds out which are shards"
            )


def inventory_of(
    source: str,
    *,
    nproc: int = 1,
    device: str | None = None,
    dtype: str | None = None,
    tp: int | None = None,
    timeout_s: float | None = None,
) -> Inventory:
    """Build both models of a target and say what they consist of.

    Args:
        source: a Python file or a checkpoint folder.
        nproc: ranks of the candidate.
        device: of the candidate.
        dtype: of the candidate.
        tp: of the candidate.
        timeout_s: seconds that the candidate's ranks may take.

    Raises:
        ValidatorError: the target can't be loaded or built.
    """
    target = load_target(source, dtype=dtype, device=device, tp=tp)
    target.require("reference", "candidate")
    reference = model_inventory(target.reference(), side="reference")
    with tempfile.TemporaryDirectory(prefix="validator-") as scratch:
        candidate = on_ranks(
            _candidate,
            (source, dtype, device, tp),
            nproc=nproc,
            device=device,
            folder=Path(scratch),
            timeout_s=timeout_s,
        )
    return Inventory(source=source, reference=reference, candidate=tuple(candidate))


def model_inventory(model: nn.Module, *, side: str, rank: int = 0) -> SideInventory:
    """Return what a model consists of."""
    own = {name: list(module.parameters(recurse=False)) for name, module in model.named_modules()}
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for name, module in model.named_modules():
        counts[type(module).__name__] += 1
        sizes[type(module).__name__] += sum(parameter.numel() for parameter in own[name])
    parameters = dict(model.named_parameters())
    dtypes: Counter[str] = Counter()
    for parameter in parameters.values():
        dtypes[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    tensors = [*parameters.values(), *(buffer for _, buffer in model.named_buffers())]
    local = [_local(tensor) for tensor in tensors]
    return SideInventory(
        side=side,
        rank=rank,
        classes=tuple(
            ModuleClass(name=name, count=count, parameters=sizes[name]) for name, count in counts.items()
        ),
        parameters={name: parameter.numel() for name, parameter in parameters.items()},
        dtypes=dict(dtypes),
        local_bytes=sum(tensor.numel() * tensor.element_size() for tensor in local),
        devices=tuple(dict.fromkeys(str(tensor.device) for tensor in local)),
        shared=_shared(model),
        sharded=sum(isinstance(p, DTensor) and p.to_local().shape != p.shape for p in parameters.values()),
        plain=sum(not isinstance(p, DTensor) for p in parameters.values()),
        problems=tuple(_problems(model, side)),
    )


def _candidate(
    rank: int, world_size: int, source: str, dtype: str | None, device: str | None, tp: int | None
) -> SideInventory:
    model = load_target(source, dtype=dtype, device=device, tp=tp).candidate()
    return model_inventory(model, side="candidate", rank=rank)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _shared(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Return the names of the parameters that are one tensor with an earlier one, by that one's name."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {first: tuple(others) for first, *others in names.values() if others}


def _problems(model: nn.Module, side: str) -> Iterator[str]:
    """Yield what can't be right of parameters: without values, or with some that are no numbers."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    without = [name for name, tensor in tensors if tensor.is_meta]
    if without:
        yield (
            f"{phrases.count(len(without), 'tensor')} of the {side} on the meta device, without values: "
            f"{phrases.listing(without, _SHOWN)}; load the weights before {side}() returns the model"
        )
    broken = [name for name, parameter in model.named_parameters() if _has_no_number(parameter)]
    if broken:
        yield (
            f"NaN or infinity in {phrases.count(len(broken), 'parameter')} of the {side}: "
            f"{phrases.listing(broken, _SHOWN)}; it was not loaded, or overflows its format"
        )


def _has_no_number(parameter: torch.Tensor) -> bool:
    local = _local(parameter.detach())
    if local.is_meta or not local.is_floating_point() or local.element_size() == 1:
        return False
    return not bool(torch.isfinite(local).all())


def _short_count(count: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)
