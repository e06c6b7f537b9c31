"""Faults that show only in decoding: in steps that go on with what earlier ones left in a cache.

A step has fewer queries than keys. The prefill, in which every key is one of its own, is right.

Shape legend: B = batch, S = queries, K = key heads, T = keys, D = channels of a head.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from validator.errors import UsageError
from validator.faults.caches import read_as_fnuz
from validator.faults.common import ATTENTION, LAYER, MLP, RANK, factor_parameter
from validator.faults.decoder import Decoder, local
from validator.faults.fault import Fault, Parameter
from validator.faults.kernels import wrap_kernel
from validator.faults.quantisation import split_nibbles
from validator.wrapping import wrap

__all__ = ["FAULTS"]

_Read = Callable[[Tensor, int], Tensor]
"""From keys or values `[B, K, T, D]` of a step, and its number of queries, to what is read in their place."""


def _kv_stale_block(decoder: Decoder, *, layer: int, tokens: int) -> None:
    """Let a request find in the block that it was given what the request before it had left there."""
    left: list[tuple[Tensor, Tensor]] = []

    def kernel(
        inner: Any, attention: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        if query.shape[2] == key.shape[2]:
            left.append((key[:, :, :tokens].clone(), value[:, :, :tokens].clone()))
        elif len(left) > 1 and left[-2][0].shape == left[-1][0].shape:
            stale_keys, stale_values = left[-2]
            key = torch.cat((stale_keys, key[:, :, stale_keys.shape[2] :]), 2)
            value = torch.cat((stale_values, value[:, :, stale_keys.shape[2] :]), 2)
        return inner(attention, query, key, value, *args, **kwargs)

    wrap_kernel(decoder.layer(layer).self_attn, kernel)


def _kv_misplaced_block(decoder: Decoder, *, layer: int, first: int, tokens: int) -> None:
    """Let the first sequence read a block of the second one's, through a wrong entry of its block table."""

    def read(x_BKTD: Tensor, queries: int) -> Tensor:
        if len(x_BKTD) < 2:
            raise UsageError("one sequence can't read another's block: give a batch of 2 or more")
        mixed = x_BKTD.clone()
        mixed[0, :, first : first + tokens] = x_BKTD[1, :, first : first + tokens]
        return mixed

    _read_otherwise(decoder, layer, read)


def _kv_scale(decoder: Decoder, *, layer: int, factor: float) -> None:
    """Multiply keys by another scale when they are read than they were divided by when written."""

    def read(x_BKTD: Tensor, queries: int) -> Tensor:
        earlier = x_BKTD.shape[2] - queries
        return torch.cat((x_BKTD[:, :, :earlier] * factor, x_BKTD[:, :, earlier:]), 2)

    _read_otherwise(decoder, layer, read, values=False)


def _kv_fnuz(decoder: Decoder, *, layer: int) -> None:
    """Read float8_e4m3fn bits of the cache as float8_e4m3fnuz."""

    def read(x_BKTD: Tensor, queries: int) -> Tensor:
        earlier = x_BKTD.shape[2] - queries
        return torch.cat((read_as_fnuz(x_BKTD[:, :, :earlier]), x_BKTD[:, :, earlier:]), 2)

    _read_otherwise(decoder, layer, read)


def _kv_evicted(decoder: Decoder, *, layer: int, first: int, tokens: int) -> None:
    """Drop a block from the cache while it is still in use."""

    def kernel(
        inner: Any, attention: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any
    ) -> Any:
        if query.shape[2] < key.shape[2]:
            kept = torch.ones(key.shape[2], dtype=torch.bool, device=key.device)
            kept[first : first + tokens] = False
            key, value = key[:, :, kept], value[:, :, kept]
            mask = None if mask is None else mask[..., kept]
        return inner(attention, query, key, value, mask, **kwargs)

    wrap_kernel(decoder.layer(layer).self_attn, kernel)


def _kv_window_rolled(decoder: Decoder, *, layer: int) -> None:
    """Roll the window one step early: the oldest key that is still inside is gone."""
    window = decoder.layer(layer).self_attn.sliding_window

    def kernel(
        inner: Any, attention: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any
    ) -> Any:
        if query.shape[2] == 1 < key.shape[2] and key.shape[2] >= window:
            key, value = key[:, :, 1:], value[:, :, 1:]
            mask = None if mask is None else mask[..., 1:]
        return inner(attention, query, key, value, mask, **kwargs)

    wrap_kernel(decoder.layer(layer).self_attn, kernel)


def _kv_window_kept(decoder: Decoder, *, layer: int) -> None:
    """Never evict, and attend to all that is there."""
    kept: list[Tensor] = []

    def kernel(
        inner: Any, attention: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any
    ) -> Any:
        if query.shape[2] == key.shape[2]:
            kept[:] = [key, value]
        elif query.shape[2] == 1 and kept:
            kept[:] = [
                torch.cat((old, new[:, :, -1:]), 2) for old, new in zip(kept, (key, value), strict=True)
            ]
            key, value = kept
            mask = None
        return inner(attention, query, key, value, mask, **kwargs)

    wrap_kernel(decoder.layer(layer).self_attn, kernel)


def _step_positions_stale(decoder: Decoder, *, step: int) -> None:
    """Run one decode step with the positions of the step before it."""
    seen = [0]

    def change(position_ids: Tensor) -> Tensor:
        seen[0] += 1
        return position_ids - 1 if seen[0] == step else position_ids

    _change_positions(decoder, change, restart=lambda: seen.__setitem__(0, 0))


