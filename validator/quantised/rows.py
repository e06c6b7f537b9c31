"""Rows of quantised weights that are known by hashes: of their codes, and of the scales that belong to them.

A row's hash here is made of the hash of its codes and of those of the rows of its scales and zero points. So
rows of shards and of fused weights have the hashes that they have in the checkpoint, and a wrong scale shows
as a wrong code does.

Shape legend: R = rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from validator.capturing.digest import checksum, row_hashes
from validator.capturing.formats_hdf5 import element_bytes
from validator.errors import CaptureError
from validator.quantised.blocks import block_size, is_ambiguous
from validator.quantised.formats import quantised_weights

__all__ = ["PartRows", "coded_rows", "differing_coded_rows", "is_coded", "rows_of", "unknown_rows"]

_CODED, _UNKNOWN = "coded", "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRows:
    """A part of a quantised weight: torch's name of its dtype, its shape, and the hashes of its rows."""

    dtype: str
    shape: tuple[int, ...]
    hashes: tuple[str, ...]


def rows_of(part: Tensor) -> PartRows:
    """Return what is kept of a part: `[rows, *]`, or scales `[R]` of one row each, or one scale for all."""
    rows = part.reshape(-1, 1) if part.dim() < 2 else part
    return PartRows(
        dtype=str(part.dtype).removeprefix("torch."), shape=tuple(part.shape), hashes=row_hashes(rows)[0]
    )


def coded_rows(kind: str, parts: Mapping[str, PartRows]) -> tuple[str, ...] | None:
    """Return the hash of each row of a weight, `[R]`; None where the rows of its scales don't line up.

    Args:
        kind: of a `QuantisedWeight`.
        parts: its parts by what they are, without its shape.
    """
    codes = parts["codes"]
    others = [
        (parts[name].hashes, _shared_rows(kind, codes, parts[name]))
        for name in sorted(parts)
        if name != "codes"
    ]
    if any(not shared for _, shared in others):
        return None
    how = ",".join(f"{name} in {parts[name].dtype}" for name in sorted(parts))
    rows = []
    for i, own in enumerate(codes.hashes):
        text = "".join([own, *(hashes[i // shared] for hashes, shared in others)])
        rows.append(checksum(element_bytes(torch.frombuffer(bytearray(text, "ascii"), dtype=torch.uint8))))
    return tuple(f"{_CODED}:{kind}:{how}:{row}" for row in rows)


def _shared_rows(kind: str, codes: PartRows, other: PartRows) -> int:
    """Return how many rows of codes have a row of scales in common, or 0 where that is not known."""
    if kind == "fp8" and len(codes.shape) == 2:
        if is_ambiguous(other.shape, codes.shape):
            return 0
        block = block_size(other.shape, codes.shape)
        if block is not None:
            return block[0]
    count = len(other.hashes)
    return len(codes.hashes) // count if count and not len(codes.hashes) % count else 0


def unknown_rows(reason: str, count: int) -> tuple[str, ...]:
    """Return what stands for the rows of a weight that nothing can be said of, and why."""
    return (f"{_UNKNOWN}:{reason}",) * max(count, 1)


def is_coded(hashes: Sequence[str]) -> bool:
    """Tell whether hashes are those of codes and scales, or stand for codes of which nothing is known."""
    return bool(hashes) and hashes[0].partition(":")[0] in (_CODED, _UNKNOWN)


def differing_coded_rows(parts: Mapping[str, Tensor], hashes: Sequence[str]) -> list[int]:
    """Return which rows have other codes, scales or zero points than the checkpoint's.

    Args:
        parts: the tensors that the reference's weight is made of in its checkpoint, by their names in the
            module; empty where these are not known.
        hashes: `[R]` of the candidate's rows.

    Raises:
        CaptureError: they can't be compared.
    """
    for row in hashes:
        if row.startswith(_UNKNOWN):
            raise CaptureError(row.partition(":")[2])
    _, kind, how, _ = hashes[0].split(":")
    advice = "Capture the candidate with a higher limit for parameters to get their values"
    dtypes = {name: str(part.dtype).removeprefix("torch.") for name, part in parts.items()}
    found = [weight for weight in quantised_weights(dtypes) if weight.kind != "unknown"]
    if len(found) != 1:
        raise CaptureError(
            "only hashes of its codes and scales are stored, and the reference's weight is not one that is "
            f"streamed from a quantised checkpoint. {advice}, or check against validator.streamed(CHECKPOINT)"
        )
    own = {part: parts[name] for part, name in found[0].parts.items() if part != "shape"}
    wanted = dict(item.split(" in ") for item in how.split(","))
    # A scale that is held in a wider format is the same scale.
    scale = own["scale"].to(getattr(torch, wanted["scale"])) if "scale" in wanted else own["scale"]
    made = coded_rows(found[0].kind, {name: rows_of(part) for name, part in (own | {"scale": scale}).items()})
    if made is None or len(made) != len(hashes) or made[0].rpartition(":")[0] != hashes[0].rpartition(":")[0]:
        raise CaptureError(
            f"only hashes of its codes and scales are stored ({kind}: {how}), and the checkpoint holds them "
            f"as {found[0].kind}: {', '.join(f'{name} in {dtypes[found[0].parts[name]]}' for name in own)}. "
            f"{advice}"
        )
    return [i for i, (ours, theirs) in enumerate(zip(made, hashes, strict=True)) if ours != theirs]
