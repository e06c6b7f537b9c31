"""Caches as they are looked at: what each layer has been given, what it holds, and where.

Caches of transformers are read through their layers. The cache of another engine is read where it has a
method `layer_views()`, which makes it a `CacheView`. Reading changes nothing.

Shape legend: B = sequences, K = key heads of this rank, T = tokens held, D = channels of a head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from validator.capturing.copies import local_part
from validator.long_context.storages import tensors_in

__all__ = ["CacheView", "LayerView", "StoredLayer", "layer_views", "pairs_in"]

_DEPTH = 4
_DIMS = 4  # of keys and of values: batch, heads, tokens, channels


class LayerView(Protocol):
    """What the cache of one layer shows of itself."""

    @property
    def kind(self) -> str:
        """What to call it, such as `DynamicLayer`."""

    @property
    def seen(self) -> int | None:
        """How many tokens it has been given; None where it keeps no count, as a recurrent state does."""

    @property
    def held(self) -> int | None:
        """How many tokens it holds, the last ones; None where it holds none one by one."""

    @property
    def capacity(self) -> int | None:
        """How many tokens it has room for; None where it grows."""

    @property
    def block(self) -> int:
        """How many tokens it evicts at once; 1 where it evicts single ones."""

    def rows(self) -> tuple[Tensor, Tensor] | None:
        """Return the keys and values that it holds, `[B, K, T, D]`, oldest first, padded channels as zeros.

        None where they are stored otherwise, quantised say, so that what is read may change by itself.
        """

    def tensors(self) -> Sequence[Tensor]:
        """Return all tensors that it keeps."""


@runtime_checkable
class CacheView(Protocol):
    """A cache that shows its layers: what the cache of an engine of its own has to offer."""

    def layer_views(self) -> Sequence[LayerView]:
        """Return a view of the cache of each layer, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLayer:
    """The cache of a layer, of transformers: a `LayerView`."""

    layer: Any

    @property
    def kind(self) -> str:
        """Name of its class."""
        return type(self.layer).__name__

    @property
    def seen(self) -> int | None:
        """The tokens it has been given."""
        if not self._is_filled:
            return None if self._is_state else 0
        return int(self.layer.get_seq_length())

    @property
    def held(self) -> int | None:
        """The tokens it holds."""
        seen, capacity = self.seen, self.capacity
        if seen is None:
            return None
        if capacity is not None:
            return min(seen, capacity)
        quantised = getattr(self.layer, "_quantized_keys", None)
        if quantised is not None:
            codes = quantised[0] if isinstance(quantised, tuple) else quantised
            return _tokens(codes) + _tokens(self.layer.keys)
        return _tokens(self.layer.keys)

    @property
    def capacity(self) -> int | None:
        """The length of its tensors, where it is static."""
        found = getattr(self.layer, "max_cache_len", None)
        return found if isinstance(found, int) else None

    @property
    def block(self) -> int:
        """It evicts single tokens."""
        return 1

    def rows(self) -> tuple[Tensor, Tensor] | None:
        """Return keys and values in use."""
        if not self._is_filled or getattr(self.layer, "_quantized_keys", None) is not None:
            return None
        keys, values = local_part(self.layer.keys), local_part(self.layer.values)
        if keys is None or values is None or keys.dim() != 4:
            return None
        held = self.held or 0
        return keys[:, :, :held], values[:, :, :held]

    def tensors(self) -> Sequence[Tensor]:
        """Return all tensors in its attributes."""
        return list(tensors_in(vars(self.layer), depth=_DEPTH))

    @property
    def _is_state(self) -> bool:
        return not hasattr(self.layer, "keys")

    @property
    def _is_filled(self) -> bool:
        return isinstance(getattr(self.layer, "keys", None), Tensor)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Keys and values `[B, K, T, D]` of a layer in a tuple, which keeps no count: a `LayerView`."""

    keys: Tensor
    values: Tensor
    kind: str = "tuple"
    seen: int | None = None
    capacity: int | None = None
    block: int = 1

    @property
    def held(self) -> int | None:
        return _tokens(self.keys)

    def rows(self) -> tuple[Tensor, Tensor] | None:
        return self.keys, self.values

    def tensors(self) -> Sequence[Tensor]:
        return [self.keys, self.values]


def layer_views(cache: Any, token_dims: tuple[int, int] | None = None) -> tuple[LayerView, ...] | None:
    """Return a view of each layer's cache, or None where nothing is known of such a cache.

    Args:
        cache: a `CacheView`, a cache of transformers, or a tuple of a pair of keys and values a layer.
        token_dims: of such a tuple, which dim of keys and which of values counts tokens; None where that is
            not known, and then neither is what the tuple holds.
    """
    if isinstance(cache, CacheView):
        return tuple(cache.layer_views())
    pairs = pairs_in(cache)
    if pairs is not None:
        if token_dims is None:
            return None
        of_keys, of_values = token_dims
        return tuple(
            _Pair(keys=keys.movedim(of_keys, -2), values=values.movedim(of_values, -2))
            for keys, values in pairs
        )
    layers = getattr(cache, "layers", None)
    if not isinstance(layers, list) or not all(map(_is_layer, layers)):
        return None
    return tuple(StoredLayer(layer=layer) for layer in layers)


def pairs_in(cache: Any) -> tuple[tuple[Tensor, Tensor], ...] | None:
    """Return the keys and values of each layer, of four dims, of a cache that is a tuple of them, or None."""
    if not isinstance(cache, tuple | list) or not cache:
        return None
    pairs = [tuple(layer[:2]) for layer in cache if isinstance(layer, tuple | list) and len(layer) >= 2]
    is_cache = all(isinstance(x, Tensor) and x.dim() == _DIMS for pair in pairs for x in pair)
    return tuple(pairs) if is_cache and len(pairs) == len(cache) else None


def _is_layer(layer: Any) -> bool:
    return hasattr(layer, "update") or hasattr(layer, "update_recurrent_state")


def _tokens(keys: Any) -> int:
    return int(keys.shape[-2]) if isinstance(keys, Tensor) and keys.dim() >= 3 else 0
