"""What a hybrid is made of: parts of a model, each of which one side or the other computes.

A part is a module with all in it, or a module's own code: what it does itself between the modules that are
parts too. So all parts together are the whole model, and each of its lines belongs to one.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

from validator.capturing.outline import classes_of, is_below, outline

__all__ = ["Part", "coarse_parts", "finer_parts", "matching_parts", "sides_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a model, in the reference's names.

    Attributes:
        module: fqn of the module; the model itself is `""`.
        is_own_code: whether it is the module's own code alone, other parts being inside.
    """

    module: str
    is_own_code: bool = False

    def __str__(self) -> str:
        if not self.is_own_code:
            return self.module or "(the model itself)"
        return f"{self.module}, its own code" if self.module else "(the model's own code)"


def coarse_parts(model: nn.Module, swappable: Collection[str]) -> tuple[Part, ...]:
    """Return the blocks of a model, what stands beside them, and the code around them.

    Args:
        model: the reference.
        swappable: fqns of the modules that both sides have.
    """
    around = {name for block in outline(classes_of(model)).blocks for name in _around(block)}
    found: list[str] = []

    def visit(name: str, module: nn.Module) -> None:
        for child, inner in module.named_children():
            fqn = f"{name}.{child}".lstrip(".")
            if fqn in swappable and fqn not in around:
                found.append(fqn)
            else:
                visit(fqn, inner)

    visit("", model)
    return (*(Part(module=name) for name in found), Part(module="", is_own_code=True))


def finer_parts(parts: Iterable[Part], swappable: Sequence[str]) -> tuple[Part, ...]:
    """Return parts with each module opened into those right below it that both sides have.

    Args:
        parts: a module without any inside, and own code, stay as they are.
        swappable: fqns of the modules that both sides have, outer ones first.
    """
    finer: list[Part] = []
    for part in parts:
        inside = [] if part.is_own_code else _nearest_inside(part.module, swappable)
        if not inside:
            finer.append(part)
            continue
        finer += [Part(module=name) for name in inside]
        finer.append(Part(module=part.module, is_own_code=True))
    return tuple(finer)


def matching_parts(pattern: str, swappable: Sequence[str]) -> tuple[Part, ...]:
    """Return the outermost modules whose names a glob matches; `*` matches dots too."""
    matched = [name for name in swappable if fnmatchcase(name, pattern)]
    return tuple(
        Part(module=name) for name in matched if not any(_is_inside(name, other) for other in matched)
    )


def sides_of(names: Iterable[str], sides: Mapping[Part, bool]) -> dict[str, bool]:
    """Return for each module whether the candidate computes it: as the innermost part that it is in does.

    Args:
        names: fqns of modules, outer ones first.
        sides: whether each part is the candidate's; what is in no part is the reference's.
    """
    own = {part.module: is_cand for part, is_cand in sides.items()}
    found: dict[str, bool] = {}
    for name in names:
        around = name
        while around not in own and around:
            around = around.rpartition(".")[0]
        found[name] = own.get(around, False)
    return found


def _around(module: str) -> Iterator[str]:
    while module:
        module = module.rpartition(".")[0]
        yield module


def _is_inside(name: str, other: str) -> bool:
    return name != other and is_below(name, other)


def _nearest_inside(module: str, swappable: Sequence[str]) -> list[str]:
    inside = [name for name in swappable if _is_inside(name, module)]
    return [name for name in inside if not any(_is_inside(name, other) for other in inside)]
