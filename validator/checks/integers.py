"""What is known of the integers and booleans of a piece of code: which of them rounded values decided."""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from validator.checks.operations import is_floating

__all__ = ["Integers"]


class Integers:
    """Keeps which plain tensors rounded values decided, and which hold the indices of a choice."""

    def __init__(self) -> None:
        # With the tensors themselves, so that no other gets their identity.
        self._decided: dict[int, Tensor] = {}
        self._origins: dict[int, tuple[Tensor, str]] = {}

    def __bool__(self) -> bool:
        return bool(self._decided)

    def is_decided(self, value: Any) -> bool:
        """Tell whether rounded values decided a tensor, directly or through others."""
        return id(value) in self._decided

    def origin(self, value: Any) -> str:
        """Return the name of the choice whose indices a tensor holds, in whatever shape, or ""."""
        return self._origins.get(id(value), (None, ""))[1]

    def decide(self, values: Iterable[Any]) -> None:
        """Note that rounded values decided what of these is no floating tensor."""
        self._decided |= {id(x): x for x in values if isinstance(x, Tensor) and not is_floating(x)}

    def name(self, indices: Tensor, choice: str) -> None:
        """Note that a tensor holds the indices of a choice."""
        self._origins[id(indices)] = indices, choice

    def carry(self, given: Sequence[Any], made: Iterable[Any]) -> None:
        """Note what an operator made of the indices of one choice: the same in another form."""
        names = {self._origins[id(x)][1] for x in given if id(x) in self._origins}
        if len(names) == 1:
            (name,) = names
            self._origins |= {id(x): (x, name) for x in made if isinstance(x, Tensor) and not is_floating(x)}
