"""Functions that are called in another way before they reach aten operators.

Some operators depend on a dtype that they don't take as an argument, some have two results of which one
comes from another computation, and some are kernels of one backend that computes in no float64.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["REWRITTEN"]


def _nan_to_num(
    input: Tensor,  # noqa: A002 - as torch calls it
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
    **kwargs: Any,
) -> Tensor:
    """Say which numbers stand for the infinities: they are those of the dtype that the code sees."""
    info = torch.finfo(input.dtype) if input.is_floating_point() else torch.iinfo(input.dtype)
    posinf = info.max if posinf is None else posinf
    neginf = info.min if neginf is None else neginf
    return torch.nan_to_num(input, nan=nan, posinf=posinf, neginf=neginf, **kwargs)


def _with_mean(spread: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Compute a variance or standard deviation and the mean one after the other."""

    def both(
        input: Tensor,  # noqa: A002 - as torch calls it
        dim: int | tuple[int, ...] | None = None,
        *args: Any,
        keepdim: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        if isinstance(dim, bool):
            dim, kwargs = None, kwargs | {"unbiased": dim}
        names = ("unbiased", "keepdim")
        named = kwargs | {"keepdim": keepdim} | dict(zip(names, args, strict=False))
        return spread(input, dim, **named), input.mean(dim, keepdim=named["keepdim"])

    return both


def _logsumexp(
    input: Tensor,  # noqa: A002 - as torch calls it
    dim: int | list[int] | tuple[int, ...],
    keepdim: bool = False,
) -> Tensor:
    """Compute it in the steps that torch takes, each of which rounds to the input's dtype."""
    largest = input.amax(dim, keepdim=True)
    largest = torch.where(largest.abs() == math.inf, 0.0, largest)
    total = (input - largest).exp().sum(dim, keepdim=True)
    result = total.log() + largest
    return result if keepdim else result.squeeze(dim)


def _without_mkldnn(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a recurrent layer be computed step by step."""

    def stepwise(*args: Any, **kwargs: Any) -> Any:
        was_enabled = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        try:
            return function(*args, **kwargs)
        finally:
            torch._C._set_mkldnn_enabled(was_enabled)

    return stepwise


def _time_first(function: Callable[..., Any]) -> Callable[..., Any]:
    """Transpose what has the batch first outside of a recurrent layer, which does it in place."""

    def transposed(given: Tensor, state: Tensor, *args: Any) -> Any:
        *rest, batch_first = args
        if batch_first is not True or len(args) != _LAYER_ARGUMENTS:
            return function(given, state, *args)
        output, last = function(given.transpose(0, 1), state, *rest, False)
        return output.transpose(0, 1), last

    return transposed


_LAYER_ARGUMENTS = 7
"""Of a recurrent layer beside input and state; fewer where the input is packed."""

REWRITTEN: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.Tensor.logsumexp: _logsumexp,
    torch.Tensor.nan_to_num: _nan_to_num,
    torch.gru: _time_first(torch.gru),
    torch.lstm: _without_mkldnn(torch.lstm),
    torch.logsumexp: _logsumexp,
    torch.nan_to_num: _nan_to_num,
    torch.rnn_relu: _time_first(torch.rnn_relu),
    torch.rnn_tanh: _time_first(torch.rnn_tanh),
    torch.std_mean: _with_mean(torch.std),
    torch.var_mean: _with_mean(torch.var),
}
"""What to call in the place of a function."""
