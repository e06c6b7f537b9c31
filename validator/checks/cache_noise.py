"""Noisy runs of a whole model whose attention reads keys and values from a quantised cache.

No tape of a whole model fits into memory. So the model runs once to tell which of the matrix products in
each call of a module are those of an attention, by the softmax between them; the noisy runs go by that. All
keys are read from the cache: what a candidate reads as it was computed is off by less.

Shape legend: B = sequences, H = heads, S = queries, T = keys.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from validator.checks.aten_calls import flatten_call
from validator.checks.attention_sites import BATCHED, EntryOf, made_by, products_around
from validator.checks.cache_codes import Sharing
from validator.checks.cache_operations import EVERYTHING, Cache, Part, reading
from validator.checks.operations import Operation
from validator.checks.operators import ATTENTION, is_exact, operator_name
from validator.checks.shadow import ShadowTensor
from validator.errors import TargetError
from validator.numerics.recipes import Recipe

__all__ = ["AttentionLog", "CachedRuns"]

_Place = tuple[str, int, int]
"""Module, its call, and which of the products in the module's own code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """An operator of the run that tells attention, as far as `products_around` looks at it."""

    name: str
    rounds: bool
    place: _Place | None
    batch: int | None


class CachedRuns:
    """Where the attention of a model reads from a cache; entered around each run, to follow its modules.

    Args:
        model: the reference.
        recipe: says what the cache holds.
    """

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        self._names = {module: name for name, module in model.named_modules()}
        self._recipe = recipe
        self._parts: dict[_Place, tuple[Part, int | None]] = {}
        self._handles: list[RemovableHandle] = []
        self._open: list[list[Any]] = []
        self._calls: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._calls.clear()
        self._open = [["", 0, 0]]
        for module in self._names:
            self._handles += [
                module.register_forward_pre_hook(self._before),
                module.register_forward_hook(self._after, always_call=True),
            ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def learn(self, log: "AttentionLog") -> None:
        """Take over what a run showed.

        Raises:
            TargetError: it showed no attention.
        """
        self._parts = log.parts()
        if not self._parts and not log.is_fused:
            raise TargetError(
                f"the recipe {self._recipe.name!r} declares a cache of {self._recipe.cache} codes, and in "
                "the reference's code no attention could be made out that would read from it, so that its "
                "noise can't be measured: let the reference attend by scaled_dot_product_attention, or by a "
                "softmax between two matrix products"
            )

    def place(self) -> _Place:
        """Return which matrix product comes next, and go on."""
        module, call, number = self._open[-1]
        self._open[-1][2] += 1
        return module, call, number

    def read_by(self, operation: Operation) -> Operation:
        """Return an operator as it reads from the cache, if it does."""
        if operation.name == ATTENTION:
            return self._reading(operation, self._open[-1][0], Part.WHOLE, None)
        if operation.name not in BATCHED:
            return operation
        place = self.place()
        part, batch = self._parts.get(place, (None, None))
        return operation if part is None else self._reading(operation, place[0], part, batch)

    def _reading(self, operation: Operation, module: str, part: Part, batch: int | None) -> Operation:
        scale = self._recipe.cache_scale_of(module)
        if scale is None:
            return operation
        sharing = Sharing(batch=batch)
        cache = Cache(fmt=self._recipe.cache, scale=scale, is_read=EVERYTHING, sharing=sharing)
        return reading(operation, part, cache)

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        name = self._names[module]
        self._open.append([name, self._calls[name], 0])
        self._calls[name] += 1

    def _after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._open.pop()


class AttentionLog:
    """Takes note of the operators of a run, and of what flows between them, but of no values.

    Args:
        runs: followed while the run lasts.
    """

    def __init__(self, runs: CachedRuns) -> None:
        self.is_fused = False
        self._runs = runs
        self._entries: list[EntryOf[_Seen]] = []
        self._slots = 0
        self._calling: tuple[_Seen, tuple[int, ...]] | None = None

    def calling(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Take note of an operator before it runs."""
        if func is torch.nn.functional.scaled_dot_product_attention:
            name, rounds = ATTENTION, True
        else:
            name, rounds = operator_name(func), not is_exact(func)
        if name.startswith("_scaled_dot_product"):
            name = ATTENTION
        self.is_fused = self.is_fused or name == ATTENTION
        given = [x for x in flatten_call(tuple(args), kwargs)[0] if isinstance(x, torch.Tensor)]
        seen = _Seen(
            name=name,
            rounds=rounds,
            place=self._runs.place() if name in BATCHED else None,
            batch=given[0].shape[0] if name == "_softmax" and given[0].dim() == 4 else None,
        )
        self._calling = seen, tuple([self._slot(x) for x in given])

    def called(self, result: Any) -> None:
        """Take note of what the operator returned."""
        assert self._calling is not None
        seen, sources = self._calling
        results = result if isinstance(result, tuple | list) else (result,)
        self._entries.append((seen, sources, tuple([self._new(x) for x in results])))

    def became(self, target: ShadowTensor, source: ShadowTensor) -> None:
        """Take no note: children run like all code."""

    def parts(self) -> dict[_Place, tuple[Part, int | None]]:
        """Return the products of each attention that is no fused kernel, and B of what they multiply."""
        made: dict[_Place, tuple[Part, int | None]] = {}
        makers = made_by(self._entries)
        for i, softmax in enumerate(self._entries):
            if softmax[0].name != "_softmax":
                continue
            around = products_around(itertools.islice(self._entries, i, None), softmax, makers)
            places = [entry[0].place for entry in around or ()]
            # Of a router's products one is batched at most: that of its weights and what experts made.
            for place, part in zip(places, (Part.SCORES, Part.SUMS), strict=False):
                if place is not None and None not in places:
                    made[place] = part, softmax[0].batch
        return made

    def _slot(self, value: torch.Tensor) -> int:
        slot = value.slots.get(id(self)) if isinstance(value, ShadowTensor) else None
        return self._new(value) if slot is None else slot

    def _new(self, value: Any) -> int:
        self._slots += 1
        if isinstance(value, ShadowTensor):
            value.slots[id(self)] = self._slots
        return self._slots
