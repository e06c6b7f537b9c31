"""Which layout makes an edge agree that diverges: its values are right, and lie in another order.

Shape legend: * = the edge's shape, N = size of the dim in question, M = elements of one of its slices.
"""

from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from validator.align.traces import LogicalTensor, Part
from validator.checks.findings import Signature
from validator.checks.matrices import exchanged_scales, held, transposed, unordered
from validator.checks.orders import RANKS, Order, families, padded_families, pairs, read_as
from validator.checks.signatures import Subject
from validator.checks.slices import Slices
from validator.numerics.formats import FORMATS, format_of
from validator.numerics.ulp import ulp

__all__ = ["integer_layout", "layout_signature", "parameter_layout"]

Places = npt.NDArray[np.int64]

SAMPLED = 2**20
"""So many elements of an edge are compared, evenly spaced: all of a small one."""
COLUMNS = 32
"""So many elements of a slice refute an order, and tell slices from each other."""
LISTED = 64
"""Orders of up to so many blocks are listed."""
LARGEST = 2**26
"""Parameters of more elements are not looked into."""


def layout_signature(subject: Subject) -> Signature | None:
    """Look for a layout of the candidate's in which it agrees with the oracle.

    Args:
        subject: the edge.

    Returns:
        `layout`, with the `dim`, what the layout `is` and what it `should_be`, and, where the target could
        declare it, the dim's `layout` line. An order that has no name is a permutation (or, where slices
        occur twice, a repetition), given as the `order` of its `blocks`. None where no layout makes all of
        the edge agree (of a large edge, of a sample of it), or so many do that none is evident.
    """
    if int(subject.outside.sum()) == 0 or subject.exact.dim() == 0:
        return None
    for dim, name, flat in _dims(subject):
        found = _of_dim(flat, dim, name)
        if found is not None:
            return found
    return transposed(subject) or unordered(subject) or exchanged_scales(subject)


def integer_layout(
    *, exact: Tensor, cand: Tensor, judged: Tensor, dims: tuple[str, ...], parts: tuple[Part, ...] = ()
) -> Signature | None:
    """Look for a layout in which integers, positions say, are the oracle's.

    Args:
        exact: `[*]` integers.
        cand: `[*]` integers.
        judged: `[*]` boolean.
        dims: meaning of each dim.
        parts: which rank holds which box of the edge.

    Returns:
        As `layout_signature`.
    """
    if exact.dtype is torch.bool or exact.shape != cand.shape:
        return None
    subject = Subject(
        exact=exact.to(torch.float64),
        cand=cand.to(torch.float64),
        allowed=torch.zeros(exact.shape, dtype=torch.float64),
        fmt=FORMATS["float64"],
        judged=judged,
        dims=dims,
        parts=parts,
    )
    return layout_signature(subject)


def parameter_layout(*, reference: Tensor, candidate: LogicalTensor, world_size: int = 1) -> Signature | None:
    """Look for a layout in which a parameter is the reference's.

    Args:
        reference: `[*]` float64, rounded to the candidate's format.
        candidate: `[*]` in its own format.
        world_size: number of ranks.

    Returns:
        As `layout_signature`.
    """
    data = candidate.data
    if not data.is_floating_point() or data.shape != reference.shape or data.numel() > LARGEST:
        return None
    fmt = format_of(data.dtype)
    subject = Subject(
        exact=reference,
        cand=data.to(torch.float64),
        allowed=ulp(reference, fmt).nan_to_num(nan=0.0) / 2,
        fmt=fmt,
        judged=torch.ones(data.shape, dtype=torch.bool),
        dims=candidate.dims,
        parts=candidate.parts,
        world_size=world_size,
    )
    return layout_signature(subject)


def _dims(subject: Subject) -> Iterator[tuple[int, str, Subject]]:
    """Yield each dim that may be laid out otherwise, and the tokens of all sequences as one."""
    meanings = subject.dims or ("",) * subject.exact.dim()
    order = sorted(range(len(meanings)), key=lambda d: (_RANK.get(meanings[d], len(_RANK)), -d))
    for dim in order:
        yield dim, meanings[dim], subject
    if meanings[:2] == ("batch", "token") and min(subject.exact.shape[:2]) > 1:
        yield 0, "token", _flattened(subject)


_RANK = {meaning: i for i, meaning in enumerate(("channel", "head", "expert", "token", "batch"))}


