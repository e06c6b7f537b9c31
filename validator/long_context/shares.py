"""Which ranks hold the logits of a model: all of the vocabulary each, or parts of it side by side.

Of a pipeline the ranks before the last stage hold none. Tensor-parallel ranks hold copies, or each a part as
`torch.chunk` cuts it; the ranks of a stage are neighbours.

Shape legend: * = any shape, v = a rank's part of the vocabulary V.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

from validator.capturing.formats_hdf5 import element_bytes
from validator.errors import MismatchError

__all__ = ["ALONE", "Holders", "Share", "gathered", "holders"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a rank returned as logits.

    Attributes:
        size: how many of a token.
        digest: of all their bits.
    """

    size: int
    digest: str

    @classmethod
    def of(cls, logits: Iterable[Tensor]) -> Self:
        """Describe `[*, v]` logits, one tensor or more of the same v."""
        found, size = hashlib.blake2b(digest_size=16), 0
        for tensor in logits:
            size = tensor.shape[-1]
            found.update(element_bytes(tensor.detach().cpu().contiguous()))  # type: ignore[arg-type]
        return cls(size=size, digest=found.hexdigest())


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """Whose logits are the model's.

    Attributes:
        ranks: the lowest whose logits, side by side in this order, are of the whole vocabulary.
        copies: how many times ranks hold the logits, these included.
        unequal: other ranks, each with one of these whose copy it should hold, in every bit, and does not.
    """

    ranks: tuple[int, ...]
    copies: int = 1
    unequal: tuple[tuple[int, int], ...] = ()

    @property
    def problem(self) -> str | None:
        """Which ranks hold other logits than those whose copies theirs should be, in words; else None."""
        if not self.unequal:
            return None
        said = ", ".join(
            f"rank {rank} holds other logits than rank {copied}" for rank, copied in self.unequal
        )
        return (
            f"{said} after the same tokens, and copies of one tensor must be equal in every bit: where they "
            "choose another token, ranks go on with texts of their own. Look at what a rank computes for "
            "itself behind the last collective: the final norm, the head, and their weights"
        )


ALONE = Holders(ranks=(0,))
"""Where there is one rank."""


def holders(shares: Mapping[int, Share], *, vocabulary: int) -> Holders:
    """Find the ranks whose logits are the model's, and those whose copies of them differ.

    Args:
        shares: of the ranks that returned something like logits.
        vocabulary: how many logits the reference has.

    Raises:
        MismatchError: neither one rank nor several together have those of the vocabulary.
    """
    whole = [rank for rank in sorted(shares) if shares[rank].size == vocabulary]
    groups: list[tuple[int, ...]] = [(rank,) for rank in whole] or _side_by_side(shares, vocabulary)
    if not groups:
        said = ", ".join(f"{shares[rank].size} logits a token on rank {rank}" for rank in sorted(shares))
        raise MismatchError(
            f"the candidate returns {said}, and the reference {vocabulary}: return those of the whole "
            "vocabulary on one rank at least, or on neighbouring ranks as torch.chunk cuts them, without "
            "what pads it"
        )
    first, *others = groups
    unequal = [
        (rank, copied)
        for group in others
        for rank, copied in zip(group, first, strict=True)
        if shares[rank].digest != shares[copied].digest
    ]
    return Holders(ranks=first, copies=len(groups), unequal=tuple(unequal))


def gathered(row: Tensor | None, ranks: Sequence[int]) -> Tensor:
    """Return `[V]` the logits of one position on every rank, given `[v]` on those that hold them."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        assert row is not None
        return row
    parts: list[Tensor | None] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, row if dist.get_rank() in ranks else None)
    return torch.cat([part for rank in ranks if (part := parts[rank]) is not None])


def _side_by_side(shares: Mapping[int, Share], vocabulary: int) -> list[tuple[int, ...]]:
    """Return groups of neighbouring ranks that hold the parts of a vocabulary.

    Hidden states that an earlier stage returns may be as wide as a part; but its ranks all hold the same.
    """
    groups: list[tuple[int, ...]] = []
    start, end = 0, max(shares, default=-1) + 1
    while start < end:
        neighbours = (tuple(range(start, stop)) for stop in range(start + 2, end + 1))
        group = next((ranks for ranks in neighbours if _are_parts(map(shares.get, ranks), vocabulary)), ())
        groups += [group] if group else []
        start += len(group) or 1
    return [group for group in groups if len({shares[rank].digest for rank in group}) > 1]


def _are_parts(shares: Iterable[Share | None], vocabulary: int) -> bool:
    """Tell whether these are of the sizes that `torch.chunk` gives the parts of a vocabulary."""
    sizes = [None if share is None else share.size for share in shares]
    part = -(-vocabulary // len(sizes))
    return sizes == [min(part, vocabulary - start) for start in range(0, vocabulary, part)]
