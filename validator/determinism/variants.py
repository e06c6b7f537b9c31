"""The runs that the levels compare: which sequences, in which pieces, and what is planted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from validator.determinism.controls import Control

__all__ = ["Variant", "batch_variants", "chunk_sizes", "chunk_variants", "memory_variants", "repeat_variants"]

_SIZE = 3
"""Sequences of a batch for a target that has one: each has a neighbour on both sides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One run of the candidate.

    Attributes:
        name: of its capture.
        rows: sequences of its batch, as `batches.batch_of` numbers them; None for the target's inputs as they
            are, run as the target says.
        chunks: sizes of the pieces that the only sequence's tokens are fed in, or None for all at once.
        fill: what memory holds before it is written, NaN or 0; None leaves it as it is.
        is_rebuilt: whether the candidate is built again for it.
        control: what is planted in it, or None.
        include: globs of modules to capture; none for all.
        operators: fqns of modules whose operators are captured as well.
    """

    name: str
    rows: tuple[int, ...] | None = None
    chunks: tuple[int, ...] | None = None
    fill: float | None = None
    is_rebuilt: bool = False
    control: Control | None = None
    include: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()

    @property
    def is_filled(self) -> bool:
        """Whether memory is filled before it is written."""
        return self.fill is not None


def repeat_variants(repeats: int = 2) -> tuple[Variant, ...]:
    """Return runs of the same inputs: with the same model, and with one that is built again."""
    again = [Variant(name=f"again-{i}", is_rebuilt=bool(i % 2)) for i in range(repeats)]
    return (
        Variant(name="first"),
        *again,
        Variant(name="control-last-bit", control=Control.LAST_BIT),
        Variant(name="control-card", control=Control.CARD),
    )


def memory_variants() -> tuple[Variant, ...]:
    """Return runs whose memory is filled before it is written, with NaN, and one with zeros.

    What memory holds by itself says nothing: it may be NaN that another run left there.
    """
    return (
        Variant(name="cleared", fill=0.0, is_rebuilt=True),
        Variant(name="filled", fill=math.nan, is_rebuilt=True),
        Variant(name="control-read", fill=math.nan, control=Control.READ),
    )


def batch_variants(sequences: int) -> tuple[Variant, ...]:
    """Return runs of the same sequences in batches of another size, and at other positions.

    Args:
        sequences: B of the target's inputs. Where it is more than one it is the size of the batch, since that
            may be the only one that the candidate takes.
    """
    size = sequences if sequences > 1 else _SIZE
    whole = tuple(range(size))
    rolled = (*whole[1:], 0)
    return (
        Variant(name="batch", rows=whole),
        Variant(name="alone", rows=(0,)),
        Variant(name="rolled", rows=rolled),
        Variant(name="control-neighbour", rows=rolled, control=Control.NEIGHBOUR),
    )


def chunk_sizes(tokens: int) -> tuple[int, ...]:
    """Return the pieces of a prompt: uneven ones, three where there are tokens enough."""
    first = max(tokens // 2, 1)
    second = max((tokens - first) // 3, 1) if tokens > 2 else 0
    return tuple(size for size in (first, second, tokens - first - second) if size > 0)


def chunk_variants(sizes: Sequence[int]) -> tuple[Variant, ...]:
    """Return runs of the target's first sequence, at once and in these pieces."""
    whole = (sum(sizes),)
    return (
        Variant(name="whole", rows=(0,), chunks=whole),
        Variant(name="chunked", rows=(0,), chunks=tuple(sizes)),
        Variant(name="control-later", rows=(0,), chunks=tuple(sizes), control=Control.LATER),
    )
