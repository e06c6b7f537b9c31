"""Experts: one module each on one side, all of them in one tensor on the other.

transformers keeps the experts of a layer in stacks such as `gate_up_proj` and `down_proj`; others have a list
of small modules, or stacks of other names, with gate and up apart. The candidate's parameters are put into
the reference's form. What runs inside differs with it: the layer is judged as one function through them.

Shape legend: E = experts that a rank holds; I = their hidden channels; D = channels.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from validator.align.derived import (
    joined_parameter,
    selected_parameter,
    sliced_parameter,
    stacked_parameter,
)
from validator.align.rewriting import Rewritten
from validator.capturing.records import Parameter, RankCapture

__all__ = ["restack_experts"]

_ROLES = {
    "gate": ("gate_proj", "w1", "gate", "linear"),
    "up": ("up_proj", "w3", "v1", "up", "linear_v"),
    "down": ("down_proj", "w2", "down", "linear_1"),
    "gate_up": ("gate_up_proj", "w13", "gate_up"),
}
"""What the maps of an expert are called."""

_SOURCES = {
    "gate": ("gate", "gate_up"),
    "up": ("up", "gate_up"),
    "down": ("down",),
    "gate_up": ("gate_up", "gate", "up"),
}
"""What each is made of, where one side has gate and up together."""

_NAME = re.compile(
    r"(?:(?P<owner>.*?)\.)?(?:(?P<number>\d+)\.)?(?P<word>[^.]+?)(?:[._](?P<kind>weight|bias))?"
)
"""Of an expert's parameter: what holds the experts, this one's number, and what it is."""

_Role = tuple[str, str]
"""One of `_ROLES`, and `weight` or `bias`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """How a module keeps its experts: the names of stacks, and of each expert's own parameters by number."""

    stacks: dict[_Role, str] = field(default_factory=dict)
    lists: dict[_Role, dict[int, str]] = field(default_factory=dict)

    @property
    def is_moe(self) -> bool:
        """Whether these are experts: maps into hidden channels and back."""
        roles = {role for role, _ in (*self.stacks, *self.lists)}
        return "down" in roles and bool(roles & {"up", "gate_up"})

    def names(self, roles: Collection[_Role]) -> Iterator[str]:
        """Yield the names of the parameters of these roles."""
        yield from (name for role, name in self.stacks.items() if role in roles)
        for role, numbered in self.lists.items():
            yield from numbered.values() if role in roles else ()

    def is_like(self, other: "_Form", own: str, new: str) -> bool:
        """Tell whether another has all these parameters under the same names, in a module of another name."""
        ours, theirs = (
            {name[len(fqn) :] for name in form.names({*form.stacks, *form.lists})}
            for form, fqn in ((self, own), (other, new))
        )
        return ours <= theirs


def restack_experts(
    captures: Sequence[RankCapture], *, ref: RankCapture, modules: Mapping[str, str]
) -> Rewritten:
    """Put the parameters of experts into the form that they have in the reference.

    Args:
        captures: every rank's. A rank that holds some of the experts holds them in order.
        ref: the reference's.
        modules: the reference's name of each candidate module, whether it ran or not.
    """
    parameters: dict[str, str] = {}
    made = []
    wanted = {name: form for name, form in _forms(ref).items() if form.is_moe}
    for position, capture in enumerate(captures):
        stored = dict(capture.parameters)
        for own, ours in _forms(capture).items():
            new = modules.get(own)
            if new not in wanted or new is None or not ours.is_moe or ours.is_like(wanted[new], own, new):
                continue
            stacks = dict(_stacks(capture, ours, own))
            used: set[_Role] = set()
            for (word, kind), name, parameter in _in_form(stacks, wanted[new], ref, position, len(captures)):
                here = f"{own}{name[len(new) :]}"
                stored[here] = replace(parameter, name=here)
                parameters[here] = name
                used |= {(source, kind) for source in _SOURCES[word]}
            for name in ours.names(used):
                if name not in parameters:
                    del stored[name]
        made.append(replace(capture, parameters=stored))
    return Rewritten(captures=tuple(made), parameters=parameters)


def _forms(capture: RankCapture) -> dict[str, _Form]:
    """Return the form of each module that might hold experts."""
    forms: dict[str, _Form] = {}
    for name, parameter in capture.parameters.items():
        match = _NAME.fullmatch(name)
        role = next((role for role, words in _ROLES.items() if match and match["word"] in words), None)
        if match is None or role is None:
            continue
        form = forms.setdefault(match["owner"] or "", _Form())
        key = role, match["kind"] or "weight"
        dims = len(parameter.ref.meta.shape)
        if match["number"] is not None:
            form.lists.setdefault(key, {})[int(match["number"])] = name
        elif dims == (3 if key[1] == "weight" else 2):
            form.stacks[key] = name
    return forms


def _stacks(capture: RankCapture, form: _Form, fqn: str) -> Iterator[tuple[_Role, Parameter]]:
    """Yield `[E, *]` of each role."""
    for role, name in form.stacks.items():
        yield role, capture.parameters[name]
    for role, names in form.lists.items():
        parts = [capture.parameters[name] for _, name in sorted(names.items())]
        if len({part.ref.meta.shape for part in parts}) == 1:
            yield role, stacked_parameter(parts, f"{fqn}.{role[0]}")


def _in_form(
    stacks: Mapping[_Role, Parameter], form: _Form, ref: RankCapture, position: int, world_size: int
) -> Iterator[tuple[_Role, str, Parameter]]:
    """Yield what the reference has, by its name; experts without a name on this side have none."""
    for role, name in form.stacks.items():
        stack = _of_role(stacks, role)
        if stack is not None and _fits(stack, ref.parameters[name], world_size):
            yield role, name, stack
    for role, names in form.lists.items():
        stack = _of_role(stacks, role)
        count = 0 if stack is None else stack.ref.meta.shape[0]
        if stack is None or count not in (len(names), len(names) / world_size):
            continue
        first = 0 if count == len(names) else count * position
        for index in range(count):
            if first + index in names:
                name = names[first + index]
                yield role, name, selected_parameter(stack, name, index)


def _of_role(stacks: Mapping[_Role, Parameter], role: _Role) -> Parameter | None:
    """Return the stack of a role, gate and up put together or taken apart as needed."""
    word, kind = role
    if role in stacks:
        return stacks[role]
    gate, up, both = (stacks.get((part, kind)) for part in ("gate", "up", "gate_up"))
    if word == "gate_up" and gate is not None and up is not None:
        return joined_parameter([gate, up], word, dim=1)
    if word in ("gate", "up") and both is not None:
        half = both.ref.meta.shape[1] // 2
        start = half if word == "up" else 0
        return sliced_parameter(both, word, dim=1, start=start, stop=start + half)
    return None


def _fits(stack: Parameter, ref: Parameter, world_size: int) -> bool:
    """Tell whether a stack may be the reference's, or a rank's part of it."""
    ours, theirs = stack.ref.meta.shape, ref.ref.meta.shape
    return len(ours) == len(theirs) and all(
        x == y or x <= y <= x * world_size for x, y in zip(ours, theirs, strict=True)
    )
