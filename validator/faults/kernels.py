"""How the attention kernel of one layer is replaced, and a plain attention to spoil.

Shape legend: B = batch, S = queries, T = keys, H = heads, K = key heads, D = channels of a head.
"""

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from validator.errors import UsageError
from validator.wrapping import replaced, wrap

__all__ = ["attend", "attention_scores", "hidden_keys", "spread_heads", "wrap_kernel"]


def wrap_kernel(attention: Any, kernel: Callable[..., Any]) -> None:
    """Let an attention module of transformers call another kernel.

    Args:
        attention: the module.
        kernel: called as `kernel(inner, attention, query, key, value, mask, **kwargs)` with the kernel in
            whose place it stands, `[B, H, S, D]` queries, `[B, K, T, D]` keys and values, and that kernel's
            own kind of mask. It returns `[B, S, H, D]` and the probabilities or None.

    Raises:
        UsageError: the module does not look its kernel up as those of transformers do.
    """
    modeling = sys.modules[type(attention).__module__]
    table = getattr(modeling, "ALL_ATTENTION_FUNCTIONS", None)
    if not hasattr(table, "get_interface"):
        raise UsageError(
            f"no attention kernel can be replaced in {modeling.__name__}: it has no table of them"
        )

    def forward(inner: Any, *args: Any, **kwargs: Any) -> Any:
        with replaced(modeling, "ALL_ATTENTION_FUNCTIONS", _Table(kernel=kernel, table=table)):
            return inner(*args, **kwargs)

    wrap(attention, forward)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    kernel: Callable[..., Any]
    table: Any

    def get_interface(self, name: str, default: Any) -> Callable[..., Any]:
        return functools.partial(self.kernel, self.table.get_interface(name, default))


def spread_heads(attention: Any, x_BKTD: Tensor) -> Tensor:
    """Return keys or values once for every query head: `[B, H, T, D]`."""
    return x_BKTD.repeat_interleave(attention.num_key_value_groups, 1)


def hidden_keys(mask: Tensor | None, *, queries: int, keys: int, device: torch.device) -> Tensor:
    """Return `[..., S, T]` boolean: the keys that a query must not see. No mask means a causal one."""
    if mask is None:
        shown = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
        return ~shown
    return ~mask if mask.dtype == torch.bool else mask < 0


def attention_scores(
    attention: Any, query: Tensor, key: Tensor, mask: Tensor | None, *, scaling: float, softcap: float | None
) -> Tensor:
    """Return float32 scores `[B, H, S, T]`, minus infinity where a key is hidden."""
    scores = query.float() @ spread_heads(attention, key).float().mT * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    hidden = hidden_keys(mask, queries=query.shape[2], keys=key.shape[2], device=query.device)
    return scores.masked_fill(hidden, -torch.inf)


def attend(attention: Any, scores: Tensor, value: Tensor) -> tuple[Tensor, None]:
    """Return what a kernel does, of scores `[B, H, S, T]` and values `[B, K, T, D]`."""
    mixed = torch.softmax(scores, -1) @ spread_heads(attention, value).float()
    return mixed.to(value.dtype).transpose(1, 2).contiguous(), None
