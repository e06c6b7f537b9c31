"""How many bits the codes of packed weights have, and over how many ranks their columns are split.

A packed weight says how large it is as a whole. Of a rank's part of it, half as many words are codes of half
as many bits, or codes of half of the columns. A rank's tensors alone don't tell; those of all ranks do.

Shape legend: W = words of a row on one rank, K = columns of the whole weight.
"""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["BITS", "WORD_BITS", "PackedCodes", "column_parts"]

BITS = (4, 8)
"""How many bits a code may have."""

WORD_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedCodes:
    """The codes of one packed weight on all ranks that hold any of them.

    Attributes:
        words: W.
        columns: K.
        checksums: of each rank's codes.
    """

    words: int
    columns: int
    checksums: tuple[str, ...]


def column_parts(weights: Mapping[str, PackedCodes]) -> dict[str, int]:
    """Return over how many ranks the columns of each weight are split: 1 for not at all, 0 for not known.

    Splits over more ranks than hold the weight are none. Where two numbers of bits are left, copies that are
    all alike hold all columns. Else the weight has the bits of those of the model's weights that leave no
    choice. Where none does, all columns are on each rank, as those of most weights are.

    Args:
        weights: of one model, by name.
    """
    readings = {name: _readings(codes) for name, codes in weights.items()}
    certain = {bits for found in readings.values() if len(found) == 1 for bits in found}
    parts: dict[str, int] = {}
    for name, found in readings.items():
        is_copied = len(set(weights[name].checksums)) == 1
        if len(found) > 1 and (is_copied or not certain):
            parts[name] = min(found.values())
        elif len(found) > 1:
            fitting = [found[bits] for bits in certain if bits in found]
            parts[name] = fitting[0] if len(fitting) == 1 else 0
        else:
            parts[name] = next(iter(found.values()), 1)
    return parts


def _readings(codes: PackedCodes) -> dict[int, int]:
    """Return the number of parts by the number of bits, for all numbers of bits that the sizes allow."""
    held = WORD_BITS * codes.words
    return {
        bits: bits * codes.columns // held
        for bits in BITS
        if held and not bits * codes.columns % held
        if 1 <= bits * codes.columns // held <= len(codes.checksums)
    }
