"""Calls of a candidate with a cache, whatever it calls its argument.

Shape legend: s = tokens of a call, V = vocabulary.
"""

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from validator.capturing.compiled import seen_through
from validator.errors import TargetError
from validator.target_file import describe

__all__ = [
    "cache_argument",
    "cache_options",
    "configured_cache",
    "device_of",
    "ported",
    "returned_cache",
    "stepped",
]

_NAMES = ("cache", "past_key_values")


def cache_argument(model: nn.Module) -> str | None:
    """Return what a model's forward calls its cache, or None where it takes none."""
    names = inspect.signature(seen_through(model).forward).parameters
    return next((name for name in _NAMES if name in names), None)


def cache_options(model: nn.Module) -> dict[str, Any]:
    """Return what asks a model that takes a cache for one: `use_cache`, where its forward knows it."""
    parameters = inspect.signature(seen_through(model).forward).parameters
    knows = "use_cache" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return {"use_cache": True} if knows else {}


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model's first parameter."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def ported(
    model: nn.Module, ids: Tensor, *, cache: Any, argument: str | None, fed: int = 0, side: str = "candidate"
) -> tuple[Tensor, Any]:
    """Call a model on `[1, s]` tokens; return logits `[s, V]` on the CPU, and its cache.

    Raises:
        TargetError: as `stepped` does, or the model returns no logits for each token.
    """
    logits, back = stepped(model, ids, cache=cache, argument=argument, fed=fed, side=side)
    if isinstance(logits, TargetError):
        raise logits
    return logits, back


def stepped(
    model: nn.Module, ids: Tensor, *, cache: Any, argument: str | None, fed: int = 0, side: str = "candidate"
) -> tuple[Tensor | TargetError, Any]:
    """Call this rank's part of a model on `[1, s]` tokens.

    Args:
        model: this rank's candidate.
        ids: on its device.
        cache: what an earlier call returned, or None for a new one.
        argument: what the model calls its cache; None to run without.
        fed: how many tokens it has been given before, for a message.
        side: what to call the model in a message.

    Returns:
        `[s, V]` logits on the CPU, and its cache. A stage of a pipeline before the last returns none, or
        hidden states of another width; of what is no `[1, s, *]` there is the error in place of logits, to
        be raised where no other rank has them.

    Raises:
        TargetError: the model fails, or returns no cache where it is asked.
    """
    options = {} if argument is None else {argument: cache, **cache_options(model)}
    try:
        with torch.no_grad():
            made = model(input_ids=ids, **options)
    except Exception as error:  # the port's code may raise anything
        after = f" after {fed}" if fed else ""
        raise TargetError(f"the {side} fails on {ids.shape[1]} tokens{after}: {describe(error)}") from error
    named = made.get("logits") if isinstance(made, Mapping) else getattr(made, "logits", made)
    logits = made[0] if isinstance(made, tuple) else named
    back = None if argument is None else returned_cache(made, argument)
    back = cache if back is None else back
    if argument is not None and back is None:
        raise TargetError(
            f"the {side} takes {argument!r} and returned none; return the cache beside the logits"
        )
    if not isinstance(logits, Tensor) or logits.dim() != 3 or logits.shape[:2] != ids.shape:
        shown = list(logits.shape) if isinstance(logits, Tensor) else type(made).__name__
        return (
            TargetError(
                f"the {side} returned {shown} for tokens {list(ids.shape)}; it must return logits of each"
            ),
            back,
        )
    if hasattr(logits, "full_tensor"):
        logits = logits.full_tensor()
    return logits[0].detach().cpu(), back


def configured_cache(model: nn.Module, total: int) -> Any:
    """Return the cache that a model's generation configuration asks for; None for the model's own."""
    asked = getattr(getattr(model, "generation_config", None), "cache_implementation", None)
    if asked not in ("static", "quantized"):
        return None
    library: Any = importlib.import_module("transformers")
    if asked == "static":
        return library.StaticCache(config=model.config, max_cache_len=total)
    options = getattr(model.generation_config, "cache_config", None) or {}
    return library.QuantizedCache(config=model.config, **{"backend": "fp8", **dict(options)})


def returned_cache(made: Any, argument: str) -> Any:
    """Return the cache in what a model returned, under its argument's name or second of a tuple, or None."""
    if isinstance(made, tuple):
        return made[1] if len(made) > 1 else None
    # transformers warns when the name it gave up is read.
    names = made.keys() if hasattr(made, "keys") else vars(made) if hasattr(made, "__dict__") else ()
    name = next((name for name in (argument, *_NAMES) if name in names), None)
    if name is None:
        return None
    return made[name] if isinstance(made, Mapping) else getattr(made, name)
