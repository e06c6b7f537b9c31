"""Which dim of a cache of bare tensors counts tokens: the one that grows when a token is fed."""

from typing import Any

import torch
from torch import nn

from validator.errors import TargetError
from validator.long_context.across_ranks import from_all_ranks
from validator.long_context.cache_views import pairs_in
from validator.long_context.calling import device_of, stepped

__all__ = ["token_dims"]


def token_dims(model: nn.Module, argument: str | None, cache: Any) -> tuple[int, int] | None:
    """Feed a model one token and then another, and see along which dim its keys and its values grow.

    All ranks have to call this. They feed tokens where any of them has such a cache, and as long as all can:
    a stage without layers of its own has none, and its neighbours would wait for it.

    Args:
        model: this rank's candidate, or the reference.
        argument: what it calls its cache; None where it takes none.
        cache: what it returned. It is left alone: the tokens are fed to a new one.

    Returns:
        The dims of keys and of values; None where the cache is no tuple of pairs of tensors, where they don't
        grow by one along one dim (those allocated ahead don't), or the model takes no single token.
    """
    is_asked = argument is not None and pairs_in(cache) is not None
    if not any(from_all_ranks(is_asked)):
        return None
    token = torch.zeros(1, 1, dtype=torch.int64, device=device_of(model))
    shapes, fed = [], None
    for _ in range(2):
        try:
            _, fed = stepped(model, token, cache=fed, argument=argument)
            has_failed = False
        except TargetError:
            has_failed = True
        if any(from_all_ranks(has_failed)):
            return None
        pairs = pairs_in(fed)
        if pairs is not None:
            shapes.append([tensor.shape for tensor in pairs[0]])  # now: tensors may be changed in place
    if not is_asked or len(shapes) < 2:
        return None
    keys, values = (_grown(before, after) for before, after in zip(*shapes, strict=True))
    return None if keys is None or values is None else (keys, values)


def _grown(before: torch.Size, after: torch.Size) -> int | None:
    """Return the one dim that is longer by one, all others being as they were."""
    grown = [dim for dim in range(len(before)) if after[dim] != before[dim]]
    return grown[0] if len(grown) == 1 and after[grown[0]] == before[grown[0]] + 1 else None
