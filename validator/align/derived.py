"""Tensors made of stored ones: slices, concatenations, stacks and sums, made when they are read.

Nothing is read to describe a derived tensor. Its checksum is that of its own bits, computed when first
asked, so that copies on several ranks are told apart as stored ones are.

Shape legend: * = any shape.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from validator.capturing.digest import checksum
from validator.capturing.formats_hdf5 import element_bytes
from validator.capturing.levels import NOTHING
from validator.capturing.records import Parameter, TensorMeta, TensorRef

__all__ = [
    "concatenated",
    "derived",
    "joined_parameter",
    "selected_parameter",
    "sliced",
    "sliced_parameter",
    "stacked",
    "stacked_parameter",
    "summed",
    "taken",
    "taken_rows",
    "transposed",
    "transposed_parameter",
]


def derived(
    shape: Sequence[int],
    dtype: str,
    read: Callable[[], torch.Tensor],
    sources: Sequence[TensorRef] = (),
) -> TensorRef:
    """Return a tensor that `read` makes when asked, `shape` in torch's `dtype` without `torch.`.

    What is known of it is what is known of its sources. Where that are statistics alone, its checksum is made
    of theirs, which are equal for copies on several ranks.
    """
    shares = {source.meta.one_in for source in sources} or {1}
    one_in = NOTHING if NOTHING in shares else max(shares)
    digest = partial(_checksum, read)
    if one_in == NOTHING:
        digest = partial(_hash_of_sources, tuple(sources), f"{tuple(shape)} {_how(read)}")
    return TensorRef(
        meta=_DerivedMeta(dtype=dtype, shape=tuple(shape), digest=digest, one_in=one_in), read=read
    )


def sliced(ref: TensorRef, *, dim: int, start: int, stop: int) -> TensorRef:
    """Return `ref[..., start:stop, ...]` along `dim`, which may count from the end."""
    meta = ref.meta
    dim %= len(meta.shape)
    shape = (*meta.shape[:dim], stop - start, *meta.shape[dim + 1 :])
    return derived(shape, meta.dtype, partial(_slice, ref, dim, start, stop), [ref])


def taken(ref: TensorRef, *, dim: int, indices: Sequence[int]) -> TensorRef:
    """Return the elements at these indices along `dim`, which may count from the end."""
    if list(indices) == list(range(indices[0], indices[0] + len(indices)) if indices else ()):
        start = indices[0] if indices else 0
        return sliced(ref, dim=dim, start=start, stop=start + len(indices))
    shape = list(ref.meta.shape)
    shape[dim] = len(indices)
    return derived(shape, ref.meta.dtype, partial(_take, ref, dim, tuple(indices)), [ref])


def concatenated(refs: Sequence[TensorRef], *, dim: int) -> TensorRef:
    """Return tensors of one dtype, alike but for `dim`, one after the other."""
    first = refs[0].meta
    dim %= len(first.shape)
    size = sum(ref.meta.shape[dim] for ref in refs)
    shape = (*first.shape[:dim], size, *first.shape[dim + 1 :])
    return derived(shape, first.dtype, partial(_concatenate, tuple(refs), dim), refs)


def stacked(refs: Sequence[TensorRef]) -> TensorRef:
    """Return `[len(refs), *]` of tensors `[*]` of one shape and dtype."""
    first = refs[0].meta
    return derived((len(refs), *first.shape), first.dtype, partial(_stack, tuple(refs)), refs)


def transposed(ref: TensorRef) -> TensorRef:
    """Return `[columns, rows]` of `[rows, columns]`."""
    rows, columns = ref.meta.shape
    return derived((columns, rows), ref.meta.dtype, partial(_transpose, ref), [ref])


def summed(first: TensorRef, second: TensorRef) -> TensorRef:
    """Return the sum of two `[*]` as torch makes it: in float32 or wider, rounded once to be stored."""
    dtype = torch.promote_types(getattr(torch, first.meta.dtype), getattr(torch, second.meta.dtype))
    name = str(dtype).removeprefix("torch.")
    return derived(first.meta.shape, name, partial(_add, first, second), [first, second])


def sliced_parameter(parameter: Parameter, name: str, *, dim: int, start: int, stop: int) -> Parameter:
    """Return a slice of a parameter under another name.

    Where hashes of rows stand in for its values, those of the slice's rows do; none do along another dim.
    """
    ref = sliced(parameter.ref, dim=dim, start=start, stop=stop)
    hashes = parameter.row_hashes if dim == 0 and len(parameter.ref.meta.shape) > 1 else None
    return _parameter(name, ref, [parameter], None if hashes is None else hashes[start:stop])


def taken_rows(parameter: Parameter, name: str, indices: Sequence[int]) -> Parameter:
    """Return rows of a parameter under another name; see `sliced_parameter`."""
    ref = taken(parameter.ref, dim=0, indices=indices)
    hashes = parameter.row_hashes if len(parameter.ref.meta.shape) > 1 else None
    return _parameter(name, ref, [parameter], None if hashes is None else tuple(hashes[i] for i in indices))


def joined_parameter(parameters: Sequence[Parameter], name: str, *, dim: int = 0) -> Parameter:
    """Return parameters one after the other, under another name; see `sliced_parameter`."""
    ref = concatenated([parameter.ref for parameter in parameters], dim=dim)
    rows = [parameter.row_hashes for parameter in parameters if dim == 0 and len(ref.meta.shape) > 1]
    known = [hashes for hashes in rows if hashes is not None]
    is_known = len(known) == len(parameters)
    return _parameter(
        name, ref, parameters, tuple(x for hashes in known for x in hashes) if is_known else None
    )


def stacked_parameter(parameters: Sequence[Parameter], name: str) -> Parameter:
    """Return parameters of one shape as one with a new first dim, under another name."""
    return _parameter(name, stacked([parameter.ref for parameter in parameters]), parameters, None)


def selected_parameter(parameter: Parameter, name: str, index: int) -> Parameter:
    """Return `parameter[index]` under another name."""
    meta = parameter.ref.meta
    ref = derived(meta.shape[1:], meta.dtype, partial(_select, parameter.ref, index))
    return _parameter(name, ref, [parameter], None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _DerivedMeta(TensorMeta):
    """Describes a derived tensor; the slot of its checksum stays empty until somebody asks."""

    checksum: str = field(init=False)
    digest: Callable[[], str] = field(repr=False, compare=False)

    def __getattr__(self, name: str) -> Any:
        if name != "checksum":
            raise AttributeError(name)
        value = self.digest()
        object.__setattr__(self, name, value)
        return value


def transposed_parameter(parameter: Parameter) -> Parameter:
    """Return a matrix whose rows are the columns of another one."""
    return _parameter(parameter.name, transposed(parameter.ref), [parameter], None)


def _parameter(
    name: str, ref: TensorRef, sources: Sequence[Parameter], hashes: tuple[str, ...] | None
) -> Parameter:
    """Return a parameter made of others; where their values are not stored it gets another checksum.

    That is made of its rows' hashes, or else of the sources' checksums: equal for copies on several ranks.
    """
    if any(source.row_hashes is not None for source in sources):
        origins = hashes or tuple(source.ref.meta.checksum for source in sources)
        digest = partial(_hash_of_hashes, origins)
        meta = _DerivedMeta(dtype=ref.meta.dtype, shape=ref.meta.shape, digest=digest)
        ref = TensorRef(meta=meta, read=ref.read)
    two = any(source.has_two_scales for source in sources)
    return Parameter(name=name, kind=sources[0].kind, ref=ref, row_hashes=hashes, has_two_scales=two)


def _hash_of_sources(sources: Sequence[TensorRef], how: str) -> str:
    return _hash_of_hashes((how, *(source.meta.checksum for source in sources)))


def _how(read: Callable[[], torch.Tensor]) -> str:
    """Return what a function does to its sources, the sources apart."""
    if not isinstance(read, partial):
        return ""
    plain = [x for x in read.args if isinstance(x, int) or (isinstance(x, tuple) and _are_numbers(x))]
    return f"{read.func.__name__} {plain}"


def _are_numbers(values: Sequence[object]) -> bool:
    return all(isinstance(value, int) for value in values)


def _checksum(read: Callable[[], torch.Tensor]) -> str:
    return checksum(element_bytes(read()))


def _hash_of_hashes(hashes: Sequence[str]) -> str:
    return checksum(element_bytes(torch.frombuffer(bytearray("".join(hashes), "ascii"), dtype=torch.uint8)))


def _slice(ref: TensorRef, dim: int, start: int, stop: int) -> torch.Tensor:
    # A copy: a view would keep the whole tensor in memory.
    return ref.read().narrow(dim, start, stop - start).clone(memory_format=torch.contiguous_format)


def _take(ref: TensorRef, dim: int, indices: tuple[int, ...]) -> torch.Tensor:
    return ref.read().index_select(dim, torch.tensor(indices))


def _transpose(ref: TensorRef) -> torch.Tensor:
    return ref.read().T.contiguous()


def _select(ref: TensorRef, index: int) -> torch.Tensor:
    return ref.read()[index].clone(memory_format=torch.contiguous_format)


def _concatenate(refs: Sequence[TensorRef], dim: int) -> torch.Tensor:
    return torch.cat([ref.read() for ref in refs], dim)


def _stack(refs: Sequence[TensorRef]) -> torch.Tensor:
    return torch.stack([ref.read() for ref in refs])


def _add(first: TensorRef, second: TensorRef) -> torch.Tensor:
    return first.read() + second.read()
