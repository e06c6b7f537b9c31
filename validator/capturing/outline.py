"""A model's outline: its repeated layers, and the modules around them, told from names and classes alone."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from validator.capturing.naming import NameDealer

__all__ = ["Outline", "classes_of", "glob_of", "is_below", "outline"]

_LISTS = ("ModuleDict", "ModuleList", "Sequential")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """What a model is made of, seen from afar.

    Attributes:
        blocks: fqns of the repeated layers, in the order of the module tree. None lies inside of another.
        frame: fqns of all modules that lie in no block, the model itself (`""`) included.
    """

    blocks: tuple[str, ...]
    frame: tuple[str, ...]

    @property
    def insides(self) -> tuple[str, ...]:
        """Globs of all that lies inside of a block: what a capture of the boundaries leaves out."""
        return tuple(f"{glob_of(block)}.*" for block in self.blocks)


def outline(classes: Mapping[str, str]) -> Outline:
    """Find the repeated layers of a model: entries of a list or dict of which several are of one class.

    Entries without modules inside are no layers that one could look into: a list of such stays in the frame.

    Args:
        classes: qualified class name of each module by fqn, outer ones before what is inside, as `classes_of`
            returns them and a capture holds them.
    """
    children: dict[str, list[str]] = {}
    for fqn in classes:
        if fqn:
            children.setdefault(fqn.rpartition(".")[0], []).append(fqn)
    blocks: list[str] = []
    frame: list[str] = []
    for fqn in classes:
        if blocks and fqn.startswith(f"{blocks[-1]}."):
            continue
        parent = fqn.rpartition(".")[0]
        is_listed = bool(fqn) and classes.get(parent, "").rpartition(".")[2] in _LISTS
        layers = [child for child in children.get(parent, ()) if child in children] if is_listed else []
        is_repeated = max(Counter(classes[layer] for layer in layers).values(), default=0) > 1
        (blocks if is_repeated and fqn in children else frame).append(fqn)
    return Outline(blocks=tuple(blocks), frame=tuple(frame))


def classes_of(model: nn.Module) -> dict[str, str]:
    """Return the qualified class name of each module by fqn."""
    return {
        fqn: f"{type(module).__module__}.{type(module).__qualname__}"
        for fqn, module in NameDealer(model).modules.items()
    }


def is_below(fqn: str, module: str) -> bool:
    """Say whether a module is another one, or lies in it."""
    return not module or fqn == module or fqn.startswith(f"{module}.")


def glob_of(fqn: str) -> str:
    """Return the glob of `capturing.selection` that matches this module alone."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in fqn)
