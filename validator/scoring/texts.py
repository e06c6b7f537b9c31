"""The text that ships, which a model is asked to read: its tokens, and windows of them.

Shape legend: T = tokens, W = windows, S = their tokens.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from validator.content import ContentKind, content_path
from validator.numerics.positions import IGNORED_TARGET
from validator.pretrained import transformers

__all__ = ["TEXT", "following", "shipped_text", "tokens_of", "windows_of"]

TEXT = "texts/lighthouse.txt"
"""The text that perplexity is measured on, among the baselines."""

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


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
