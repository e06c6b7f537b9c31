"""The one prefill of each generation: the arguments that make a model compute all of its steps at once.

Tokens are those that the candidate consumed. Masks, positions and all else come from the reference's own run
where that made the same steps, so that a candidate that restarts its positions is told by them.

Shape legend: B = sequences, S = tokens of all steps, D = channels.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from validator.align.derived import concatenated
from validator.align.edges import is_mask
from validator.align.steps import Generation, NotOnePrefillError, Step, token_sizes, tokens_of
from validator.capturing.records import TensorRef

__all__ = ["prefill_arguments"]

_CACHES = ("use_cache", "past_key_values", "cache", "cache_params", "cache_position")


def prefill_arguments(
    generation: Generation, *, ref: Generation | None, reference: nn.Module
) -> dict[str, Any]:
    """Return the keyword arguments with which the reference computes all steps of a generation at once.

    Args:
        generation: of the candidate.
        ref: the reference's own, or None where it was not run in steps.
        reference: the trusted model.

    Raises:
        NotOnePrefillError: ranks have tokens of the same sequences, or some argument has no counterpart in a
            prefill.
    """
    total = generation.tokens
    like = ref if ref is not None and _sizes(ref) == _sizes(generation) else None
    arguments: dict[str, Any] = {**_tokens(generation, reference)}
    (batch,) = {len(tokens) for tokens in arguments.values()}
    source = like or (ref if ref is not None and _sizes(ref)[:1] == _sizes(generation)[:1] else generation)
    if ref is not None:
        _require_one_batch(batch, ref)
    holders = _holders(source)
    steps = [_arguments(step, holders) for step in source.steps]
    if like is None and source is not generation:
        steps = steps[:1]
    mask = _mask(source.steps, [_arguments(step, holders) for step in source.steps], batch, total)
    if mask is not None:
        arguments["attention_mask"] = mask
    positions = _positions(steps if like is not None else steps[:1], total)
    if positions is not None:
        arguments["position_ids"] = positions
    arguments |= _others(steps, [step.tokens for step in source.steps][: len(steps)], batch, total)
    if len(generation.kept) < total:
        arguments["logits_to_keep"] = torch.tensor(generation.kept)
    arguments["use_cache"] = False
    return _accepted(arguments, reference)


def _require_one_batch(batch: int, ref: Generation) -> None:
    """Demand that the ranks' tokens make up the sequences of the reference's own run.

    Raises:
        NotOnePrefillError: they do not: ranks have tokens of the same sequences, say.
    """
    known = ref.batches[min(ref.batches)]
    if batch != known:
        raise NotOnePrefillError(
            f"the ranks' tokens make up {batch} sequences, and the reference's run has {known}; "
            "what ranks have of one sequence each can't be put together step by step"
        )


def _sizes(generation: Generation) -> list[int]:
    return [step.tokens for step in generation.steps]


def _arguments(step: Step, holders: Sequence[int]) -> Mapping[str, Any]:
    """Return what a step was given, of all sequences where ranks have some each."""
    first, *others = (step.calls[rank].inputs for rank in holders)
    if not others:
        return first
    sizes = [token_sizes(step.calls[rank]) for rank in holders]
    joined = dict(first)
    for path, value in first.items():
        parts = [value, *(inputs.get(path) for inputs in others)]
        tensors = [part for part in parts if isinstance(part, TensorRef) and part.meta.shape]
        if len(tensors) == len(parts) and all(
            size is not None and part.meta.shape[0] == size[0]
            for part, size in zip(tensors, sizes, strict=True)
        ):
            joined[path] = concatenated(tensors, dim=0)
    return joined


def _holders(generation: Generation) -> list[int]:
    """Return the ranks that have a part of the batch of their own; the others have a copy of one."""
    known: list[list[Tensor]] = []
    holders = []
    for rank in sorted(generation.batches):
        given = [tokens_of(step.calls[rank]) for step in generation.steps]
        if all(tensor is not None for tensor in given):
            of_rank = [tensor.read() for tensor in given if tensor is not None]
            if not any(all(map(_are_equal, of_rank, other)) for other in known):
                known.append(of_rank)
                holders.append(rank)
    return holders


def _tokens(generation: Generation, reference: nn.Module) -> dict[str, Tensor]:
    """Return `input_ids` `[B, S]`, or `inputs_embeds` `[B, S, D]` where some step was given these."""
    holders = _holders(generation)
    given = [[tokens_of(step.calls[rank]) for rank in holders] for step in generation.steps]
    steps = [torch.cat([x.read() for x in parts if x is not None], 0) for parts in given]
    if all(step.dim() == 2 for step in steps):
        return {"input_ids": torch.cat(steps, 1)}
    embed = getattr(reference, "get_input_embeddings", None)
    if any(step.dim() == 2 for step in steps) and embed is None:
        raise NotOnePrefillError(
            "some steps were given token ids and some embeddings, and the reference has no "
            "get_input_embeddings() to make one of the other"
        )
    with torch.no_grad():
        whole = [step if step.dim() == 3 or embed is None else embed()(step) for step in steps]
    return {"inputs_embeds": torch.cat([step.to(whole[0].dtype) for step in whole], 1)}


def _are_equal(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and torch.equal(first, second)


def _mask(steps: Sequence[Step], given: Sequence[Mapping[str, Any]], batch: int, total: int) -> Tensor | None:
    """Return `[B, S]` which tokens are real, or None for all: the last mask of two dims, grown to all."""
    for arguments in reversed(given):
        mask = arguments.get("attention_mask")
        if isinstance(mask, TensorRef) and len(mask.meta.shape) == 2:
            grown = mask.read()[:, :total]
            missing = total - grown.shape[1]
            return torch.cat([grown, grown.new_ones(len(grown), missing)], 1) if missing else grown
    return _seen_tokens(steps, given, batch, total)


def _seen_tokens(
    steps: Sequence[Step], given: Sequence[Mapping[str, Any]], batch: int, total: int
) -> Tensor | None:
    """Return which tokens real queries see, of masks `[B, 1, s, keys]` that a run made beforehand.

    Of padding not even its own query is a real one. The last token is real, those that its query sees are,
    and what these see in turn: within a window none sees all of them.
    """
    real = torch.zeros(batch, total, dtype=torch.bool)
    real[:, min(total, steps[-1].stop) - 1] = True
    found = False
    for step, arguments in zip(reversed(steps), reversed(given), strict=True):
        masks = [
            value.read()
            for path, value in arguments.items()
            if isinstance(value, TensorRef)
            if is_mask(path.partition("/")[0]) and len(value.meta.shape) == 4
        ]
        if step.stop > total or any(mask.shape[-2] != step.tokens for mask in masks):
            continue
        shown = [_shown_tokens(mask, step, batch) for mask in masks]
        found |= bool(shown)
        for i in reversed(range(step.tokens)):
            for sees in shown:
                real[:, : step.stop] |= sees[:, i] & real[:, step.start + i, None]
    return None if not found or bool(real.all()) else real.to(torch.int64)


def _shown_tokens(mask: Tensor, step: Step, batch: int) -> Tensor:
    """Return `[B, s, t]` which of the tokens so far each query of a step sees.

    A cache of all places has the first token first; one that rolls has the step's last token last.
    """
    shown = (mask if mask.dtype == torch.bool else mask >= 0).any(1).expand(batch, -1, -1)
    missing = step.stop - shown.shape[-1]
    return torch.nn.functional.pad(shown, (missing, 0)) if missing > 0 else shown[..., : step.stop]


def _positions(steps: Sequence[Mapping[str, Any]], total: int) -> Tensor | None:
    """Return `[*, S]`: those of the steps, going on by one where there are fewer."""
    given = [arguments.get("position_ids") for arguments in steps]
    if not given or not all(isinstance(value, TensorRef) for value in given):
        return None
    known = torch.cat([value.read() for value in given if isinstance(value, TensorRef)], -1)
    missing = total - known.shape[-1]
    further = known[..., -1:] + torch.arange(1, missing + 1)
    return torch.cat([known, further], -1) if missing else known


def _others(
    steps: Sequence[Mapping[str, Any]], counts: Sequence[int], batch: int, total: int
) -> dict[str, Any]:
    """Return what is neither tokens, masks, positions nor caches, tensors of tokens put end to end."""
    found: dict[str, Any] = {}
    known = ("input_ids", "inputs_embeds", "attention_mask", "position_ids", "logits_to_keep", *_CACHES)
    for path, first in steps[0].items():
        name = path.partition("/")[0]
        if name in known or first is None or "past" in name:
            continue
        if name != path:
            raise NotOnePrefillError(f"the model's argument {path!r} is nested and can't be rebuilt")
        if not isinstance(first, TensorRef):
            found[path] = first
            continue
        values = [arguments.get(path) for arguments in steps]
        tensors = [value.read() for value in values if isinstance(value, TensorRef)]
        sizes = [x.shape[1] if x.dim() > 1 else 0 for x in tensors]
        if sizes == list(counts) and sum(counts) == total:
            found[path] = torch.cat(tensors, 1)
        elif not tensors[0].is_floating_point() and tensors[0].shape == (batch, counts[0]):
            # Types of the prompt's tokens: what is written after it is text, type 0.
            rest = tensors[0].new_zeros(batch, total - counts[0])
            found[path] = torch.cat([tensors[0], rest], 1)
        else:
            found[path] = tensors[0]
    return found


def _accepted(arguments: Mapping[str, Any], reference: nn.Module) -> dict[str, Any]:
    """Return the arguments that the model takes."""
    parameters = inspect.signature(type(reference).forward).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        own = set(parameters) | set(arguments) - {"use_cache", "logits_to_keep"}
    else:
        own = set(parameters)
    return {name: value for name, value in arguments.items() if name in own}
