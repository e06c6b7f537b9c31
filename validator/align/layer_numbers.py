"""Layer numbers that each pipeline stage counts from 0 become the reference's.

`layers.0` of the second stage is the layer that follows the first stage's last. Which one it is follows
from the order of the stages and from how many layers each holds, never from what is in them: a stage that
loaded another stage's weights has to be compared with those that it should have.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from validator.align.stacks import Stack, find_stacks, float_checksums, split_number
from validator.capturing.records import RankCapture
from validator.errors import MismatchError

__all__ = ["Numbered", "number_layers"]

_Ranks = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbered:
    """Captures whose layers have the reference's numbers.

    Attributes:
        captures: every rank's.
        own_names: by rank, what the candidate itself calls a module or parameter that was renumbered.
    """

    captures: tuple[RankCapture, ...]
    own_names: Mapping[int, Mapping[str, str]]

    def own(self, name: str, rank: int) -> str:
        """Return what the candidate calls a module or parameter on a rank."""
        return self.own_names.get(rank, {}).get(name, name)


def number_layers(
    *, cand: Sequence[RankCapture], ref: RankCapture, rename: Callable[[str], str | None]
) -> Numbered:
    """Give layers that each stage counts from 0 the reference's numbers.

    Args:
        cand: every rank's capture.
        ref: the reference's.
        rename: the reference's name of a candidate's module, or None.

    Returns:
        The captures, as they are where the numbers are the reference's already.

    Raises:
        MismatchError: the stages' layers don't add up to the reference's.
    """
    captures = {capture.rank: capture for capture in cand}
    own_names: dict[int, dict[str, str]] = {}
    for stack in find_stacks(ref):
        parts = _parts(list(captures.values()), ref, stack, rename)
        numbers = set().union(*(part.numbers for part in parts))
        if not parts or numbers == set(range(len(stack.layers))) or any(part.is_global for part in parts):
            continue
        stages = _stages(parts)
        if len(stages) == 1 or not any(part.begins or part.ends for part in parts):
            continue  # all ranks alike: layers are missing, which the checks find
        offset = 0
        for stage in _ordered(stages):
            for part in stage if offset else ():
                rank = part.capture.rank
                captures[rank], names = _shifted(captures[rank], part.prefix, offset)
                own_names.setdefault(rank, {}).update(names)
            offset += stage[0].count
        _require_sum(offset, stack, parts)
    return Numbered(captures=tuple(captures.values()), own_names=own_names)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What one rank has of a stack.

    Attributes:
        capture: the rank's.
        prefix: the candidate's name of the layers without their number; "" where it has none.
        numbers: of the layers.
        begins, ends: whether it runs something that the reference runs before, or after, the layers, and
            that not all ranks run.
    """

    capture: RankCapture
    prefix: str
    numbers: frozenset[int]
    begins: bool
    ends: bool

    @property
    def count(self) -> int:
        """Number of layers."""
        return len(self.numbers)

    @property
    def is_global(self) -> bool:
        """Whether the numbers can't be counted from 0."""
        return self.numbers != set(range(self.count))


def _parts(
    captures: Sequence[RankCapture], ref: RankCapture, stack: Stack, rename: Callable[[str], str | None]
) -> list[_Part]:
    """Return what each rank that has layers of a stack has of it."""
    fired: list[set[str | None]] = [{rename(call.module) for call in c.calls} for c in captures]
    common = set.intersection(*fired)
    own = [names - common for names in fired]
    first, last = stack.layers[0].start, stack.layers[-1].start
    parts = []
    for capture, names in zip(captures, own, strict=True):
        found = {split: name for name in capture.modules if (split := split_number(name)) is not None}
        layers = {n: prefix for (prefix, n), name in found.items() if rename(name) == f"{stack.prefix}.{n}"}
        outside = [c for c in ref.calls if c.module in names and not c.module.startswith(f"{stack.prefix}.")]
        if layers:
            parts.append(
                _Part(
                    capture=capture,
                    prefix=layers[min(layers)],
                    numbers=frozenset(layers),
                    begins=any(call.start < first for call in outside),
                    ends=any(call.start > last for call in outside),
                )
            )
    return parts


