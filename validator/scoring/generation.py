"""Generate with a model, or follow a text that another one generated, token by token.

A model that takes a cache is fed one token a step; any other the whole text so far.

Shape legend: B = sequences, P = tokens of the prompts, T = steps, V = vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from validator.capturing.values import flatten
from validator.errors import MismatchError, TargetError, ValidatorError
from validator.long_context.calling import cache_argument, cache_options, returned_cache
from validator.scoring.sampling import Sampling, processed, shared_noise
from validator.target import moved
from validator.target_file import describe

__all__ = ["all_logits", "called", "chosen", "follow", "generate"]


def generate(model: nn.Module, prompts: Tensor, *, steps: int, sampling: Sampling) -> Tensor:
    """Continue prompts.

    Args:
        model: called as `model(input_ids=...)`.
        prompts: `[B, P]` integer.
        steps: how many tokens.
        sampling: how each is chosen.

    Returns:
        `[B, T]` int64 on the CPU, as long as asked, whatever ends a text.

    Raises:
        MismatchError: the model returns no logits.
    """
    texts: list[Tensor] = []

    def choose(output: Any, step: int) -> Tensor:
        texts.append(chosen(processed(all_logits(output)[:, -1], sampling), sampling, step=step))
        return texts[-1]

    _decode(model, prompts, choose, steps)
    return torch.stack(texts, dim=1)


def follow(model: nn.Module, prompts: Tensor, text: Tensor) -> Tensor:
    """Return a model's logits at each step of a text that is given.

    Args:
        model: called as `model(input_ids=...)`.
        prompts: `[B, P]` integer.
        text: `[B, T]` integer, what follows them.

    Returns:
        `[B, T, V]` on the CPU, in the model's format: row t is what its token t is to be chosen from.

    Raises:
        MismatchError: the model returns no logits. All steps are done by then: other ranks may wait for
            what this one hands on.
    """
    rows: list[Tensor] = []
    missing: list[MismatchError] = []

    def choose(output: Any, step: int) -> Tensor:
        try:
            rows.append(all_logits(output)[:, -1])
        except MismatchError as error:
            missing.append(error)
        return text[:, step]

    _decode(model, prompts, choose, text.shape[1])
    if missing:
        raise missing[0]
    return torch.stack(rows, dim=1)


def chosen(scores: Tensor, sampling: Sampling, *, step: int) -> Tensor:
    """Choose a token of each sequence, `[B]` int64, from `[B, V]` scores and the noise that is shared."""
    noise = shared_noise(sampling, sequences=scores.shape[0], step=step, vocabulary=scores.shape[-1])
    return (scores.detach().cpu().to(torch.float64) + noise).argmax(dim=-1)


def all_logits(output: Any) -> Tensor:
    """Return `[B, S, V]` the logits in what a model returned, on the CPU, in its format.

    Raises:
        MismatchError: there are none.
    """
    leaves = flatten(output)
    found = leaves.get("logits", leaves.get("", leaves.get("0")))
    if isinstance(found, Tensor) and hasattr(found, "full_tensor"):
        found = found.full_tensor()
    if not isinstance(found, Tensor) or found.ndim != 3 or not found.is_floating_point():
        names = ", ".join(path or type(leaf).__name__ for path, leaf in leaves.items()) or "nothing"
        raise MismatchError(
            f"the model was called with input_ids and returned {names}; to generate it must return logits "
            "[sequences, tokens, vocabulary], bare, first of a tuple, or under the name logits"
        )
    return found.detach().to("cpu", copy=True)


def called(model: nn.Module, ids: Tensor, **arguments: Any) -> Any:
    """Call a model with tokens `[B, S]` alone, as this package generates, and return its output.

    Raises:
        TargetError: it fails.
    """
    try:
        return model(**moved({"input_ids": ids}, model), **arguments)
    except ValidatorError:
        raise
    except Exception as error:  # the model's code may raise anything
        given = ", ".join([f"input_ids {list(ids.shape)}", *arguments])
        raise TargetError(
            f"the model fails on {given}: {describe(error)}. To generate it is called with tokens, and a "
            "cache where its forward takes one"
        ) from error


@torch.no_grad()
def _decode(model: nn.Module, prompts: Tensor, choose: Callable[[Any, int], Tensor], steps: int) -> None:
    """Call a model step by step; `choose` is given what it returns and the step, and gives `[B]` tokens."""
    whole, given = prompts.cpu(), prompts.cpu()
    name = cache_argument(model)
    arguments: dict[str, Any] = {} if name is None else cache_options(model)
    for step in range(steps):
        output = called(model, given, **arguments)
        token = choose(output, step).to(torch.int64)[:, None]
        whole = torch.cat((whole, token), dim=1)
        cache = None if name is None else returned_cache(output, name)
        given = whole if cache is None else token
        if cache is not None:
            arguments[str(name)] = cache
