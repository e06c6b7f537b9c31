"""Batches made of a target's inputs: some of its sequences, in another order or number.

Shape legend: B = sequences, s = tokens.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from validator.capturing.values import flatten, rebuild
from validator.errors import UsageError

__all__ = ["NotBatchedError", "batch_of", "sequences_of", "tokens_of"]

_PARTS = 3
"""One of so many parts of its tokens is what a further sequence is moved round by."""


class NotBatchedError(UsageError):
    """Inputs of which no other batch can be made."""


def sequences_of(inputs: dict[str, Any]) -> int:
    """Return B of the model's inputs.

    Raises:
        NotBatchedError: no other batch can be made of them.
    """
    ids = inputs.get("input_ids", inputs.get("inputs_embeds"))
    if not isinstance(ids, Tensor) or ids.dim() < 2:
        raise NotBatchedError(
            "inputs() has no input_ids [batch, tokens] and no inputs_embeds, so no other batch is made"
        )
    size = len(ids)
    for path, leaf in flatten(inputs).items():
        if isinstance(leaf, Tensor):
            if leaf.dim() and len(leaf) not in (1, size):
                raise NotBatchedError(
                    f"inputs() has {path} {list(leaf.shape)}, which has no row for each of its {size} "
                    "sequences, so no other batch can be made of them"
                )
        elif not (leaf is None or isinstance(leaf, bool | int | float | str)):
            raise NotBatchedError(
                f"inputs() has {path}, a {type(leaf).__name__}, which can't be made for another batch"
            )
    return size


def tokens_of(inputs: dict[str, Any]) -> int:
    """Return s of the model's inputs, which `sequences_of` accepts."""
    ids = inputs.get("input_ids", inputs.get("inputs_embeds"))
    assert isinstance(ids, Tensor)
    return int(ids.shape[1])


def batch_of(inputs: dict[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    """Return the inputs of a batch of these sequences.

    Args:
        inputs: the target's.
        rows: numbers of sequences. Those of the target are 0 to B - 1; further ones are the same with their
            tokens moved round, so that a batch has neighbours that differ.

    Raises:
        NotBatchedError: no other batch can be made of the inputs.
    """
    size = sequences_of(inputs)
    tokens = tokens_of(inputs)

    def picked(path: str, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.dim() or len(leaf) != size:
            return leaf
        is_text = path in ("input_ids", "inputs_embeds")
        made = []
        for row in rows:
            sequence = leaf[row % size]
            shift = (row // size) * max(tokens // _PARTS, 1)
            made.append(sequence.roll(shift, 0) if is_text and shift else sequence)
        return torch.stack(made)

    batch: dict[str, Any] = rebuild(inputs, picked)
    return batch