def _stages(parts: Sequence[_Part]) -> list[list[_Part]]:
    """Group ranks into stages.

    Ranks that exchange something inside a layer are of one stage, and so are those that begin, or end, alike.
    """
    stages: dict[int, list[_Part]] = {part.capture.rank: [part] for part in parts}

    def merge(ranks: Iterable[int]) -> None:
        found = {id(stages[rank]): stages[rank] for rank in ranks if rank in stages}
        merged = [part for stage in found.values() for part in stage]
        stages.update({part.capture.rank: merged for part in merged})

    for part in parts:
        merge({part.capture.rank, *_companions(part)})
    merge(part.capture.rank for part in parts if part.begins)
    merge(part.capture.rank for part in parts if part.ends)
    return list({id(stage): stage for stage in stages.values()}.values())


def _companions(part: _Part) -> set[int]:
    """Return the ranks that a rank exchanges something with while one of its layers runs."""
    inside = {call.id for call in part.capture.calls if call.module.startswith(f"{part.prefix}.")}
    return {
        rank
        for collective in part.capture.collectives
        if collective.call in inside and collective.op not in ("send", "recv")
        for rank in collective.ranks
    }


def _ordered(stages: Sequence[list[_Part]]) -> list[list[_Part]]:
    """Put stages in order: from end to end by what is handed over, where that is lost by rank."""
    left = sorted(stages, key=lambda stage: (_place(stage), stage[0].capture.rank))
    ordered = [left.pop(0)]
    while left:
        returned = set().union(*(_edge_checksums(part, at_end=True) for part in ordered[-1]))
        nearest = [stage for stage in left if _place(stage) == _place(left[0])]
        following = [
            stage
            for stage in nearest
            if any(not returned.isdisjoint(_edge_checksums(part, at_end=False)) for part in stage)
        ]
        ordered.append((following or nearest)[0])
        left.remove(ordered[-1])
    return ordered


def _place(stage: Sequence[_Part]) -> int:
    return any(part.ends for part in stage) - any(part.begins for part in stage)


def _edge_checksums(part: _Part, *, at_end: bool) -> set[str]:
    """Return what goes into the first layer of a rank, or comes out of its last."""
    name = f"{part.prefix}.{part.count - 1 if at_end else 0}"
    calls = [call for call in part.capture.calls if call.module == name]
    return set().union(*(float_checksums(call.outputs if at_end else call.inputs) for call in calls))


def _shifted(capture: RankCapture, prefix: str, offset: int) -> tuple[RankCapture, dict[str, str]]:
    """Add an offset to the numbers of a rank's layers; return also the old name of each new one."""
    start = f"{prefix}."

    def name(old: str) -> str:
        if not old.startswith(start):
            return old
        number, dot, rest = old.removeprefix(start).partition(".")
        return f"{start}{int(number) + offset}{dot}{rest}" if number.isdecimal() else old

    modules = {name(old): replace(info, fqn=name(old)) for old, info in capture.modules.items()}
    shifted = replace(
        capture,
        modules=modules,
        calls=tuple([replace(call, module=name(call.module)) for call in capture.calls]),
        parameters={name(old): replace(p, name=name(old)) for old, p in capture.parameters.items()},
    )
    olds = (*capture.modules, *capture.parameters)
    return shifted, {name(old): old for old in olds if name(old) != old}


def _require_sum(total: int, stack: Stack, parts: Sequence[_Part]) -> None:
    if total != len(stack.layers):
        counts = ", ".join(f"{part.count} on rank {part.capture.rank}" for part in parts)
        raise MismatchError(
            f"the stages' layers don't add up: {stack.prefix} has {len(stack.layers)} in the reference, and "
            f"{counts} make {total}. Number them on every rank as the reference does, or build all of them"
        )
