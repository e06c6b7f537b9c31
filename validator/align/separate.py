"""Modules of the candidate that the reference has as one become that one.

Calls of `q_proj`, `k_proj` and `v_proj` become a call of `qkv_proj`, whose output is theirs, one after
the other.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from validator.align.derived import concatenated, joined_parameter
from validator.align.fusions import Fusion
from validator.align.rewriting import Rewritten, merged_calls, with_calls
from validator.capturing.records import Call, ModuleInfo, Parameter, RankCapture, TensorRef

__all__ = ["join_separate"]


def join_separate(captures: Sequence[RankCapture], fusions: Sequence[Fusion]) -> Rewritten:
    """Put one module in the place of several.

    Args:
        captures: every rank's.
        fusions: the reference's wholes and the candidate's parts. On several ranks the parts' blocks would
            alternate in the whole: such a whole is left in parts, and is a problem.
    """
    problems: tuple[tuple[str, str], ...] = ()
    if len(captures) > 1:
        why = "the candidate has it in parts that are split over ranks; its caller is judged as one function"
        problems = tuple((fusion.whole, why) for fusion in fusions)
        fusions = ()
    modules = {_name(fusion): fusion.whole for fusion in fusions}
    parameters: dict[str, str] = {}
    owners = {_name(fusion): _name(fusion) for fusion in fusions}
    joined = []
    for capture in captures:
        stored = dict(capture.parameters)
        infos = dict(capture.modules)
        for fusion in fusions:
            for leaf, parts in _leaves(fusion, stored).items():
                whole = joined_parameter(parts, f"{_name(fusion)}.{leaf}")
                parameters[whole.name] = f"{fusion.whole}.{leaf}"
                stored = {name: p for name, p in stored.items() if p not in parts} | {whole.name: whole}
            calls = len(_of_module(capture, fusion.parts[0]))
            infos = {fqn: info for fqn, info in infos.items() if fqn not in fusion.parts}
            infos[_name(fusion)] = ModuleInfo(fqn=_name(fusion), type="", calls=calls)
        names = {part: _name(fusion) for fusion in fusions for part in fusion.parts}
        groups = [group for fusion in fusions for group in _groups(capture, fusion)]
        made, collectives = merged_calls(capture, groups, partial(_merged, names=names))
        joined.append(with_calls(capture, made, collectives=collectives, modules=infos, parameters=stored))
    return Rewritten(
        captures=tuple(joined), modules=modules, parameters=parameters, owners=owners, problems=problems
    )


def _name(fusion: Fusion) -> str:
    """Return what the parts together are called among the candidate's modules."""
    inner = ",".join(part.rpartition(".")[2] for part in fusion.parts)
    return f"{fusion.parts[0].rpartition('.')[0]}.{{{inner}}}".lstrip(".")


def _leaves(fusion: Fusion, stored: Mapping[str, Parameter]) -> dict[str, list[Parameter]]:
    """Return the parameters that all parts have, by leaf."""
    prefix = f"{fusion.parts[0]}."
    leaves = [name[len(prefix) :] for name in stored if name.startswith(prefix)]
    found = {leaf: [stored.get(f"{part}.{leaf}") for part in fusion.parts] for leaf in leaves}
    return {leaf: [p for p in parts if p] for leaf, parts in found.items() if all(parts)}


def _groups(capture: RankCapture, fusion: Fusion) -> Iterator[list[Call]]:
    """Yield the calls of all parts inside one parent, the first of each, then the second, ..."""
    by_part = [_of_module(capture, part) for part in fusion.parts]
    if len({tuple(call.parent for call in calls) for calls in by_part}) == 1:
        yield from (list(group) for group in zip(*by_part, strict=True))


def _of_module(capture: RankCapture, fqn: str) -> list[Call]:
    return [call for call in capture.calls if call.module == fqn]


def _merged(group: Sequence[Call], *, names: Mapping[str, str]) -> Call:
    first = group[0]
    outputs = dict(first.outputs)
    for path, value in first.outputs.items():
        others = [call.outputs.get(path) for call in group]
        tensors = [other for other in others if isinstance(other, TensorRef)]
        if isinstance(value, TensorRef) and len(tensors) == len(group):
            outputs[path] = concatenated(tensors, dim=-1)
    return replace(first, module=names[first.module], outputs=outputs)
