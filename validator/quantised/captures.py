"""A candidate's capture with the values of its quantised weights in the place of their codes and scales.

From here on a quantised port is one like any other: its weights are put together from shards, split where
they are fused, and must equal the reference's, which its own loader dequantised.

Shape legend: N = rows, K = columns, G = groups of columns, E = experts.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import NoReturn

import torch

from validator.capturing.records import Parameter, Placement, RankCapture, TensorMeta, TensorRef
from validator.errors import CaptureError
from validator.quantised.formats import (
    QuantisedWeight,
    obstacle,
    quantised_weights,
    values_shape,
)
from validator.quantised.packing import PackedCodes, column_parts
from validator.quantised.reading import read_values
from validator.quantised.rows import PartRows, coded_rows, rows_of, unknown_rows

__all__ = ["with_values"]

_UNDECIDED = "the ranks' parts may have codes of 4 bits, or codes of 8 bits of some of the columns"

_MXFP4_DIMS = (0, 2, 1)
"""Where the dims `[E, N, G]` of MXFP4's blocks are in the values `[E, K, N]`."""


def with_values(captures: Sequence[RankCapture], *, weights: str | None = None) -> tuple[RankCapture, ...]:
    """Replace the parts of each quantised weight by its values.

    Args:
        captures: every rank's.
        weights: format in which the values enter products; None for the one that most of the rank's other
            parameters have, which kernels for weights in narrow integers dequantise to.

    Returns:
        The captures, each itself where nothing is quantised. Where only hashes of some part are stored the
        weight has hashes as `rows.coded_rows` makes them. Reading a weight that can't be dequantised raises a
        `CaptureError` that says why.
    """
    found = [tuple(_found(capture)) for capture in captures]
    split = column_parts(_packed(captures, found))
    return tuple(
        _with_values(capture, own, split, weights) if own else capture
        for capture, own in zip(captures, found, strict=True)
    )


def _with_values(
    capture: RankCapture, own: Sequence[QuantisedWeight], split: Mapping[str, int], weights: str | None
) -> RankCapture:
    found = {weight.parts["codes"]: weight for weight in own}
    parts = {name for weight in found.values() if weight.kind != "unknown" for name in weight.parts.values()}
    parts |= set(found)
    dtype = weights or _usual(p for name, p in capture.parameters.items() if name not in parts)
    parameters: dict[str, Parameter] = {}
    for name, parameter in capture.parameters.items():
        if name in found:
            made = _made(found[name], capture.parameters, split.get(found[name].name, 1), dtype)
            parameters[made.name] = made
        elif name not in parts:
            parameters[name] = parameter
    return replace(capture, parameters=parameters)


def _found(capture: RankCapture) -> Iterator[QuantisedWeight]:
    """Yield the quantised weights, by the names of parameters."""
    modules: dict[str, dict[str, str]] = {}
    for name, parameter in capture.parameters.items():
        module, _, leaf = name.rpartition(".")
        modules.setdefault(module, {})[leaf] = parameter.ref.meta.dtype
    for module, dtypes in modules.items():
        prefix = f"{module}." if module else ""
        for weight in quantised_weights(dtypes):
            parts = {part: prefix + name for part, name in weight.parts.items()}
            yield replace(weight, name=prefix + weight.name, parts=parts)


def _usual(parameters: Iterator[Parameter]) -> str:
    """Return the floating dtype that most of some parameters have."""
    floating = Counter(
        p.ref.meta.dtype
        for p in parameters
        if p.kind == "parameter" and p.ref.meta.dtype in ("float32", "float16", "bfloat16")
    )
    return floating.most_common(1)[0][0] if floating else "float32"


def _packed(
    captures: Sequence[RankCapture], found: Sequence[Sequence[QuantisedWeight]]
) -> Mapping[str, PackedCodes]:
    """Return the packed codes that no DTensor says the place of, by their weight's name."""
    metas: dict[str, list[TensorMeta]] = {}
    columns: dict[str, int] = {}
    for capture, weights in zip(captures, found, strict=True):
        for weight in weights:
            if weight.kind == "packed":
                meta = capture.parameters[weight.parts["codes"]].ref.meta
                shape = capture.parameters[weight.parts["shape"]].ref.read()
                if meta.global_shape is None and len(shape) == len(meta.shape) == 2:
                    metas.setdefault(weight.name, []).append(meta)
                    columns[weight.name] = int(shape[1])
    return {
        name: PackedCodes(
            words=held[0].shape[1], columns=columns[name], checksums=tuple(meta.checksum for meta in held)
        )
        for name, held in metas.items()
    }


