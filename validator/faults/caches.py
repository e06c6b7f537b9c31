"""Faults of KV caches, as the attention of one forward pass shows them: other keys and values are read.

Shape legend: B = batch, K = key heads, T = keys, D = channels of a head.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from validator.errors import UsageError
from validator.faults.common import ATTENTION, LAYER, RANK
from validator.faults.decoder import Decoder
from validator.faults.fault import Fault, Parameter
from validator.faults.kernels import wrap_kernel

__all__ = ["FAULTS", "read_as_fnuz"]

_E4M3_MAX = 448.0


def _kv_shared_block(decoder: Decoder, *, layer: int, tokens: int) -> None:
    """Let the second sequence read the first one's block."""

    def read(x_BKTD: Tensor) -> Tensor:
        _demand_sequences(x_BKTD)
        shared = x_BKTD.clone()
        shared[1, :, :tokens] = x_BKTD[0, :, :tokens]
        return shared

    _read_otherwise(decoder, layer, read, read)


def _kv_no_block_table(decoder: Decoder, *, layer: int, tokens: int) -> None:
    """Read each sequence's prefix from the front of the pool, where blocks of all sequences lie in turn."""
    blocks = 2

    def read(x_BKTD: Tensor) -> Tensor:
        _demand_sequences(x_BKTD)
        if x_BKTD.shape[2] < blocks * tokens:
            raise UsageError(
                f"kv-no-block-table: {blocks} blocks of {tokens} tokens are more than the "
                f"{x_BKTD.shape[2]} of the input: give fewer tokens"
            )
        front = [x_BKTD[i % len(x_BKTD), :, :tokens] for i in range(blocks)]
        prefix = torch.cat(front, -2).expand(len(x_BKTD), -1, -1, -1)
        return torch.cat((prefix, x_BKTD[:, :, blocks * tokens :]), -2)

    _read_otherwise(decoder, layer, read, read)


def _kv_scale_ignored(decoder: Decoder, *, layer: int) -> None:
    """Multiply by the scale what was written to the FP8 cache undivided."""

    def read(x_BKTD: Tensor) -> Tensor:
        scale = x_BKTD.abs().max().float() / _E4M3_MAX
        return (x_BKTD.to(torch.float8_e4m3fn).float() * scale).to(x_BKTD.dtype)

    _read_otherwise(decoder, layer, read, None)


def _kv_fnuz(decoder: Decoder, *, layer: int) -> None:
    """Read float8_e4m3fn bits of the cache as float8_e4m3fnuz."""
    _read_otherwise(decoder, layer, read_as_fnuz, read_as_fnuz)


def read_as_fnuz(x: Tensor) -> Tensor:
    """Return `[*]` as it comes from an FP8 cache that is read in another format than it was written in."""
    scale = x.abs().max().float() / _E4M3_MAX
    stored = (x.float() / scale).to(torch.float8_e4m3fn)
    return (stored.view(torch.float8_e4m3fnuz).float() * scale).to(x.dtype)


def _read_otherwise(
    decoder: Decoder,
    layer: int,
    keys: Callable[[Tensor], Tensor],
    values: Callable[[Tensor], Tensor] | None,
) -> None:
    def kernel(
        inner: Any, attention: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        value = value if values is None else values(value)
        return inner(attention, query, keys(key), value, *args, **kwargs)

    wrap_kernel(decoder.layer(layer).self_attn, kernel)


def _demand_sequences(x_BKTD: Tensor) -> None:
    if len(x_BKTD) < 2:
        raise UsageError("one sequence can't read another's block of the cache: give a batch of 2 or more")


def _tokens(default: int) -> Parameter:
    return Parameter(name="tokens", kind=int, default=default, what="how many tokens a block holds")


_NEEDS = ("layer.self_attn.num_key_value_groups",)

FAULTS = (
    Fault(
        name="kv-shared-block",
        what="The second sequence finds the first one's block in the prefix cache, though its tokens differ.",
        module=ATTENTION,
        apply=_kv_shared_block,
        parameters=(LAYER, _tokens(16)),
        needs=_NEEDS,
        zoo=("kv-prefix-hash-drops-token",),
    ),
    Fault(
        name="kv-no-block-table",
        what="A prefix is read from the front of the paged cache, not through the block table.",
        module=ATTENTION,
        apply=_kv_no_block_table,
        parameters=(LAYER, _tokens(8)),
        needs=_NEEDS,
        zoo=("kv-prefix-hit-no-blocktable",),
    ),
    Fault(
        name="kv-scale-ignored",
        what="Keys are written to an FP8 cache without the scale that they are read with.",
        module=ATTENTION,
        apply=_kv_scale_ignored,
        parameters=(LAYER, RANK),
        needs=_NEEDS,
        zoo=("kv-fp8-scale-ignored",),
    ),
    Fault(
        name="kv-fnuz",
        what="An FP8 cache is written as float8_e4m3fn and read as float8_e4m3fnuz.",
        module=ATTENTION,
        apply=_kv_fnuz,
        parameters=(LAYER, RANK),
        needs=_NEEDS,
        zoo=("kv-fp8-fnuz-decode",),
    ),
)
