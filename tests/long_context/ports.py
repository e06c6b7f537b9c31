"""Small ports for long contexts, healthy and with faults of caches, positions and memory."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache, Llama4TextConfig
from transformers.distributed import DistributedConfig

from tests.decoding.runs import pair
from tests.families import FAMILIES
from validator.emulate import Emulation, emulate_module
from validator.wrapping import wrap

__all__ = ["FAULTS", "candidate", "target_file"]


def target_file(
    folder: Path,
    family: str,
    *,
    fault: str = "nothing",
    recipe: str | None = None,
    made_by: str = "ports",
    **config: Any,
) -> Path:
    """Write a checkpoint of two layers and a target of it, whose candidate has a fault.

    The candidate is that of this module, or of `staged_ports`.
    """
    path = folder / family
    model = _chunked() if family == "llama4" else pair(family, **config)[0]
    model.save_pretrained(path)
    written = folder / f"{family}_{fault}.py"
    written.write_text(
        "import torch\n"
        "from transformers import AutoModelForCausalLM\n"
        f"from tests.long_context import {made_by} as ports\n"
        f"FOLDER = {str(path)!r}\n"
        f"recipe = {recipe!r}\n"
        "def reference():\n"
        "    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)\n"
        "def candidate(dtype=torch.bfloat16):\n"
        f"    return ports.candidate(FOLDER, {fault!r}, dtype)\n"
        "def inputs():\n"
        "    return {'input_ids': torch.randint(250, (2, 40), generator=torch.Generator().manual_seed(7))}\n"
    )
    return written


def candidate(folder: str, fault: str, dtype: torch.dtype) -> nn.Module:
    """Load a candidate, sharded over as many ranks as there are, and plant a fault."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    sharding = DistributedConfig(tp_plan="auto", tp_size=ranks) if ranks > 1 else None
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, distributed_config=sharding).eval()
    FAULTS[fault](model)
    return model


def _chunked() -> nn.Module:
    """Return a Llama 4 of two layers, without experts, the first of which attends within chunks of 12."""
    config = Llama4TextConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size_mlp=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        attention_chunk_size=12,
        layer_types=["chunked_attention", "full_attention"],
        moe_layers=[],
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    FAMILIES["llama"].fill(model, torch.Generator().manual_seed(0))
    return model


def _narrow_positions(model: Any) -> None:
    """Keep the positions of the rotary embedding in bfloat16."""

    def rounded(inner: Any, x: Tensor, position_ids: Tensor, **kwargs: Any) -> Any:
        return inner(x, position_ids=position_ids.to(torch.bfloat16).long(), **kwargs)

    wrap(model.model.rotary_emb, rounded)


def _narrow_frequencies(model: Any) -> None:
    """Keep the frequencies of the rotary embedding in bfloat16."""
    rotary = model.model.rotary_emb
    rotary.inv_freq.copy_(rotary.inv_freq.to(torch.bfloat16))


def _window(change: int) -> Callable[[Any], None]:
    def apply(model: Any) -> None:
        model.config.sliding_window += change
        for module in model.modules():
            if getattr(module, "sliding_window", None):
                module.sliding_window += change

    return apply


def _chunk_long(model: Any) -> None:
    """Attend within chunks of one token more."""
    model.config.attention_chunk_size += 1


def _tf32(model: Any) -> None:
    """Round the factors of products to TF32."""
    emulate_module(model, Emulation(factors="tf32"))


def _tf32_and_a_window_long(model: Any) -> None:
    _window(1)(model)
    _tf32(model)


class _PagedLayer:
    """The keys and values of a layer in pages of 16 tokens, the last of which may be begun."""

    kind = "PagedLayer"
    capacity = None
    block = 16

    def __init__(self, keys: Tensor, values: Tensor, seen: int, dropped: int) -> None:
        self.seen, self.held, self.pages = seen, keys.shape[2] - dropped, []
        for start in range(dropped, keys.shape[2], self.block):
            page = torch.zeros(2, *keys.shape[:2], self.block, keys.shape[3], dtype=keys.dtype)
            for whole, part in zip((keys, values), page, strict=True):
                rows = whole[:, :, start : start + self.block]
                part[:, :, : rows.shape[2]] = rows
            self.pages.append(page)

    def rows(self) -> tuple[Tensor, Tensor]:
        keys, values = torch.cat(self.pages, dim=3)[..., : self.held, :]
        return keys, values

    def tensors(self) -> list[Tensor]:
        return self.pages


class _PagedCache:
    """The cache of an engine of its own, which shows what it holds."""

    def __init__(self, cache: Any, seen: int, dropped: int) -> None:
        self.kept = [_PagedLayer(layer.keys, layer.values, seen, dropped) for layer in cache.layers]

    def layer_views(self) -> list[_PagedLayer]:
        return self.kept

    def read(self) -> DynamicCache:
        found = DynamicCache()
        for number, layer in enumerate(self.kept):
            found.update(*layer.rows(), number)
        return found


