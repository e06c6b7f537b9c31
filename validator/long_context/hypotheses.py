"""What would explain an error that begins at a position: the reference with that fault of its own.

Each hypothesis changes the reference while it runs in float64. It explains the candidate where the positions
that are outside of their noise go back into it.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from validator.errors import ValidatorError
from validator.long_context.contexts import Context, Window
from validator.long_context.noise import Band, oracle_logits
from validator.long_context.position_errors import PositionErrors, position_errors
from validator.wrapping import replaced

__all__ = ["Hypothesis", "explanation", "hypotheses"]

_EXPLAINED = 0.1
"""Of the positions outside of their noise, the part that may stay outside."""

_POSITIONS = 1 << 16
"""Of texts that hypotheses are tried on; float16 holds none beyond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A fault of the whole run.

    Attributes:
        what: names it, to be read after "it is what ... makes".
        altered: plants it in the reference inside of a block.
    """

    what: str
    altered: Callable[[nn.Module], Any]


def hypotheses(context: Context) -> tuple[Hypothesis, ...]:
    """Return what can be tried on a model, likeliest first."""
    off_by_one = [
        Hypothesis(
            what=f"{_a(replace(window, size=size))} in place of {window.size}, off by one",
            altered=_window(window, size),
        )
        for window in context.distinct
        for size in (window.size - 1, window.size + 1)
        if size > 0
    ]
    none = [
        Hypothesis(what=f"attention to all tokens in place of {_a(window)}", altered=_window(window, 1 << 30))
        for window in context.distinct
    ]
    positions = [
        Hypothesis(
            what=f"positions in {str(dtype).removeprefix('torch.')} in the rotary embedding",
            altered=_positions(dtype),
        )
        for dtype in (torch.bfloat16, torch.float16)
    ]
    return (*off_by_one, *positions, *none)


def explanation(
    build: Callable[[], nn.Module],
    *,
    cand: Tensor,
    tokens: Tensor,
    band: Band,
    errors: PositionErrors,
    context: Context,
    dtype: torch.dtype,
) -> str | None:
    """Return what makes the candidate's error, or None where no hypothesis does.

    Args:
        build: builds the reference.
        cand: `[T, V]` candidate logits.
        tokens: `[T]` int64.
        band: of the reference as it is.
        errors: of the candidate against it.
        context: of the reference.
        dtype: of the candidate's parameters.
    """
    if not errors.outside:
        return None
    # What comes behind the first wrong positions has little to add, and long texts take long.
    end = min(len(tokens), max(errors.outside[0] + 128, 2 * errors.outside[0]), _POSITIONS)
    outside = [position for position in errors.outside if position < end]
    for hypothesis in hypotheses(context):
        try:
            reference = build()
            logits, _ = oracle_logits(
                reference, tokens[:end], dtype=dtype, altered=hypothesis.altered(reference)
            )
        except (ValidatorError, _NotThereError):
            continue
        altered = Band(logits=logits, sigma=band.sigma[:end], has_chosen=band.has_chosen)
        left = position_errors(cand=cand[:end], band=altered).outside
        if len(left) <= _EXPLAINED * len(outside):
            return hypothesis.what
    return None


class _NotThereError(Exception):
    """The model has nothing to plant a hypothesis in."""


def _a(window: Window) -> str:
    return f"{'an' if window.is_chunked else 'a'} {window}"


def _window(window: Window, changed: int) -> Callable[[nn.Module], Any]:
    @contextmanager
    def altered(model: nn.Module) -> Iterator[None]:
        name = "attention_chunk_size" if window.is_chunked else "sliding_window"
        owners = {id(owner): owner for module in model.modules() for owner in _owners(module)}
        with ExitStack() as stack:
            found = [
                stack.enter_context(replaced(owner, name, changed))
                for owner in owners.values()
                if getattr(owner, name, None) == window.size
            ]
            if not found:
                raise _NotThereError
            yield

    return altered


def _owners(module: nn.Module) -> list[Any]:
    config: Any = getattr(module, "config", None)
    return [module] if config is None else [module, config]


def _positions(dtype: torch.dtype) -> Callable[[nn.Module], Any]:
    @contextmanager
    def altered(model: nn.Module) -> Iterator[None]:
        # Looked up, since a cast would round nothing in the reference's own arithmetic.
        table = torch.arange(_POSITIONS).to(dtype).long()

        def rounded(module: nn.Module, args: Any, kwargs: Any) -> Any:
            def cast(value: Any) -> Any:
                is_positions = isinstance(value, Tensor) and value.dtype == torch.int64
                return table.to(value.device)[value] if is_positions else value

            return tuple(map(cast, args)), {name: cast(value) for name, value in kwargs.items()}

        rotary = [module for module in model.modules() if "rotary" in type(module).__name__.lower()]
        if not rotary:
            raise _NotThereError
        handles = [module.register_forward_pre_hook(rounded, with_kwargs=True) for module in rotary]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    return altered
