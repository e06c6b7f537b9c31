"""A fused module's calls and parameters become those of the parts that the reference has.

A call of `qkv_proj` becomes calls of `q_proj`, `k_proj` and `v_proj` with the same input, whose outputs are
its slices; its weight and bias likewise. On several ranks each holds a block of every part, one after the
other, unless a layout declares another order. Modules that are given what it returned (an activation of gate
and up at once) take no tensor that the reference has, and are looked through.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from validator.align.blocks import Blocks
from validator.align.derived import taken, taken_rows
from validator.align.fusions import Fusion
from validator.align.rewriting import Rewritten, split_calls, with_calls
from validator.capturing.records import Call, ModuleInfo, Parameter, RankCapture, TensorRef
from validator.sharding.layout import Layout

__all__ = ["split_fused"]

_Wholes = Mapping[str, Blocks]


def split_fused(
    captures: Sequence[RankCapture], fusions: Sequence[Fusion], layouts: Mapping[str, Layout] | None = None
) -> Rewritten:
    """Put the reference's parts in the place of the candidate's fused modules.

    Args:
        captures: every rank's.
        fusions: the candidate's wholes and the reference's parts. One whose outputs are not as wide as its
            parts together is left as it is, and is a problem.
        layouts: what the target declares, by module.

    Raises:
        LayoutError: what is declared does not fit the parts.
    """
    known = layouts or {}
    wholes = {
        fusion.whole: Blocks(
            fusion,
            ranks=[capture.rank for capture in captures if fusion.whole in capture.modules],
            layout=known.get(fusion.whole),
        )
        for fusion in fusions
    }
    problems = dict(_problems(captures, wholes))
    wholes = {whole: blocks for whole, blocks in wholes.items() if whole not in problems}
    parts = [
        (whole, part, blocks.fusion.part_name(part))
        for whole, blocks in wholes.items()
        for part in blocks.fusion.parts
    ]
    parameters: dict[str, str] = {}
    owners = {name: whole for whole, _, name in parts}
    split = []
    for capture in captures:
        widths = dict(_widths(capture, wholes))
        made: dict[str, Parameter] = {}
        for name, parameter in capture.parameters.items():
            whole, _, leaf = name.rpartition(".")
            if whole not in wholes:
                made[name] = parameter
                continue
            blocks = wholes[whole]
            rows = blocks.rows(capture.rank, parameter.ref.meta, leaf, widths.get(whole))
            if rows is None:
                # It stands for something in their parent: none of the reference's is missing for sure.
                parameters[name] = f"{blocks.fusion.parts[0].rpartition('.')[0]}.{leaf}"
            pieces = {} if rows is None else _rows(parameter, blocks, leaf, rows)
            made |= {piece.name: piece for piece in pieces.values()} or {name: parameter}
            for part, piece in pieces.items():
                parameters[piece.name] = f"{part}.{leaf}"
                owners[piece.name] = name
        calls, collectives = split_calls(capture, partial(_call_parts, wholes=wholes, rank=capture.rank))
        infos: dict[str, ModuleInfo] = {}
        for fqn, info in capture.modules.items():
            names = [name for whole, _, name in parts if whole == fqn] if fqn in wholes else [fqn]
            infos |= {name: replace(info, fqn=name) for name in names}
        split.append(with_calls(capture, calls, collectives=collectives, modules=infos, parameters=made))
    return Rewritten(
        captures=tuple(split),
        modules={name: part for _, part, name in parts},
        parameters=parameters,
        owners=owners,
        layouts={
            blocks.fusion.part_name(part): layout
            for whole, blocks in wholes.items()
            if whole in known
            for part, layout in zip(blocks.fusion.parts, blocks.layouts(), strict=True)
        },
        inner=frozenset(fqn for capture in captures for fqn in _consumers(capture, wholes)),
        problems=tuple(
            (fusion.parts[0].rpartition(".")[0], problems[fusion.whole])
            for fusion in fusions
            if fusion.whole in problems
        ),
    )


def _problems(captures: Sequence[RankCapture], wholes: _Wholes) -> Iterator[tuple[str, str]]:
    for capture in captures:
        for call in capture.calls:
            blocks = wholes.get(call.module)
            if blocks is None or call.end is None or _slices(call, blocks, capture.rank) is not None:
                continue
            shapes = [list(x.meta.shape) for x in call.outputs.values() if isinstance(x, TensorRef)]
            parts = ", ".join(part.rpartition(".")[2] for part in blocks.fusion.parts)
            why = (
                f"the candidate's {call.module} returned {' and '.join(map(str, shapes)) or 'nothing'} on "
                f"rank {capture.rank}, which can't be told apart into {parts} of "
                f"{list(blocks.fusion.sizes)} channels; its caller is judged as one function through it"
            )
            yield call.module, why


def _slices(call: Call, blocks: Blocks, rank: int) -> list[dict[str, Any]] | None:
    """Return the outputs of each part, or None where nothing is as wide as the parts together."""
    parts: list[dict[str, Any]] = [{} for _ in blocks.fusion.parts]
    is_split = False
    for path, value in call.outputs.items():
        if not isinstance(value, TensorRef):
            for part in parts:
                part[path] = value
            continue
        indices = blocks.parts(rank, value.meta.shape[-1]) if value.meta.shape else None
        if indices is None:
            continue
        is_split = True
        for part, of_part in zip(parts, indices, strict=True):
            part[path] = taken(value, dim=-1, indices=of_part)
    return parts if is_split else None


def _call_parts(call: Call, *, wholes: _Wholes, rank: int) -> list[Call] | None:
    blocks = wholes.get(call.module)
    if blocks is None:
        return None
    outputs = _slices(call, blocks, rank) or [{} for _ in blocks.fusion.parts]
    return [
        replace(call, module=blocks.fusion.part_name(part), outputs=out)
        for part, out in zip(blocks.fusion.parts, outputs, strict=True)
    ]


def _rows(
    parameter: Parameter, blocks: Blocks, leaf: str, rows: Sequence[Sequence[int]]
) -> dict[str, Parameter]:
    """Return the rows of a fused module's parameter by part."""
    return {
        part: taken_rows(parameter, f"{blocks.fusion.part_name(part)}.{leaf}", of_part)
        for part, of_part in zip(blocks.fusion.parts, rows, strict=True)
    }


def _widths(capture: RankCapture, wholes: _Wholes) -> Iterator[tuple[str, int]]:
    """Yield how many channels each fused module returned."""
    for call in capture.calls:
        if call.module in wholes:
            shapes = [value.meta.shape for value in call.outputs.values() if isinstance(value, TensorRef)]
            widths = [shape[-1] for shape in shapes if shape]
            yield from (
                (call.module, width) for width in widths if wholes[call.module].parts(capture.rank, width)
            )


def _consumers(capture: RankCapture, wholes: _Wholes) -> Iterator[str]:
    """Yield the modules that were given a fused module's whole output."""
    outputs = {
        (call.parent, value.meta.checksum)
        for call in capture.calls
        if call.module in wholes
        for value in call.outputs.values()
        if isinstance(value, TensorRef)
    }
    for call in capture.calls:
        given = (value for value in call.inputs.values() if isinstance(value, TensorRef))
        if any((call.parent, value.meta.checksum) in outputs for value in given):
            yield call.module
