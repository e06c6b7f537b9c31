"""Prompts out of a target's own inputs: one as long as wanted, or several short ones.

Shape legend: B = prompts, P = their tokens, T = tokens of a text.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from validator.errors import MismatchError

__all__ = ["long_prompt", "short_prompts"]


def long_prompt(inputs: Mapping[str, Any], *, tokens: int, vocabulary: int) -> Tensor:
    """Return the input tokens of a target end to end, then others drawn with a fixed seed.

    Args:
        inputs: of the target.
        tokens: how many are needed.
        vocabulary: how many there are to draw from.

    Returns:
        `[T]` int64; padding is left out.

    Raises:
        MismatchError: the inputs hold no tokens.
    """
    own = torch.cat(_rows(inputs))
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(vocabulary, (tokens,), generator=generator)
    return torch.cat((own, drawn))[:tokens]


def short_prompts(inputs: Mapping[str, Any], *, count: int, tokens: int) -> Tensor:
    """Cut prompts of equal length from the input tokens of a target, spread evenly over them.

    Args:
        inputs: of the target.
        count: how many prompts at most.
        tokens: how long each is at most.

    Returns:
        `[B, P]` int64; padding is left out.

    Raises:
        MismatchError: the inputs hold no tokens.
    """
    rows = _rows(inputs)
    length = min(tokens, *map(len, rows))
    chunks = [
        row[start : start + length] for row in rows for start in range(0, len(row) - length + 1, length)
    ]
    picked = torch.linspace(0, len(chunks) - 1, min(count, len(chunks))).round().long().tolist()
    return torch.stack([chunks[i] for i in picked])


def _rows(inputs: Mapping[str, Any]) -> list[Tensor]:
    """Return the tokens of each input sequence that has any, int64 on the CPU, without padding."""
    ids = inputs.get("input_ids")
    if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.is_floating_point() or not ids.numel():
        raise MismatchError(
            f"inputs() holds {', '.join(inputs) or 'nothing'} and no input_ids, tokens [sequences, tokens], "
            'to take prompts from: return {"input_ids": ...}, or leave this suite out'
        )
    ids, mask = ids.to("cpu", torch.int64), inputs.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.shape != ids.shape:
        return list(ids)
    real = [row[keep] for row, keep in zip(ids, mask.to("cpu", torch.bool), strict=True)]
    rows = [row for row in real if len(row)]
    if not rows:
        raise MismatchError(
            f"the attention_mask of inputs() hides all {ids.numel()} tokens, so there is no prompt among them"
        )
    return rows
