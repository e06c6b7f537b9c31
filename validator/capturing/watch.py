"""Hooks that hand on every tensor at the edges of a model's calls, and may put another in its place."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from validator.capturing.naming import NameDealer, Scope
from validator.capturing.values import bind_arguments, flatten, flatten_arguments, rebuild

__all__ = ["Place", "Watch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a tensor is.

    Attributes:
        module: fqn, as a capture names it.
        call: how many calls of this module came before.
        side: `"inputs"` or `"outputs"`.
        path: where it stands in the inputs or outputs.
    """

    module: str
    call: int
    side: str
    path: str


class Watch:
    """Watches a model's calls while it is entered.

    Args:
        model: the model; modules have the names that a capture gives them.
        seen: called with each tensor at an edge; what it returns, unless None, goes on in its place.
        left: called after each call of a module.
    """

    def __init__(
        self,
        model: nn.Module,
        seen: Callable[[Place, Tensor], Tensor | None],
        left: Callable[[], None] = lambda: None,
    ) -> None:
        self._seen = seen
        self._left = left
        self._dealer = NameDealer(model)
        self._outermost = Scope()
        self._open: list[tuple[Scope, int]] = []
        self._calls: Counter[str] = Counter()
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> None:
        """Hook every module."""
        for module in {id(module): module for module in self._dealer.modules.values()}.values():
            self._handles += [
                module.register_forward_pre_hook(self._before, with_kwargs=True),
                module.register_forward_hook(self._after, with_kwargs=True),
            ]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        fqn = self._dealer.name(module, self._open[-1][0] if self._open else self._outermost)
        self._open.append((Scope(fqn), self._calls[fqn]))
        self._calls[fqn] += 1
        others = self._replaced("inputs", flatten_arguments(module, args, kwargs))
        if not others:
            return None
        bound = bind_arguments(module, args, kwargs)
        new = {
            name: rebuild(value, lambda path, leaf: others.get(path, leaf), name)
            for name, value in bound.items()
        }
        return tuple(list(new.values())[: len(args)]), {name: new[name] for name in kwargs}

    def _after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        others = self._replaced("outputs", flatten(output))
        self._open.pop()
        self._left()
        return rebuild(output, lambda path, leaf: others.get(path, leaf)) if others else None

    def _replaced(self, side: str, leaves: Mapping[str, Any]) -> dict[str, Tensor]:
        scope, call = self._open[-1]
        replaced = {}
        for path, leaf in leaves.items():
            if isinstance(leaf, Tensor):
                other = self._seen(Place(module=scope.fqn, call=call, side=side, path=path), leaf)
                if other is not None:
                    replaced[path] = other
        return replaced
