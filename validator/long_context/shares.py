"""Which ranks hold the logits of a model: all of the vocabulary each, or parts of it side by side.

Of a pipeline the ranks before the last stage hold none. Tensor-parallel ranks hold copies, or each a part: as
`torch.chunk` cuts it, or equal ones of a vocabulary that is padded, whose tail is left out. The ranks of a
stage are neighbours.

Copies must be equal in every bit, as `checks.replicas` demands of each replica: the ranks run one program on
one kind of device on the same tokens, and nothing they hold says how far apart rounding may take them. Where
it takes them apart, a near tie sends the ranks on with texts of their own.

Shape legend: * = any shape, v = a rank's part of the vocabulary V.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from validator.capturing.formats_hdf5 import element_bytes
from validator.errors import MismatchError
from validator.long_context.across_ranks import from_all_ranks, is_alone

__all__ = ["ALONE", "Holders", "Share", "gathered", "holders", "modules_of"]

_PADDING = 128
"""How many logits each of equal parts may have too many: Megatron pads each to a multiple of this, vLLM and
SGLang all together to one of 64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a rank returned as logits.

    Attributes:
        size: how many of a token.
        digest: of all their bits.
        unpadded: of the bits of those that are no padding where this is the last of equal parts.
        modules: what the rank computes with, as `modules_of` tells it.
    """

    size: int
    digest: str
    unpadded: str
    modules: str = ""

    @classmethod
    def of(cls, logits: Iterable[Tensor], *, vocabulary: int, modules: str = "") -> Self:
        """Describe `[*, v]` logits, one tensor or more of the same v."""
        found, unpadded = (hashlib.blake2b(digest_size=16) for _ in range(2))
        size = 0
        for tensor in logits:
            size = tensor.shape[-1]
            found.update(_bits(tensor))
            unpadded.update(_bits(tensor[..., : size - _padding(size, vocabulary)]))
        return cls(size=size, digest=found.hexdigest(), unpadded=unpadded.hexdigest(), modules=modules)


def modules_of(model: nn.Module) -> str:
    """Return a digest of the names of modules that have parameters or buffers, without their numbers.

    Stages of a pipeline have others: the embedding is in the first, the head in the last. Ranks of one stage
    have the same, but for the numbers of experts.
    """
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    names = {re.sub(r"\d+", "*", name.rpartition(".")[0]) for name, _ in named}
    return hashlib.blake2b("\n".join(sorted(names)).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """Whose logits are the model's.

    Attributes:
        ranks: the lowest whose logits, side by side in this order, are of the whole vocabulary.
        copies: how many times ranks hold the logits, these included.
        unequal: other ranks, each with one of these whose copy it should hold, in every bit, and does not.
        padding: how many logits the last of the ranks has too many.
    """

    ranks: tuple[int, ...]
    copies: int = 1
    unequal: tuple[tuple[int, int], ...] = ()
    padding: int = 0

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

    @property
    def note(self) -> str | None:
        """What was left out of the logits, in words; None for nothing."""
        if not self.padding:
            return None
        return (
            f"the last {self.padding} logits of rank {self.ranks[-1]} pad the vocabulary and are not judged"
        )


ALONE = Holders(ranks=(0,))
"""Where there is one rank."""


def holders(shares: Mapping[int, Share], *, vocabulary: int) -> Holders:
    """Find the ranks whose logits are the model's, and those whose copies of them differ.

    Args:
        shares: of the ranks that returned something like logits.
        vocabulary: how many logits the reference has.

    Raises:
        MismatchError: neither one rank nor several together have those of the vocabulary; or stages return as
            many numbers each, and which of them are logits can't be told.
    """
    whole = [(rank,) for rank in sorted(shares) if shares[rank].size == vocabulary]
    parts = _side_by_side(shares, vocabulary)
    groups: list[tuple[int, ...]] = [*whole] or parts
    if not groups:
        said = ", ".join(f"{shares[rank].size} logits a token on rank {rank}" for rank in sorted(shares))
        raise MismatchError(
            f"the candidate returns {said}, and the reference {vocabulary}: return those of the whole "
            "vocabulary on one rank at least, or on neighbouring ranks, as torch.chunk cuts them or in equal "
            "parts, padded at the end"
        )
    first, *others = groups
    behind = [group for group in parts if whole and group > whole[-1]]
    padding = sum(shares[rank].size for rank in first) - vocabulary
    unequal = [
        (rank, copied)
        for group in others
        for rank, copied in zip(group, first, strict=True)
        if _differ(shares[rank], shares[copied], is_cut=padding > 0 and copied == first[-1])
    ]
    for rank in (*(rank for rank, _ in unequal), *(group[0] for group in behind)):
        _require_same_modules(shares, first[0], rank)
    return Holders(ranks=first, copies=len(groups), unequal=tuple(unequal), padding=padding)


def gathered(row: Tensor | None, ranks: Sequence[int], vocabulary: int | None) -> Tensor:
    """Return `[V]` the logits of one position on every rank, given `[v]` on those that hold them."""
    if is_alone():
        assert row is not None
        return row
    parts = from_all_ranks(row if dist.get_rank() in ranks else None)
    return torch.cat([part for rank in ranks if (part := parts[rank]) is not None])[:vocabulary]


def _require_same_modules(shares: Mapping[int, Share], first: int, rank: int) -> None:
    """Refuse ranks that are no copies of each other, and both might have the logits."""
    if shares[first].modules == shares[rank].modules:
        return
    raise MismatchError(
        f"rank {first} returns {shares[first].size} numbers a token and rank {rank} {shares[rank].size}, "
        "other ones, from other modules, and each may be logits: a stage's hidden states may be as wide as "
        "they are. Return logits on the ranks alone that have the head, and None in their place on the others"
    )


def _side_by_side(shares: Mapping[int, Share], vocabulary: int) -> list[tuple[int, ...]]:
    """Return groups of neighbouring ranks that hold the parts of a vocabulary.

    Hidden states that an earlier stage returns may be as wide as a part; but its ranks all hold the same.
    """
    groups: list[tuple[int, ...]] = []
    start, end = 0, max(shares, default=-1) + 1
    while start < end:
        neighbours = (tuple(range(start, stop)) for stop in range(start + 2, end + 1))
        group = next(
            (ranks for ranks in neighbours if _are_parts([shares.get(rank) for rank in ranks], vocabulary)),
            (),
        )
        groups += [group] if group else []
        start += len(group) or 1
    return [group for group in groups if len({shares[rank].digest for rank in group}) > 1]


def _are_parts(shares: Sequence[Share | None], vocabulary: int) -> bool:
    """Tell whether these are of the sizes that parts of a vocabulary have."""
    held = [share for share in shares if share is not None]
    if len(held) < len(shares):
        return False
    sizes = [share.size for share in held]
    part = -(-vocabulary // len(sizes))
    if sizes == [min(part, vocabulary - start) for start in range(0, vocabulary, part)]:
        return True
    (size, *others), modules = {*sizes}, {share.modules for share in held}
    is_padded = len(sizes) * size == vocabulary + _padding(size, vocabulary) and size < part + _PADDING
    return is_padded and not others and len(modules) == 1


def _padding(size: int, vocabulary: int) -> int:
    """Return how many logits the last of equal parts of this size has too many."""
    return -vocabulary % size if size else 0


def _differ(share: Share, copied: Share, *, is_cut: bool) -> bool:
    return share.unpadded != copied.unpadded if is_cut else share.digest != copied.digest


def _bits(logits: Tensor) -> memoryview:
    return memoryview(element_bytes(logits.detach().cpu().contiguous()))  # type: ignore[arg-type]
