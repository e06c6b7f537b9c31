"""A model as a tree of modules with their parameters' shapes, as captures describe it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from validator.capturing.records import Parameter, RankCapture, TensorRef

__all__ = ["Module", "Tree", "tree_of"]

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A module.

    Attributes:
        fqn: its name.
        type: its class's name, without the module that defines it.
        shapes: of its own parameters by leaf, in order; of a DTensor the whole's. Buffers are left out.
        children: fqns, in the order in which they were called first; those that never were stand where they
            are defined.
        elements: number of elements of all parameters in it, children's included.
    """

    fqn: str
    type: str
    shapes: Mapping[str, Shape]
    children: tuple[str, ...]
    elements: int

    @property
    def own_elements(self) -> int:
        """Number of elements of its own parameters."""
        return sum(map(prod, self.shapes.values()))

    @property
    def is_leaf(self) -> bool:
        """Whether it has no children with parameters."""
        return self.elements == self.own_elements

    @property
    def is_list(self) -> bool:
        """Whether its children are numbered."""
        return all(child.rpartition(".")[2].isdigit() for child in self.children)

    @property
    def leaf(self) -> str:
        """The last part of its name."""
        return self.fqn.rpartition(".")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A model.

    Attributes:
        modules: by name, outer ones first.
        parameters: by name and rank.
        outputs: the first tensor that the first call of each module returned, on the lowest rank that ran it.
        world_size: number of ranks.
    """

    modules: Mapping[str, Module]
    parameters: Mapping[str, Mapping[int, Parameter]] = field(repr=False)
    outputs: Mapping[str, TensorRef] = field(repr=False)
    world_size: int

    def inside(self, fqn: str) -> Iterator[Module]:
        """Yield a module and all below it."""
        module = self.modules[fqn]
        yield module
        for child in module.children:
            yield from self.inside(child)

    def parameters_inside(self, fqn: str) -> Iterator[str]:
        """Yield the names of all parameters in a module."""
        for module in self.inside(fqn):
            for leaf in module.shapes:
                yield ".".join(filter(None, (module.fqn, leaf)))


def tree_of(captures: Sequence[RankCapture]) -> Tree:
    """Return the tree of a model that ran on these ranks, each of which may hold some of the modules only."""
    types: dict[str, str] = {}
    parameters: dict[str, dict[int, Parameter]] = {}
    started: dict[str, tuple[int, int]] = {}
    outputs: dict[str, TensorRef] = {}
    for capture in captures:
        types |= {fqn: info.type for fqn, info in capture.modules.items() if fqn not in types}
        types.setdefault("", "")
        for name, parameter in capture.parameters.items():
            parameters.setdefault(name, {})[capture.rank] = parameter
        for call in capture.calls:
            place = (capture.rank, call.start)
            started[call.module] = min(started.get(call.module, place), place)
            tensors = [value for value in call.outputs.values() if isinstance(value, TensorRef)]
            if tensors and call.n == 0:
                outputs.setdefault(call.module, tensors[0])
    children: dict[str, list[str]] = {}
    for fqn in types:
        if fqn:
            children.setdefault(_parent(fqn, types), []).append(fqn)
    shapes: dict[str, dict[str, Shape]] = {fqn: {} for fqn in types}
    for name, of_rank in parameters.items():
        owner, _, leaf = name.rpartition(".")
        first = of_rank[min(of_rank)]
        if owner in shapes and first.kind in ("parameter", "quantised"):
            shapes[owner][leaf] = first.ref.meta.global_shape or first.ref.meta.shape
    elements = {fqn: sum(map(prod, own.values())) for fqn, own in shapes.items()}
    for fqn in sorted(types, key=lambda fqn: fqn.count(".") + bool(fqn), reverse=True):
        if fqn:
            elements[_parent(fqn, types)] += elements[fqn]
    modules = {
        fqn: Module(
            fqn=fqn,
            type=kind.rpartition(".")[2],
            shapes=shapes[fqn],
            children=tuple(_in_order(children.get(fqn, ()), started)),
            elements=elements[fqn],
        )
        for fqn, kind in types.items()
    }
    return Tree(modules=modules, parameters=parameters, outputs=outputs, world_size=len(captures))


def _parent(fqn: str, known: Mapping[str, str]) -> str:
    """Return the nearest module above; a capture of some modules only may lack those between."""
    parent = fqn.rpartition(".")[0]
    while parent and parent not in known:
        parent = parent.rpartition(".")[0]
    return parent


def _in_order(children: Sequence[str], started: Mapping[str, tuple[int, int]]) -> list[str]:
    """Put those that were called in the order of their first calls, into the places that they have among all.

    What is numbered stays in the order of the numbers: which experts are called first is up to the tokens.
    """
    if all(child.rpartition(".")[2].isdigit() for child in children):
        return list(children)
    called = iter(sorted((child for child in children if child in started), key=lambda child: started[child]))
    return [next(called) if child in started else child for child in children]
