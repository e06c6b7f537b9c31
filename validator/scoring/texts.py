"""The text that ships, which a model is asked to read: its tokens, and windows of them.

Shape legend: T = tokens, W = windows, S = their tokens.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from validator.content import ContentKind, content_path
from validator.numerics.positions import IGNORED_TARGET
from validator.pretrained import transformers

__all__ = ["TEXT", "TextTokens", "following", "shipped_text", "tokens_of", "windows_of"]

TEXT = "texts/lighthouse.txt"
"""The text that perplexity is measured on, among the baselines."""

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")
_BYTES = 256
"""A vocabulary of as many tokens is that of bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTokens:
    """The tokens of a text.

    Attributes:
        ids: `[T]` int64.
        note: why they are bytes, where the model's own tokens are others; None where they are its own.
    """

    ids: Tensor
    note: str | None


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


def tokens_of(text: str, model: nn.Module, *, vocabulary: int) -> TextTokens:
    """Return the tokens of a text.

    They are those of the model's tokenizer, which is looked for in the checkpoint that transformers loaded
    the model from: a folder, or a name of the hub whose files are on this machine. Without one they are the
    text's bytes, modulo the vocabulary. Both sides are asked about the same tokens either way.

    Args:
        text: any.
        model: one that transformers loaded knows its checkpoint.
        vocabulary: how many tokens the model knows.
    """
    tokens = torch.tensor(list(text.encode("utf-8")), dtype=torch.int64) % vocabulary
    name = str(getattr(getattr(model, "config", None), "name_or_path", None) or "")
    why = "the model names no checkpoint that a tokenizer could lie in"
    if name and Path(name).is_dir() and not any((Path(name) / file).is_file() for file in _TOKENIZERS):
        why = f"{name!r} holds no tokenizer"  # transformers would make up an empty one
    elif name:
        try:
            tokenizer = transformers().AutoTokenizer.from_pretrained(name, local_files_only=True)
            ids = torch.tensor(tokenizer(text)["input_ids"], dtype=torch.int64)
        except Exception as error:  # without its files, or the package that reads them, this raises anything
            why = f"no tokenizer of {name!r} can be loaded on this machine ({type(error).__name__})"
        else:
            if len(ids) and int(ids.max()) < vocabulary:
                return TextTokens(ids=ids, note=None)
            why = f"the tokenizer of {name!r} gives tokens that the model's {vocabulary} logits don't have"
    return TextTokens(ids=tokens, note=None if vocabulary == _BYTES else why)