def _flattened(subject: Subject) -> Subject:
    """Return the edge with the tokens of all sequences in one dim."""
    return subject.rearranged(lambda values: values.flatten(0, 1), dims=("token", *subject.dims[2:]))


def _of_dim(subject: Subject, dim: int, meaning: str) -> Signature | None:
    size = subject.exact.shape[dim]
    if size < 2:
        return None
    sampled = _sampled(subject, dim)
    slices = Slices(
        exact=sampled.exact,
        cand=sampled.cand,
        tolerance=sampled.allowed + ulp(sampled.exact, subject.fmt).nan_to_num(nan=0.0) / 2,
        usable=sampled.usable & sampled.allowed.isfinite(),
    )
    part = slices.columns(COLUMNS)
    name = meaning or f"dim {dim}"
    ranks = _rank_counts(subject, dim)
    known = partial(
        families,
        meaning,
        size,
        ranks=ranks,
        head_size=subject.head_size,
        is_repeated=meaning == "head" and len(torch.unique(part.exact, dim=0)) < size,
    )
    permuted = pairs(known) if part.may_be_permuted() else iter(())
    for actual, expected in chain(permuted, pairs(partial(padded_families, size, ranks))):
        order = read_as(actual, expected)
        left = _residual(sampled, order) if slices.agrees(order, part) else None
        if left is not None:
            return _named(actual, expected, name, left)
    matched = part.matched()
    if matched is None or not slices.agrees(matched, part):
        return None
    left = _residual(sampled, matched)
    return None if left is None else _unnamed(matched, name, left)


def _named(actual: Order, expected: Order, name: str, left: float) -> Signature:
    parameters = {"dim": name, "is": actual.name, "should_be": expected.name}
    if actual.line and bool((expected.places == np.arange(len(expected.places))).all()):
        parameters["layout"] = actual.line
    return Signature(kind="layout", parameters=parameters, residual_ulp=left)


def _unnamed(order: Places, name: str, left: float) -> Signature:
    blocks = _blocks(order)
    is_permutation = len(set(order.tolist())) == len(order)
    parameters: dict[str, Any] = {
        "dim": name,
        "is": "a permutation" if is_permutation else "a repetition",
        "should_be": "in order",
        "blocks": len(blocks),
    }
    if len(blocks) <= LISTED:
        parameters["order"] = blocks
        if is_permutation:
            parameters["layout"] = "x:" + ",".join(map(str, blocks))
    return Signature(kind="layout", parameters=parameters, residual_ulp=left)


def _blocks(order: Places) -> list[int]:
    """Return the order of the largest equal blocks that stay together."""
    size = len(order)
    for count in range(2, size):
        if size % count:
            continue
        width = size // count
        rows = order.reshape(count, width)
        if bool((rows == rows[:, :1] + np.arange(width)).all()) and bool((rows[:, 0] % width == 0).all()):
            return [int(row) // width for row in rows[:, 0]]
    return [int(row) for row in order]


def _rank_counts(subject: Subject, dim: int) -> tuple[int, ...]:
    """Return how many ranks hold parts of a dim, or, where one alone does, the usual numbers."""
    cuts = {part.box[dim] for part in subject.parts if len(part.box) > dim}
    if len(cuts) > 1:
        return (len(cuts),)
    return tuple(dict.fromkeys([*([subject.world_size] if subject.world_size > 1 else []), *RANKS]))


def _sampled(subject: Subject, dim: int) -> Subject:
    """Return `[N, M]` elements that are spread evenly over the slices of a dim."""
    shape = subject.exact.shape
    rows = subject.exact.numel() // shape[dim]
    count = min(rows, max(COLUMNS, SAMPLED // shape[dim]))
    others = [n for d, n in enumerate(shape) if d != dim] or [1]
    columns = np.unravel_index(np.linspace(0, rows - 1, count).astype(np.int64), others)
    places = [torch.from_numpy(column)[None, :] for column in columns] if len(shape) > 1 else []
    places.insert(dim, torch.arange(shape[dim])[:, None])
    return subject.rearranged(lambda values: values[tuple(places)])


def _residual(sampled: Subject, order: Places) -> float | None:
    """Return what stays of `[N, M]` elements in an order, in ulp, or None where they do not agree."""
    places, known = torch.from_numpy(np.maximum(order, 0)), torch.from_numpy(order >= 0)[:, None]
    known = known & sampled.usable[places]
    return held(sampled, sampled.exact[places], sampled.allowed[places], known)
