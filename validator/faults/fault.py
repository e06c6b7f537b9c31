"""What a fault is: a record of where it belongs, what it takes, and how it is planted."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from validator.errors import UsageError
from validator.faults.decoder import Decoder

__all__ = ["Fault", "Parameter", "PlannedFault"]

Number = int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A number that a fault takes.

    Attributes:
        name: as it is written in `name=value`.
        kind: `int` for an index, not negative; `float` for any finite number.
        default: what it is unless given; None where that is a choice of its own, such as every rank.
        what: its meaning.
    """

    name: str
    kind: type[int] | type[float]
    default: Number | None
    what: str

    def read(self, value: Any) -> Number | None:
        """Return a value, or the text of one, as the number that it must be, or raise `ValueError`."""
        if value is None and self.default is None:
            return None
        number = self.kind(value)
        if not math.isfinite(number) or (self.kind is int and (number < 0 or number != float(value))):
            raise ValueError(value)
        return number

    @property
    def legal(self) -> str:
        """Its legal values, in words."""
        return "0, 1, 2, ..." if self.kind is int else "a finite number"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault that ports have had.

    Attributes:
        name: in kebab case.
        what: what the port then does, in one sentence.
        module: glob of the module that a perfect tool names; `{layer}` is the layer planted in.
        apply: spoils a decoder in place; takes the parameters but `rank` by name. Raises `UsageError` with
            the reason where the model would compute the same with it.
        parameters: what it takes. With `rank`, it is planted on that rank alone.
        needs: parts that the decoder must have, from `model`, `body` or `layer` on.
        lacks: parts that it must not have.
        dtypes: formats of the weights in which it computes anything else; empty for all.
        ranks: how many ranks it takes at least.
        zoo: ids of the reports, in the collection of real faults, that it recreates.
    """

    name: str
    what: str
    module: str
    apply: Callable[..., None]
    parameters: tuple[Parameter, ...] = ()
    needs: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    dtypes: tuple[torch.dtype, ...] = ()
    ranks: int = 1
    zoo: tuple[str, ...] = ()

    def plan(self, **parameters: Any) -> "PlannedFault":
        """Choose the parameters; those that are left out have their defaults.

        Args:
            parameters: numbers, or texts of numbers.

        Raises:
            UsageError: it takes no parameter of that name, or the value is not legal.
        """
        known = {parameter.name: parameter for parameter in self.parameters}
        for name in parameters:
            if name not in known:
                legal = f"it takes {', '.join(known)}" if known else "it takes none"
                raise UsageError(f"the fault {self.name!r} has no parameter {name!r}; {legal}")
        chosen = {}
        for name, parameter in known.items():
            value = parameters.get(name, parameter.default)
            try:
                chosen[name] = parameter.read(value)
            except (TypeError, ValueError):
                raise UsageError(
                    f"{name}={value!r} of the fault {self.name!r} is not {parameter.what}: "
                    f"write {parameter.legal}"
                ) from None
        return PlannedFault(fault=self, parameters=chosen)

    def plant(self, model: nn.Module, **parameters: Any) -> None:
        """Plant it in a model in place, as `PlannedFault.plant` does."""
        self.plan(**parameters).plant(model)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """A fault with all its parameters.

    Attributes:
        fault: which.
        parameters: each one's value by name.
    """

    fault: Fault
    parameters: Mapping[str, Number | None]

    @property
    def module(self) -> str:
        """Glob of the module that a perfect tool names."""
        return self.fault.module.format(**self.parameters)

    @property
    def rank(self) -> int | None:
        """The only rank that it is planted on, or None for all."""
        rank = self.parameters.get("rank")
        return None if rank is None else int(rank)

    @property
    def note(self) -> str:
        """What a report of a run with this fault must say."""
        where = "" if self.rank is None else f" on rank {self.rank}"
        return f"a fault was planted in the candidate: {self}; {self.module}{where} is to be named"

    def __str__(self) -> str:
        given = [f"{name}={value}" for name, value in self.parameters.items() if value is not None]
        return ":".join(filter(None, (self.fault.name, ",".join(given))))

    def plant(self, model: nn.Module) -> None:
        """Spoil a model in place; on several ranks to be called on each.

        Raises:
            UsageError: the model lacks what it belongs in, would compute the same with it, or there are too
                few ranks.
        """
        world_size = dist.get_world_size() if dist.is_initialized() else 1
        needed = max(self.fault.ranks, 0 if self.rank is None else self.rank + 1)
        if world_size < needed:
            raise UsageError(
                f"{self} needs {needed} ranks or more, and the run has {world_size}: raise --nproc"
            )
        decoder = Decoder.of(model)
        self._demand_parts(decoder)
        if self.rank is None or self.rank == (dist.get_rank() if dist.is_initialized() else 0):
            chosen = {name: value for name, value in self.parameters.items() if name != "rank"}
            try:
                with torch.no_grad():
                    self.fault.apply(decoder, **chosen)
            except UsageError as error:
                raise self._refusal(decoder, str(error)) from None

    def _demand_parts(self, decoder: Decoder) -> None:
        layer = self.parameters.get("layer")
        index = None if layer is None else int(layer)
        for path in self.fault.needs:
            if not decoder.has(path, index):
                raise self._refusal(decoder, f"it has no {_shown(path, index)}")
        for path in self.fault.lacks:
            if decoder.has(path, index):
                reason = f"it has {_shown(path, index)}, and the fault would compute without it"
                raise self._refusal(decoder, reason)
        dtype = next(decoder.body.parameters()).dtype
        if self.fault.dtypes and dtype not in self.fault.dtypes:
            legal = " or ".join(map(_named, self.fault.dtypes))
            reason = f"it is {_named(dtype)}, where the fault changes nothing: give --dtype {legal}"
            raise self._refusal(decoder, reason)

    def _refusal(self, decoder: Decoder, reason: str) -> UsageError:
        return UsageError(f"{self} can't be planted in {type(decoder.model).__name__}: {reason}")


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shown(path: str, layer: int | None) -> str:
    root, _, rest = path.partition(".")
    return f"layers[{layer}].{rest}" if root == "layer" else rest