def _own_cache(*, evicts: bool = False) -> Callable[[Any], None]:
    """Keep tokens in pages, of which one may be dropped once, when 100 tokens are in them."""

    def apply(model: Any) -> None:
        def forward(inner: Any, *args: Any, **kwargs: Any) -> Any:
            before = kwargs.get("cache")
            if not kwargs.get("use_cache"):
                return inner(*args, **kwargs)
            made = inner(*args, **{**kwargs, "cache": DynamicCache() if before is None else before.read()})
            seen = kwargs["input_ids"].shape[1] + (0 if before is None else before.kept[0].seen)
            is_whole = made.cache.get_seq_length() == seen
            dropped = _PagedLayer.block if evicts and seen > 100 and is_whole else 0
            made.cache = _PagedCache(made.cache, seen, dropped)
            return made

        wrap(model, forward)

    return apply


def _after_each_call(model: Any, change: Callable[[Any], None]) -> None:
    def forward(inner: Any, *args: Any, **kwargs: Any) -> Any:
        made = inner(*args, **kwargs)
        if made.cache is not None:
            change(made.cache)
        return made

    wrap(model, forward)


def _block_cleared(model: Any) -> None:
    """Clear a block of the last layer's cache once 100 tokens are in it."""

    def change(cache: Any) -> None:
        layer = cache.layers[-1]
        if layer.get_seq_length() > 100:
            layer.keys[:, :, 16:32] = 0
            layer.values[:, :, 16:32] = 0

    _after_each_call(model, change)


def _block_dropped(model: Any) -> None:
    """Drop a block of the cache once 100 tokens are in it."""
    done: list[Any] = []

    def change(cache: Any) -> None:
        if cache.get_seq_length() > 100 and not any(cache is one for one in done):
            done.append(cache)
            for layer in cache.layers:
                layer.keys = torch.cat((layer.keys[:, :, :16], layer.keys[:, :, 32:]), 2)
                layer.values = torch.cat((layer.values[:, :, :16], layer.values[:, :, 32:]), 2)

    _after_each_call(model, change)


def _without_eviction(model: Any) -> None:
    """Use a cache that knows nothing of windows."""

    def forward(inner: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("use_cache") and kwargs.get("cache") is None:
            kwargs["cache"] = DynamicCache()
        return inner(*args, **kwargs)

    wrap(model, forward)


def _kept_in_a_list(model: Any) -> None:
    """Keep what a layer returned for each token."""
    mlp = model.model.layers[1].mlp
    mlp.history = []

    def forward(inner: Any, x: Tensor) -> Any:
        made = inner(x)
        mlp.history.append(made[:, -1].clone())
        return made

    wrap(mlp, forward)


def _kept_in_a_tensor(model: Any) -> None:
    """Let a tensor grow by a row for each token."""
    attention = model.model.layers[0].self_attn
    attention.scores = torch.zeros(0, 64)

    def forward(inner: Any, *args: Any, **kwargs: Any) -> Any:
        made = inner(*args, **kwargs)
        attention.scores = torch.cat((attention.scores, made[0][0].detach().float()))
        return made

    wrap(attention, forward)


class _SharedCache(DynamicCache):
    """A cache whose copies are itself."""

    def __deepcopy__(self, memo: Any) -> "_SharedCache":
        return self


def _prefix_not_copied(model: Any) -> None:
    """Let whoever goes on from a prefix write to the prefix's own cache."""

    def forward(inner: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("use_cache") and kwargs.get("cache") is None:
            kwargs["cache"] = _SharedCache(config=model.config)
        return inner(*args, **kwargs)

    wrap(model, forward)


def _without_cache(model: Any) -> None:
    """Take no cache."""
    inner = model.forward

    def forward(input_ids: Tensor) -> Any:
        return inner(input_ids=input_ids, use_cache=False)

    model.forward = forward


def _no_room(model: Any) -> None:
    """Fail once 100 tokens are in the cache."""

    def change(cache: Any) -> None:
        if cache.get_seq_length() > 100:
            raise ValueError("no room")

    _after_each_call(model, change)


def _static_cache(model: Any) -> None:
    """Ask for a static cache."""
    model.generation_config.cache_implementation = "static"


FAULTS: dict[str, Callable[[Any], None]] = {
    "nothing": lambda model: None,
    "narrow_positions": _narrow_positions,
    "narrow_frequencies": _narrow_frequencies,
    "chunk_long": _chunk_long,
    "tf32": _tf32,
    "tf32_and_window_long": _tf32_and_a_window_long,
    "own_cache": _own_cache(),
    "own_cache_evicts": _own_cache(evicts=True),
    "window_short": _window(-1),
    "window_long": _window(1),
    "block_cleared": _block_cleared,
    "block_dropped": _block_dropped,
    "without_eviction": _without_eviction,
    "kept_in_a_list": _kept_in_a_list,
    "kept_in_a_tensor": _kept_in_a_tensor,
    "prefix_not_copied": _prefix_not_copied,
    "without_cache": _without_cache,
    "no_room": _no_room,
    "static_cache": _static_cache,
}
"""What is changed about a candidate, by name; some of it is healthy."""
