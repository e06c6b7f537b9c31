"""What a model's configuration says of its context: how many positions, and which windows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

__all__ = ["Context", "Window", "context_of"]

_LIMITS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "block_size")
"""What configurations call the number of positions: transformers' name, then GPT-2's, and those of others."""

_SLIDING = ("sliding_attention", "hybrid_sliding", "reference_sliding_attention")
_CHUNKED = "chunked_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Which tokens a query attends to, where these are not all before it.

    Attributes:
        size: how many at most, the query's own included.
        is_chunked: whether the text is cut into chunks of this size, and a query attends to what is before it
            in its own chunk; else it attends to the last ones.
    """

    size: int
    is_chunked: bool = False

    @property
    def noun(self) -> str:
        """What it is called, `window` or `chunk`."""
        return "chunk" if self.is_chunked else "window"

    def needed(self, fed: int) -> int:
        """Return how many of the tokens fed so far the next one attends to."""
        return fed % self.size if self.is_chunked else min(fed, self.size - 1)

    def may_grow(self, fed: int) -> bool:
        """Tell whether a cache that keeps no more than it must may grow, that many tokens being fed."""
        return self.is_chunked or fed < self.size

    def edges(self, total: int) -> range:
        """Return where in a text tokens go out of sight: at the window's end, or each chunk's start."""
        return range(self.size, total, self.size if self.is_chunked else max(total, 1))

    def __str__(self) -> str:
        """Return it in words, such as `sliding window of 128`."""
        return f"{'attention chunk' if self.is_chunked else 'sliding window'} of {self.size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What is known of a model's context.

    Attributes:
        limit: the most positions that it has, or None where it doesn't say.
        trained: the positions that it was trained on, where its rotary embedding is stretched beyond them.
        windows: of each layer, None where a query attends to all tokens before it. Empty where the layers are
            not known.
    """

    limit: int | None = None
    trained: int | None = None
    windows: tuple[Window | None, ...] = ()

    @property
    def window(self) -> Window | None:
        """The smallest window, or None."""
        return min(self.distinct, key=lambda window: window.size, default=None)

    @property
    def distinct(self) -> tuple[Window, ...]:
        """The windows of all layers, each once, by size."""
        return tuple(sorted({window for window in self.windows if window}, key=lambda window: window.size))

    def window_of(self, layer: int) -> Window | None:
        """Return the window of a layer by its number; None where it has none, or is not known."""
        return self.windows[layer] if layer < len(self.windows) else None


def context_of(model: nn.Module) -> Context:
    """Read what the configuration of a model, of transformers or alike, says of its context."""
    config: Any = getattr(model, "config", None)
    if config is None:
        return Context()
    if hasattr(config, "get_text_config"):
        config = config.get_text_config(decoder=True)
    limit = next((size for name in _LIMITS if (size := _size(getattr(config, name, None)))), None)
    return Context(limit=limit, trained=_trained(config, limit), windows=_windows(config))


def _trained(config: Any, limit: int | None) -> int | None:
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if not isinstance(rope, Mapping):
        return None
    named = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    sizes = [_size(each.get("original_max_position_embeddings")) for each in named]
    found = min((size for size in sizes if size is not None), default=None)
    return None if found is None or (limit is not None and found >= limit) else found


def _windows(config: Any) -> tuple[Window | None, ...]:
    kinds: Sequence[str] | None = getattr(config, "layer_types", None)
    size = _size(getattr(config, "sliding_window", None))
    chunk = _size(getattr(config, "attention_chunk_size", None))
    sliding = None if size is None else Window(size=size)
    if kinds is not None:
        chunked = None if chunk is None else Window(size=chunk, is_chunked=True)
        return tuple(sliding if kind in _SLIDING else chunked if kind == _CHUNKED else None for kind in kinds)
    layers = _size(getattr(config, "num_hidden_layers", None)) or 0
    return (sliding if getattr(config, "use_sliding_window", True) else None,) * layers


def _size(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
