"""The part of an edge that is off, where the rest is right: positions, channels, heads, experts, a rank.

A region holds all elements that are outside the band, and fills up: elements that lie anywhere fall into
a small region with a probability that says how much it means.

Shape legend: * = the edge's shape.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from validator.checks.findings import Signature
from validator.checks.signatures.subject import Subject

__all__ = ["Region", "find_region", "region_of", "region_words"]

CHANCE = math.log(1e-4)
"""Logarithm of the probability up to which a region is no accident."""

FULL = 0.9
"""Share of a rank's own indices that are off where the rank is."""

TOKENS = 0.8
"""Share of an expert's tokens that are off where the expert is: of the others its weight is small."""

CLEAN = 0.25
"""Share of a dim that is right beside a range of it which is wrong."""

JUMP = 0.2
"""How large the error is at a range's ends, as a share of its median: less is an error that grows."""

LISTED = 64
"""A set of at most so many indices is a region."""

_UNITS = {"token": "token", "batch": "sequence", "head": "head", "channel": "channel", "expert": "expert"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A part of an edge.

    Attributes:
        unit: `token`, `sequence`, `head`, `channel`, `expert` or `rank`.
        mask: boolean that broadcasts to `[*]`.
        indices: of the units, ascending.
        size: how many units there are.
    """

    unit: str
    mask: Tensor
    indices: tuple[int, ...]
    size: int

    @property
    def is_range(self) -> bool:
        """Whether its units follow each other."""
        return len(self.indices) > 1 and self.indices[-1] - self.indices[0] + 1 == len(self.indices)

    @property
    def words(self) -> str:
        """Name it: `tokens 16:32`, `channel 40`, `experts 6, 7`."""
        if len(self.indices) == 1:
            return f"{self.unit} {self.indices[0]}"
        if self.is_range and self.unit != "expert":
            return f"{self.unit}s {self.indices[0]}:{self.indices[-1] + 1}"
        shown = ", ".join(map(str, self.indices[:8]))
        more = len(self.indices) - 8
        return f"{self.unit}s {shown}" + (f" and {more} more" if more > 0 else "")

    @property
    def parameters(self) -> dict[str, Any]:
        """Figures of a signature: a range as `start` and `stop` with its `edge` and `block`, else a list."""
        if self.unit == "rank":
            return {"rank": self.indices[0]}
        if not self.is_range or self.unit == "expert":
            return {f"{self.unit}s": list(self.indices)}
        start, stop = self.indices[0], self.indices[-1] + 1
        edge = "prefix" if start == 0 else "suffix" if stop == self.size else "inside"
        found: dict[str, Any] = {"start": start, "stop": stop, "edge": edge}
        block = _block(start, 0 if stop == self.size else stop)
        return found | ({"block": block} if block is not None else {})


def region_of(subject: Subject) -> Signature | None:
    """Say in which region everything is that is off.

    Returns:
        `tokens`, `sequences`, `heads`, `channels`, `experts` or `rank` with its parameters, or None.
    """
    region = find_region(subject, subject.outside)
    if region is None:
        return None
    kind = "rank" if region.unit == "rank" else f"{region.unit}s"
    return Signature(kind=kind, parameters=region.parameters)


def region_words(subject: Subject, guilty: Tensor) -> str | None:
    """Name the region that holds the guilty elements, or return None."""
    region = find_region(subject, guilty)
    return None if region is None else region.words


def find_region(subject: Subject, guilty: Tensor) -> Region | None:
    """Return the smallest region that holds all guilty elements and is no accident, or None.

    Args:
        subject: the edge.
        guilty: `[*]` boolean.
    """
    if not bool(guilty.any()):
        return None
    shape = guilty.shape
    found = [region for region in _candidates(subject, guilty) if region is not None]
    return min(found, key=lambda region: int(region.mask.expand(shape).sum()), default=None)


def _candidates(subject: Subject, guilty: Tensor) -> Iterator[Region | None]:
    yield _rank(subject, guilty)
    yield _routed_experts(subject, guilty)
    for dim, meaning in enumerate(subject.dims):
        unit = _UNITS.get(meaning)
        if unit is None:
            continue
        if meaning == "channel" and subject.head_size:
            yield _heads_of_channels(subject, guilty, dim, subject.head_size)
        yield _along(subject, guilty, dim, unit)


def _along(subject: Subject, guilty: Tensor, dim: int, unit: str) -> Region | None:
    """Return the range or the few indices of a dim that hold all guilty elements."""
    size = guilty.shape[dim]
    others = [d for d in range(guilty.dim()) if d != dim]
    hit = guilty.any(dim=others) if others else guilty
    return _region_of_hits(subject, guilty, hit, _spread_along(torch.arange(size), guilty, dim), unit)


def _heads_of_channels(subject: Subject, guilty: Tensor, dim: int, size: int) -> Region | None:
    """Return the heads that hold all guilty elements of a dim of channels, where all of theirs are."""
    channels = guilty.shape[dim]
    if channels % size or channels == size:
        return None
    others = [d for d in range(guilty.dim()) if d != dim]
    hit = guilty.any(dim=others) if others else guilty
    per_head = hit.reshape(-1, size).double().mean(-1)
    if bool(((per_head > 0) & (per_head < FULL)).any()):
        return None
    labels = _spread_along(torch.arange(channels) // size, guilty, dim)
    return _region_of_hits(subject, guilty, per_head > 0, labels, "head")


def _region_of_hits(
    subject: Subject, guilty: Tensor, hit: Tensor, labels: Tensor, unit: str
) -> Region | None:
    """Return the region of the units that were hit, unless it may be chance, or an error that grows.

    Args:
        subject: the edge.
        guilty: `[*]` boolean.
        hit: `[units]` boolean, which hold a guilty element.
        labels: the unit of each element, broadcasts to `[*]`.
        unit: its name.
    """
    indices, size = hit.nonzero()[:, 0], len(hit)
    count = len(indices)
    if count == size:
        return None
    start, stop = int(indices[0]), int(indices[-1]) + 1
    is_range = stop - start == count and count > 1
    if is_range:
        reaches_end = start == 0 or stop == size
        is_small = size - count >= max(2, CLEAN * size) if reaches_end else 2 * count <= size
        choices = math.log(size * size / 2)
    else:
        is_small = 2 * count <= size and count <= LISTED
        choices = _log_choose(size, count)
    chance = choices + int(guilty.sum()) * math.log(count / size)
    if not is_small or chance > CHANCE:
        return None
    if is_range and not _jumps(subject, labels, hit, size):
        return None
    return Region(unit=unit, mask=hit[labels], indices=tuple(indices.tolist()), size=size)


def _jumps(subject: Subject, labels: Tensor, hit: Tensor, size: int) -> bool:
    """Tell whether the error sets in at once at each end of a range that has a right neighbour."""
    ratio = torch.where(subject.usable, (subject.cand - subject.exact).abs() / subject.allowed, 0.0)
    ratio = ratio.nan_to_num(nan=0.0, posinf=0.0)
    flat = labels.expand(ratio.shape).reshape(-1)
    worst = torch.zeros(size, dtype=torch.float64).scatter_reduce_(0, flat, ratio.reshape(-1), "amax")
    indices = hit.nonzero()[:, 0]
    if len(indices) < 4 or not bool(worst[indices].any()):
        return True
    ends = [
        i
        for i, beyond in ((indices[0], indices[0] - 1), (indices[-1], indices[-1] + 1))
        if 0 <= beyond < size
    ]
    return all(bool(worst[i] >= JUMP * worst[indices].median()) for i in ends)


def _rank(subject: Subject, guilty: Tensor) -> Region | None:
    """Return the one rank that holds all guilty elements, where they fill its part."""
    shape = guilty.shape
    masks: dict[int, Tensor] = {}
    for part in subject.parts:
        mask = masks.setdefault(part.rank, torch.zeros(shape, dtype=torch.bool))
        mask[tuple(slice(*box) for box in part.box)] = True
    total = int(guilty.sum())
    holders = [rank for rank, mask in masks.items() if int((mask & guilty).sum()) == total]
    if len(holders) != 1 or len(masks) < 2:
        return None
    (rank,) = holders
    mask = masks[rank]
    share = float(mask.double().mean())
    if share == 1 or math.log(len(masks)) + total * math.log(share) > CHANCE:
        return None
    for dim in range(guilty.dim()):
        others = [d for d in range(guilty.dim()) if d != dim]
        held = mask.any(dim=others) if others else mask
        hit = guilty.any(dim=others) if others else guilty
        if not bool(held.all()) and int(hit.sum()) < FULL * int(held.sum()):
            return None
    return Region(unit="rank", mask=mask, indices=(rank,), size=len(masks))


def _routed_experts(subject: Subject, guilty: Tensor) -> Region | None:
    """Return the few experts that got all guilty tokens, where all that they got are guilty."""
    routing = subject.routing
    if routing is None or guilty.dim() < 2 or guilty.numel() // guilty.shape[-1] != len(routing):
        return None
    rows = guilty.reshape(-1, guilty.shape[-1]).any(-1)
    judged = subject.judged.reshape(-1, guilty.shape[-1]).any(-1)
    experts = torch.unique(routing).tolist()
    got = {expert: (routing == expert).any(-1) & judged for expert in experts}
    left = rows.clone()
    chosen: list[int] = []
    suspects = [e for e in experts if int((got[e] & rows).sum()) >= TOKENS * max(int(got[e].sum()), 1)]
    while bool(left.any()) and suspects:
        best = max(suspects, key=lambda e: int((got[e] & left).sum()))
        if not bool((got[best] & left).any()):
            return None
        suspects.remove(best)
        chosen.append(best)
        left &= ~got[best]
    if bool(left.any()) or 2 * len(chosen) > len(experts):
        return None
    mask = torch.stack([got[e] for e in chosen]).any(0)
    # Of all sets of as many tokens, few are those of some experts.
    sets = _log_choose(int(judged.sum()), int(rows.sum()))
    if _log_choose(len(experts), len(chosen)) - sets > CHANCE:
        return None
    shaped = mask.reshape(*guilty.shape[:-1], 1)
    return Region(unit="expert", mask=shaped, indices=tuple(sorted(chosen)), size=len(experts))


def _spread_along(values: Tensor, like: Tensor, dim: int) -> Tensor:
    return values.reshape([-1 if d == dim else 1 for d in range(like.dim())])


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _block(*edges: Sequence[int] | int) -> int | None:
    """Return the largest power of two that divides where a range begins and ends, or None below 4."""
    whole = math.gcd(*(int(edge) for edge in edges))  # type: ignore[arg-type]
    block = whole & -whole
    return block if block >= 4 else None
