"""Steps of a run: calls of the model that continue one another, as decode steps continue a prefill.

A call continues the one before it, or the last that had its cache, where its attention mask covers all
tokens so far, its positions go on, or the cache that it is handed holds them. What such calls compute, put
end to end, is one prefill of all tokens.

Shape legend: B = sequences, s = tokens of a step, t = tokens so far, K = positions whose logits are kept,
V = vocabulary, D = channels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch

from validator.capturing.records import Call, ObjectRef, RankCapture, TensorRef
from validator.errors import MismatchError

__all__ = ["Generation", "NotOnePrefillError", "Step", "find_generations", "token_sizes", "tokens_of"]


class NotOnePrefillError(MismatchError):
    """Calls continue one another, and yet no single prefill computes the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call of the model, on some of a generation's tokens.

    Attributes:
        calls: by rank.
        start, stop: its tokens, counted from the first of the generation.
        kept: the positions whose logits it returned, counted likewise.
    """

    calls: Mapping[int, Call]
    start: int
    stop: int
    kept: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """How many tokens it was given."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Calls that continue one another, or a single one.

    Attributes:
        steps: in order.
        batches: sequences on each rank.
    """

    steps: tuple[Step, ...]
    batches: Mapping[int, int] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """How many tokens all steps have."""
        return self.steps[-1].stop

    @property
    def kept(self) -> tuple[int, ...]:
        """The positions whose logits some step returned."""
        return tuple(position for step in self.steps for position in step.kept)


def find_generations(captures: Sequence[RankCapture]) -> tuple[Generation, ...]:
    """Return the generations of a run in order, each with all its steps.

    Args:
        captures: every rank's.

    Returns:
        Nothing where the model's own calls were not captured, take no tokens, or are others on each rank.

    Raises:
        NotOnePrefillError: calls continue one another, but not each sequence its own.
    """
    roots = {capture.rank: _outermost(capture) for capture in captures}
    counts = {len(calls) for calls in roots.values()}
    leader = next((rank for rank, calls in roots.items() if calls and tokens_of(calls[0]) is not None), None)
    if leader is None or len(counts) != 1:
        return ()
    sizes = {rank: [token_sizes(call) for call in calls] for rank, calls in roots.items()}
    lengths = {tuple(None if size is None else size[1] for size in found) for found in sizes.values()}
    if len(lengths) != 1 or any(size is None for size in sizes[leader]):
        return ()
    generations = []
    for numbers in _runs(roots[leader]):
        batches = {rank: found[numbers[0]] for rank, found in sizes.items()}
        stops = list(accumulate(size[1] for i in numbers if (size := sizes[leader][i]) is not None))
        steps = [
            Step(
                calls={rank: calls[i] for rank, calls in roots.items()},
                start=stop - (size[1] if (size := sizes[leader][i]) is not None else 0),
                stop=stop,
                kept=_kept(roots[leader][i], stop),
            )
            for i, stop in zip(numbers, stops, strict=True)
        ]
        generation = Generation(
            steps=tuple(steps), batches={rank: size[0] for rank, size in batches.items() if size is not None}
        )
        if len(steps) > 1:
            _require_own_sequences(generation, leader)
        generations.append(generation)
    return tuple(generations)


def tokens_of(call: Call) -> TensorRef | None:
    """Return what a call of the model was given for tokens: `[B, s]` ids, or `[B, s, D]` embeddings."""
    for path in ("input_ids", "inputs_embeds"):
        value = call.inputs.get(path)
        if isinstance(value, TensorRef) and len(value.meta.shape) == (2 if path == "input_ids" else 3):
            return value
    return None


def token_sizes(call: Call) -> tuple[int, int] | None:
    """Return B and s of a call of the model, or of a stage that is given activations; None if unknown."""
    given = tokens_of(call)
    if given is None:
        tensors = [value for value in call.inputs.values() if isinstance(value, TensorRef)]
        given = next((x for x in tensors if len(x.meta.shape) == 3 and "float" in x.meta.dtype), None)
    return None if given is None else (given.meta.shape[0], given.meta.shape[1])


def _outermost(capture: RankCapture) -> list[Call]:
    calls = [call for call in capture.calls if call.parent is None and not call.module]
    return sorted(calls, key=lambda call: call.start)


def _runs(calls: Sequence[Call]) -> list[list[int]]:
    """Group calls that continue one another; each group holds their numbers.

    Calls of several generations may alternate: a call goes on with its cache, wherever that was used last.
    """
    groups: list[list[int]] = []
    totals: list[int] = []
    holders: dict[int, int] = {}
    for i, call in enumerate(calls):
        tokens = _tokens(call)
        given = {item.number for item in call.objects[0].values() if _is_cache(item)}
        at = max((holders[number] for number in given & holders.keys()), default=len(groups) - 1)
        if groups and _continues(calls[groups[at][-1]], call, totals[at]):
            groups[at].append(i)
            totals[at] += tokens
        else:
            at = len(groups)
            groups.append([i])
            totals.append(tokens)
        holders |= dict.fromkeys(_caches(call), at)
    return groups


def _caches(call: Call) -> set[int]:
    return {item.number for side in call.objects for item in side.values() if _is_cache(item)}


def _continues(before: Call, call: Call, total: int) -> bool:
    """Tell whether a call goes on where the one before it ended, after `total` tokens.

    Raises:
        NotOnePrefillError: it goes on with a cache that holds another number of tokens.
    """
    if token_sizes(before) is None or token_sizes(before) != (_batch(call), _tokens(before)):
        return False
    had = _caches(before)
    caches = [item for item in call.objects[0].values() if _is_cache(item) and item.number in had]
    if any(cache.length == 0 for cache in caches):
        return False
    if not caches and before.inputs.get("use_cache") is False:
        return False
    # A mask of more tokens than the call has is of what something kept; positions may be those of a window.
    is_carried = bool(caches) or call.inputs.get("use_cache") is True or _has_past(call)
    if _mask_covers(call, total) or (is_carried and _positions_follow(before, call)):
        return True
    lengths = {cache.length for cache in caches if cache.length is not None}
    if lengths and total not in lengths:
        raise NotOnePrefillError(
            f"call {call.n} of the model goes on with a cache of {max(lengths)} tokens, and the calls before "
            f"it had {total}: tokens were taken back or computed twice"
        )
    if lengths:
        return True
    if caches:
        return not (_tokens(call) > 1 and _starts_at_zero(call))
    return _holds_tokens(call, total)


def _is_cache(item: ObjectRef) -> bool:
    return item.length is not None or "cache" in item.type.lower()


def _mask_covers(call: Call, total: int) -> bool:
    mask = call.inputs.get("attention_mask")
    shape = mask.meta.shape if isinstance(mask, TensorRef) else ()
    return total > 0 and len(shape) == 2 and shape[1] == total + _tokens(call)


def _positions_follow(before: Call, call: Call) -> bool:
    for path in ("position_ids", "cache_position"):
        own, last = call.inputs.get(path), before.inputs.get(path)
        if isinstance(own, TensorRef) and isinstance(last, TensorRef) and own.meta.shape and last.meta.shape:
            starts, ends = own.read()[..., :1], last.read()[..., -1:]
            if starts.shape == ends.shape and starts.numel() and torch.equal(starts, ends + 1):
                return True
    return False


def _starts_at_zero(call: Call) -> bool:
    for path in ("position_ids", "cache_position"):
        value = call.inputs.get(path)
        if isinstance(value, TensorRef) and value.meta.shape and value.meta.shape[-1]:
            return not bool(value.read()[..., 0].any())
    return False


def _holds_tokens(call: Call, total: int) -> bool:
    """Tell whether a call was given keys `[B, heads, t, D]` of all tokens so far, in a tuple say."""
    shapes = [value.meta.shape for path, value in call.inputs.items() if _is_past(path, value)]
    return bool(shapes) and all(len(shape) == 4 and total in shape[1:3] for shape in shapes)


def _has_past(call: Call) -> bool:
    return any(_is_past(path, value) for path, value in call.inputs.items())


def _is_past(path: str, value: Any) -> bool:
    return isinstance(value, TensorRef) and ("past" in path or "cache" in path) and "position" not in path


def _batch(call: Call) -> int:
    sizes = token_sizes(call)
    return 0 if sizes is None else sizes[0]


def _tokens(call: Call) -> int:
    sizes = token_sizes(call)
    return 0 if sizes is None else sizes[1]


def _kept(call: Call, stop: int) -> tuple[int, ...]:
    """Return the positions whose logits a call returned: all, those it was asked for, or the last ones.

    A model that returns no more than a tensor, or `[B, V]` of the last position, returns logits.
    """
    tokens = _tokens(call)
    logits = next((call.outputs[path] for path in ("logits", "", "0") if path in call.outputs), None)
    shape = logits.meta.shape if isinstance(logits, TensorRef) and "float" in logits.meta.dtype else ()
    is_last = len(shape) == 2 and shape[0] == _batch(call)
    count = 1 if is_last else shape[1] if len(shape) == 3 and 0 < shape[1] <= tokens else tokens
    asked = call.inputs.get("logits_to_keep")
    if isinstance(asked, TensorRef) and asked.meta.shape == (count,):
        return tuple(stop - tokens + int(i) % tokens for i in asked.read())
    return tuple(range(stop - min(count, tokens), stop))


def _require_own_sequences(generation: Generation, leader: int) -> None:
    """Demand that a step's rows go on with the rows of the step before.

    A beam search goes on with whichever are best, and reorders the cache: prompts that are repeated, once a
    beam, go on differently.

    Raises:
        NotOnePrefillError: it may be one.
    """
    given = [tokens_of(step.calls[leader]) for step in generation.steps]
    ids = [tensor.read() for tensor in given if tensor is not None and len(tensor.meta.shape) == 2]
    # A prompt may be given in chunks. One of a single token, as every text begins with, tells nothing.
    is_prompt = [x.shape[1] > 1 for x in ids]
    written = is_prompt.index(False, 1) if False in is_prompt[1:] else len(ids)
    prompts, following = ids[:written], ids[written:]
    if len(ids) < len(given) or not following or sum(x.shape[1] for x in prompts) < 2:
        return
    _, of_prompt = torch.unique(torch.cat(prompts, 1), dim=0, return_inverse=True)
    for prompt in of_prompt.unique():
        rows = torch.cat(following, 1)[of_prompt == prompt]
        if not bool((rows == rows[:1]).all()):
            raise NotOnePrefillError(
                "a prompt is there several times and goes on differently, as in a beam search, which "
                "reorders its cache; generate one sequence a prompt, or greedily"
            )