def _made(weight: QuantisedWeight, parameters: Mapping[str, Parameter], split: int, dtype: str) -> Parameter:
    """Return a weight's values as a parameter, or the hashes of its rows, or why there are neither.

    Args:
        weight: its parts by the names of parameters.
        parameters: of its rank.
        split: as `column_parts` has it.
        dtype: of the values.
    """
    sources = _with_fitting_scales(weight, parameters)
    codes = sources["codes"].ref.meta
    shapes: dict[str, Sequence[int]] = {part: p.ref.meta.shape for part, p in sources.items()}
    if "shape" in sources:
        shapes["shape"] = _local_shape([int(n) for n in sources["shape"].ref.read()], codes, split)
    shape = values_shape(weight.kind, shapes)
    why = _UNDECIDED if not split else obstacle(weight.kind, shapes, weight.parts) or _unlike(sources)
    digest = hashlib.blake2b(":".join(p.ref.meta.checksum for p in sources.values()).encode(), digest_size=16)
    meta = TensorMeta(
        dtype=dtype,
        shape=shape,
        checksum=digest.hexdigest(),
        mesh=codes.mesh,
        placements=_placements(weight.kind, codes),
        global_shape=_global_shape(weight.kind, shape, codes),
    )
    hashes: tuple[str, ...] | None = None
    if not why and any(p.row_hashes is not None for p in sources.values()):
        rows = {part: _part_rows(p) for part, p in sources.items() if part != "shape"}
        hashes = coded_rows(weight.kind, {part: known for part, known in rows.items() if known is not None})
        if "other_scale" in sources:
            why = "only hashes of its codes are stored, which don't tell by which of two scales they are read"
        elif hashes is None or None in rows.values() or len(hashes) != shape[0]:
            why = "only hashes of its codes are stored, and those of its scales don't belong to rows"
        read: Callable[[], torch.Tensor] = partial(
            _raise, f"{weight.name}: only hashes of its codes and scales are stored"
        )
    else:
        tensors = {part: p.ref for part, p in sources.items()}
        own_shape = tuple(shapes.get("shape", ()))
        read = partial(read_values, weight.kind, tensors, own_shape, getattr(torch, dtype))
    if why:
        why = f"the format of {weight.name} is not known: {why}" if not hashes else f"{weight.name}: {why}"
        read, hashes = partial(_raise, why), unknown_rows(why, shape[0] if shape else 1)
    return Parameter(
        name=weight.name,
        kind="quantised",
        ref=TensorRef(meta=meta, read=read),
        row_hashes=hashes,
        has_two_scales="other_scale" in sources,
    )


def _with_fitting_scales(
    weight: QuantisedWeight, parameters: Mapping[str, Parameter]
) -> dict[str, Parameter]:
    """Return a weight's parts, of two scales only the one that fits the codes where the other does not."""
    sources = {part: parameters[name] for part, name in weight.parts.items()}
    scales = [part for part in ("scale", "other_scale") if part in sources]
    shapes = {part: p.ref.meta.shape for part, p in sources.items()}
    fitting = [part for part in scales if not obstacle(weight.kind, shapes | {"scale": shapes[part]})]
    if len(scales) < 2 or len(fitting) != 1:
        return sources
    own = {part: p for part, p in sources.items() if part not in scales}
    return own | {"scale": sources[fitting[0]]}


def _unlike(sources: Mapping[str, Parameter]) -> str:
    """Say why parts that lie on several ranks can't be put together rank by rank; nothing where they can."""
    codes = sources["codes"].ref.meta
    if codes.placements is None or codes.global_shape == codes.shape:
        return ""
    for name in ("scale", "zero_point"):
        meta = sources[name].ref.meta if name in sources else None
        if meta is not None and prod(meta.shape) > 1 and meta.placements != codes.placements:
            return f"{sources[name].name} is not placed on the ranks as {sources['codes'].name} is"
    return ""


def _local_shape(whole: list[int], codes: TensorMeta, split: int) -> list[int]:
    """Return `[N, K]` of this rank's part of a weight whose parts all say how large the whole is."""
    if len(whole) != len(codes.shape):
        return whole
    if codes.global_shape is not None:
        sizes = zip(whole, codes.shape, codes.global_shape, strict=True)
        return [size * local // max(full, 1) for size, local, full in sizes]
    return [codes.shape[0], *(size // max(split, 1) for size in whole[1:])]


def _placements(kind: str, codes: TensorMeta) -> tuple[Placement, ...] | None:
    if kind != "mxfp4" or codes.placements is None:
        return codes.placements
    return tuple(
        replace(p, dim=_MXFP4_DIMS[p.dim]) if p.dim is not None and p.dim < len(_MXFP4_DIMS) else p
        for p in codes.placements
    )


def _global_shape(kind: str, shape: tuple[int, ...], codes: TensorMeta) -> tuple[int, ...] | None:
    """Return the shape of the whole weight: what the codes of all ranks have more than this rank's."""
    if codes.global_shape is None:
        return None
    ratios = [(whole, max(own, 1)) for whole, own in zip(codes.global_shape, codes.shape, strict=True)]
    if kind == "mxfp4":
        ratios = [ratios[dim] for dim in _MXFP4_DIMS]
    return tuple(size * whole // own for size, (whole, own) in zip(shape, ratios, strict=True))


def _part_rows(part: Parameter) -> PartRows | None:
    """Return the hashes of a part's rows; None where it is hashed as a whole but has a scale for each row."""
    if part.row_hashes is None:
        return rows_of(part.ref.read())
    if len(part.ref.meta.shape) < 2 and prod(part.ref.meta.shape) > 1:
        return None
    meta = part.ref.meta
    return PartRows(dtype=meta.dtype, shape=meta.shape, hashes=part.row_hashes)


def _raise(why: str) -> NoReturn:
    raise CaptureError(why)
