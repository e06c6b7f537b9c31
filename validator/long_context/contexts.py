"""What a model's configuration says of its context: how many positions, and which windows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

__all__ = ["Context", "context_of"]

_SLIDING = ("sliding_attention", "hybrid_sliding", "reference_sliding_attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What is known of a model's context.

    Attributes:
        limit: the most positions that it has, or None where it doesn't say.
        trained: the positions that it was trained on, where its rotary embedding is stretched beyond them.
        windows: of each layer the number of tokens that it attends to, the query's own included; None for all
            of them. Empty where the layers are not known.
    """

    limit: int | None = None
    trained: int | None = None
    windows: tuple[int | None, ...] = ()

    @property
    def window(self) -> int | None:
        """The smallest window, or None."""
        return min((window for window in self.windows if window is not None), default=None)


def context_of(model: nn.Module) -> Context:
    """Read what the configuration of a model, of transformers or alike, says of its context."""
    config: Any = getattr(model, "config", None)
    if config is None:
        return Context()
    if hasattr(config, "get_text_config"):
        config = config.get_text_config(decoder=True)
    limit = _size(getattr(config, "max_position_embeddings", None))
    return Context(limit=limit, trained=_trained(config, limit), windows=_windows(config))


def _trained(config: Any, limit: int | None) -> int | None:
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if not isinstance(rope, Mapping):
        return None
    named = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    sizes = [_size(each.get("original_max_position_embeddings")) for each in named]
    found = min((size for size in sizes if size is not None), default=None)
    return None if found is None or (limit is not None and found >= limit) else found


def _windows(config: Any) -> tuple[int | None, ...]:
    layers = _size(getattr(config, "num_hidden_layers", None)) or 0
    kinds: Sequence[str] | None = getattr(config, "layer_types", None)
    sliding = _size(getattr(config, "sliding_window", None))
    chunk = _size(getattr(config, "attention_chunk_size", None))
    if kinds is not None:
        return tuple(
            sliding if kind in _SLIDING else chunk if kind == "chunked_attention" else None for kind in kinds
        )
    is_sliding = sliding is not None and getattr(config, "use_sliding_window", True)
    return (sliding if is_sliding else None,) * layers


def _size(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