def _step_positions_restart(decoder: Decoder) -> None:
    """Count the positions of decode steps from 0."""
    first: list[Tensor] = []

    def change(position_ids: Tensor) -> Tensor:
        if not first:
            first.append(position_ids)
        return position_ids - first[0]

    _change_positions(decoder, change, restart=first.clear)


def _step_nibbles(decoder: Decoder, *, layer: int) -> None:
    """Let the kernel for single tokens unpack a weight in another order than that for many."""
    projection = decoder.layer(layer).mlp.up_proj
    unpacked = split_nibbles(local(projection.weight).clone())

    def forward(inner: Any, x: Tensor) -> Any:
        if x.shape[-2] > 1:
            return inner(x)
        return torch.nn.functional.linear(x, unpacked, projection.bias)

    wrap(projection, forward)


def _read_otherwise(decoder: Decoder, layer: int, read: _Read, *, values: bool = True) -> None:
    def kernel(
        inner: Any, attention: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        if query.shape[2] < key.shape[2]:
            key = read(key, query.shape[2])
            value = read(value, query.shape[2]) if values else value
        return inner(attention, query, key, value, *args, **kwargs)

    wrap_kernel(decoder.layer(layer).self_attn, kernel)


def _change_positions(
    decoder: Decoder, change: Callable[[Tensor], Tensor], *, restart: Callable[[], None]
) -> None:
    """Change the positions that decode steps compute with, and call `restart` at each prefill."""

    def forward(inner: Any, *args: Any, position_ids: Any = None, **kwargs: Any) -> Any:
        if position_ids is None:
            raise UsageError(
                "positions of steps can be changed where the decoder is called with position_ids"
            )
        if position_ids.shape[-1] > 1:
            restart()
        else:
            position_ids = change(position_ids)
        return inner(*args, position_ids=position_ids, **kwargs)

    wrap(decoder.body, forward)


def _block(name: str, default: int, what: str) -> Parameter:
    return Parameter(name=name, kind=int, default=default, what=what)


_FIRST = _block("first", 4, "the first token of the block")
_TOKENS = _block("tokens", 4, "how many tokens a block holds")
_NEEDS = ("layer.self_attn.num_key_value_groups",)
_WINDOW = ("layer.self_attn.sliding_window",)

FAULTS = (
    Fault(
        name="step-kv-stale-block",
        what="In decoding, a request reads from its first block what the request before it left there.",
        module=ATTENTION,
        apply=_kv_stale_block,
        parameters=(LAYER, _TOKENS),
        needs=_NEEDS,
        zoo=("kv-stale-hash",),
    ),
    Fault(
        name="step-kv-misplaced-block",
        what="In decoding, the first sequence reads a block of the second one.",
        module=ATTENTION,
        apply=_kv_misplaced_block,
        parameters=(LAYER, _FIRST, _TOKENS),
        needs=_NEEDS,
    ),
    Fault(
        name="step-kv-scale",
        what="Keys are read from a quantised cache with another scale than they were written with.",
        module=ATTENTION,
        apply=_kv_scale,
        parameters=(LAYER, factor_parameter(1.05), RANK),
        needs=_NEEDS,
        zoo=("kv-fp8-scale-ignored",),
    ),
    Fault(
        name="step-kv-fnuz",
        what="In decoding, an FP8 cache is read as float8_e4m3fnuz that was written as float8_e4m3fn.",
        module=ATTENTION,
        apply=_kv_fnuz,
        parameters=(LAYER, RANK),
        needs=_NEEDS,
        zoo=("kv-fp8-fnuz-decode",),
    ),
    Fault(
        name="step-kv-evicted",
        what="A block is dropped from the cache while it is still in use.",
        module=ATTENTION,
        apply=_kv_evicted,
        parameters=(LAYER, _FIRST, _TOKENS, RANK),
        needs=_NEEDS,
    ),
    Fault(
        name="step-kv-window-rolled",
        what="The cache of a sliding layer rolls one step early, and loses a key that is still seen.",
        module=ATTENTION,
        apply=_kv_window_rolled,
        parameters=(LAYER, RANK),
        needs=_WINDOW,
        zoo=("kv-swa-roll",),
    ),
    Fault(
        name="step-kv-window-kept",
        what="The cache of a sliding layer evicts nothing, and its decode steps see everything.",
        module=ATTENTION,
        apply=_kv_window_kept,
        parameters=(LAYER, RANK),
        needs=_WINDOW,
        zoo=("kv-swa-never-evict",),
    ),
    Fault(
        name="step-positions-stale",
        what="A decode step runs with the positions of the step before it.",
        module="*model",
        apply=_step_positions_stale,
        parameters=(_block("step", 3, "which decode step, from 1"),),
        zoo=(),
    ),
    Fault(
        name="step-positions-restart",
        what="Decode steps count their positions from 0, without what the prompt took.",
        module="*model",
        apply=_step_positions_restart,
        zoo=("mm-mrope-generate",),
    ),
    Fault(
        name="step-nibble-order",
        what="The kernel for single tokens unpacks the halves of a packed byte in another order.",
        module=f"{MLP}.up_proj",
        apply=_step_nibbles,
        parameters=(LAYER,),
        needs=("layer.mlp.up_proj.weight",),
        zoo=("q-nibble-split",),
    ),
)
