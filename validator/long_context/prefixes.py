"""A prefix that two texts share: going on from its cache gives what computing it again gives.

Shape legend: T = tokens, V = vocabulary.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from validator.long_context.cache_layouts import token_dims
from validator.long_context.cache_views import layer_views
from validator.long_context.calling import cache_argument, device_of, stepped
from validator.long_context.driving import CacheWatch
from validator.long_context.noise import Band
from validator.long_context.position_errors import position_errors

__all__ = ["SharedPrefix", "judge_shared_prefix", "share_prefix"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """Two texts that go on from one prefix.

    Attributes:
        prefix: how many tokens they share.
        tokens: of each text, what follows the prefix, `[T]`.
        again: of each text, `[T, V]` logits with the prefix computed again.
        reused: the same, going on from a copy of the prefix's cache, one text after the other. All four are
            empty on a rank that returns nothing like logits.
        changed: of each layer, whether the prefix's own cache was changed by those that went on from copies;
            None where a layer doesn't show it.
    """

    prefix: Tensor
    tokens: tuple[Tensor, Tensor]
    again: tuple[Tensor, Tensor]
    reused: tuple[Tensor, Tensor]
    changed: tuple[bool | None, ...]


def share_prefix(model: nn.Module, text: Tensor, *, prefix: int) -> SharedPrefix | None:
    """Let two texts go on from one prefix, and compute both again.

    Args:
        model: this rank's candidate; it takes a cache.
        text: `[T]` int64; after the prefix come both ends.
        prefix: how many tokens are shared.

    Returns:
        What came of it, or None where the cache can't be copied.

    Raises:
        TargetError: the model fails.
    """
    argument, device = cache_argument(model), device_of(model)
    half = (len(text) - prefix) // 2
    ends = (text[prefix : prefix + half], text[prefix + half : prefix + 2 * half])
    given = text[None, :prefix].to(device)

    def ended(cache: Any, end: Tensor) -> Tensor:
        # The last tokens come one by one, as they are decoded.
        parts = [end[:-4], *(end[i : i + 1] for i in range(len(end) - 4, len(end)))]
        made = []
        for part in parts:
            logits, cache = stepped(model, part[None].to(device), cache=cache, argument=argument)
            made.append(logits if isinstance(logits, Tensor) else torch.empty(0, 0))
        return torch.cat(made)

    again = []
    for end in ends:
        _, fresh = stepped(model, given, cache=None, argument=argument)
        again.append(ended(fresh, end))
    _, shared = stepped(model, given, cache=None, argument=argument)
    dims, watch = token_dims(model, argument, shared), CacheWatch()
    before = watch.read(layer_views(shared, dims) or (), fed=prefix)
    try:
        copies = [copy.deepcopy(shared) for _ in ends]
    except Exception:  # a cache of an engine may refuse in any way
        return None
    reused = tuple(ended(kept, end) for kept, end in zip(copies, ends, strict=True))
    after = watch.read(layer_views(shared, dims) or (), fed=prefix)
    return SharedPrefix(
        prefix=text[:prefix],
        tokens=ends,
        again=(again[0], again[1]),
        reused=(reused[0], reused[1]),
        changed=tuple(
            None
            if is_.row_bytes is None
            else is_.changed is not None or (is_.seen, is_.held) != (was.seen, was.held)
            for was, is_ in zip(before, after, strict=True)
        ),
    )


def judge_shared_prefix(shared: SharedPrefix, measured: Callable[[Tensor], Band]) -> tuple[str, ...]:
    """Return what is wrong, as sentences; nothing where reuse gives the same.

    Bits that are equal are right. A port that is not deterministic may differ at each position by the noise
    that two runs have there.

    Args:
        shared: what was seen.
        measured: measures the noise of a text `[T]`; called for texts that differ alone.
    """
    problems = []
    dirty = [i for i, changed in enumerate(shared.changed) if changed]
    if dirty:
        layers = ", ".join(map(str, dirty[:4])) + (", ..." if len(dirty) > 4 else "")
        problems.append(
            f"the prefix's own cache changes while others go on from copies of it (layers {layers}): "
            "the copies share its memory"
        )
    texts = zip(shared.tokens, shared.again, shared.reused, strict=True)
    for number, (end, again, reused) in enumerate(texts, start=1):
        if torch.equal(again, reused):
            continue
        band = measured(torch.cat((shared.prefix, end)))
        noise = 2**0.5 * band.sigma[len(shared.prefix) :]
        errors = position_errors(cand=reused, band=replace(band, logits=again.double(), sigma=noise))
        if errors.onset is not None:
            sigma = float(noise[errors.onset])
            problems.append(
                f"text {number}, which goes on from the cache of a shared prefix of {len(shared.prefix)} "
                f"tokens, parts from the same text computed again, first at its token {errors.onset}: by "
                f"{float(errors.ratio[errors.onset]) * sigma:.3g}, and two runs' rounding makes {sigma:.3g}"
            )
    return tuple(problems)
