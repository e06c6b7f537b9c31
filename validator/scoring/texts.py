"""Which tokens a model is asked about: prompts from a target's inputs, and windows of a text that ships.

Shape legend: B = prompts, P = their tokens, W = windows, S = their tokens.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from validator.content import ContentKind, content_path
from validator.errors import MismatchError
from validator.numerics.positions import IGNORED_TARGET
from validator.pretrained import transformers

__all__ = ["TEXT", "following", "positions_limit", "prompts_of", "shipped_text", "tokens_of", "windows_of"]

TEXT = "texts/lighthouse.txt"
"""The text that perplexity is measured on, among the baselines."""

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


def prompts_of(inputs: Mapping[str, Any], *, count: int, tokens: int) -> Tensor:
    """Cut prompts of equal length from the input tokens of a target, spread evenly over them.

    Args:
        inputs: of the target.
        count: how many prompts at most.
        tokens: how long each is at most.

    Returns:
        `[B, P]` integer; padding is left out.

    Raises:
        MismatchError: the inputs hold no tokens.
    """
    ids = inputs.get("input_ids")
    if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.is_floating_point() or not ids.numel():
        raise MismatchError(
            f"inputs() holds {', '.join(inputs) or 'nothing'} and no input_ids, tokens [sequences, tokens], "
            "to take prompts from: what is generated can't be compared. Return them, or leave this suite out"
        )
    mask = inputs.get("attention_mask")
    if isinstance(mask, Tensor) and mask.shape == ids.shape:
        rows = [row[keep.to(torch.bool)] for row, keep in zip(ids, mask, strict=True)]
    else:
        rows = list(ids)
    if not any(len(row) for row in rows):
        raise MismatchError(
            f"the attention_mask of inputs() hides all {ids.numel()} tokens, so there is no prompt among them"
        )
    length = min(tokens, *(len(row) for row in rows if len(row)))
    chunks = [
        row[start : start + length] for row in rows for start in range(0, len(row) - length + 1, length)
    ]
    picked = torch.linspace(0, len(chunks) - 1, min(count, len(chunks))).round().long().tolist()
    return torch.stack([chunks[i] for i in picked]).to("cpu", torch.int64)


def windows_of(tokens: Tensor, *, count: int, size: int) -> Tensor:
    """Cut `[W, S]` windows from the start of `[T]` tokens, one after the other; one shorter window of few."""
    size = min(size, len(tokens))
    count = min(count, len(tokens) // size)
    return tokens[: count * size].view(count, size)


def following(ids: Tensor) -> Tensor:
    """Return `[W, S]` the token that follows each of `[W, S]`, and -100 after the last of a row."""
    targets = torch.full_like(ids, IGNORED_TARGET)
    targets[:, :-1] = ids[:, 1:]
    return targets


def shipped_text(folder: Path | None = None) -> str:
    """Return the text that ships, or that of a folder of baselines."""
    return content_path(ContentKind.BASELINES, TEXT, folder).read_text(encoding="utf-8")


def tokens_of(text: str, model: nn.Module, *, vocabulary: int) -> Tensor:
    """Return `[T]` int64 tokens of a text.

    They are those of the tokenizer beside the model's checkpoint; without one they are the text's bytes,
    modulo the vocabulary. Both sides are asked about the same tokens either way.

    Args:
        text: any.
        model: one that transformers loaded knows its folder.
        vocabulary: how many tokens the model knows.
    """
    folder = Path(str(getattr(getattr(model, "config", None), "name_or_path", None) or ""))
    if folder.name and any((folder / name).is_file() for name in _TOKENIZERS):
        tokenizer = transformers().AutoTokenizer.from_pretrained(folder, local_files_only=True)
        ids = torch.tensor(tokenizer(text)["input_ids"], dtype=torch.int64)
        if len(ids) and int(ids.max()) < vocabulary:
            return ids
    return torch.tensor(list(text.encode("utf-8")), dtype=torch.int64) % vocabulary


def positions_limit(model: nn.Module) -> int | None:
    """Return how many positions a model says it has, or None."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    limit = getattr(text, "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None
