"""A prefix that two texts share: going on from its cache gives what computing it again gives.

Shape legend: T = tokens, V = vocabulary.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from validator.long_context.cache_views import layer_views
from validator.long_context.calling import cache_argument, device_of, ported
from validator.long_context.driving import CacheWatch

__all__ = ["SharedPrefix", "judge_shared_prefix", "share_prefix"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """Two texts that go on from one prefix.

    Attributes:
        prefix: how many tokens they share.
        tokens: of each text, what follows the prefix, `[T]`.
        again: of each text, `[T, V]` logits with the prefix computed again.
        reused: the same, going on from a copy of the prefix's cache, one text after the other.
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
            logits, cache = ported(model, part[None].to(device), cache=cache, argument=argument)
            made.append(logits)
        return torch.cat(made)

    again = []
    for end in ends:
        _, fresh = ported(model, given, cache=None, argument=argument)
        again.append(ended(fresh, end))
    _, shared = ported(model, given, cache=None, argument=argument)
    watch = CacheWatch()
    before = watch.read(layer_views(shared) or ())
    try:
        copies = [copy.deepcopy(shared) for _ in ends]
    except Exception:  # a cache of an engine may refuse in any way
        return None
    reused = tuple(ended(kept, end) for kept, end in zip(copies, ends, strict=True))
    after = watch.read(layer_views(shared) or ())
    return SharedPrefix(
        prefix=text[:prefix],
        tokens=ends,
        again=(again[0], again[1]),
        reused=(reused[0], reused[1]),
        changed=tuple(
            None if is_.row_bytes is None else is_.changed is not None or is_.seen != was.seen
            for was, is_ in zip(before, after, strict=True)
        ),
    )


def judge_shared_prefix(shared: SharedPrefix, *, noise: float, limit: float) -> tuple[str, ...]:
    """Return what is wrong, as sentences; nothing where reuse gives the same.

    Bits that are equal are right. A port that is not deterministic may differ by the noise of two runs.

    Args:
        shared: what was seen.
        noise: root mean square error of a logit by rounding.
        limit: how many times the noise of two runs the difference of a position may be.
    """
    problems = []
    dirty = [i for i, changed in enumerate(shared.changed) if changed]
    if dirty:
        layers = ", ".join(map(str, dirty[:4])) + (", ..." if len(dirty) > 4 else "")
        problems.append(
            f"the prefix's own cache changes while others go on from copies of it (layers {layers}): "
            "the copies share its memory"
        )
    for number, (again, reused) in enumerate(zip(shared.again, shared.reused, strict=True), start=1):
        apart = torch.where(again == reused, 0.0, again.double() - reused.double()).square().mean(-1).sqrt()
        over = (~(apart <= limit * 2**0.5 * noise)).nonzero().flatten().tolist()
        if over:
            problems.append(
                f"text {number}, which goes on from the cache of a shared prefix of {len(shared.prefix)} "
                f"tokens, parts from the same text computed again, first at its token {over[0]}: by "
                f"{float(apart[over[0]]):.3g}, and two runs' rounding makes {2**0.5 * noise:.3g}"
            )
    return tuple(problems)
