"""The candidate's values in place of the reference's: in the arguments of a call, and in what it returned.

Shape legend: * = any shape.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from validator.align.traces import Edge, LogicalTensor, View
from validator.capturing.values import bind_arguments, rebuild
from validator.checks.shadow import ShadowTensor, real_view, widened

__all__ = ["Compared", "compared", "plain_values", "real_parts", "substituted", "substituted_output"]

Compared = Mapping[str, tuple[Tensor, LogicalTensor]]
"""The reference's tensor and the candidate's, by path."""


def compared(
    values: Mapping[str, Any],
    edges: Mapping[str, Edge],
    view: View,
    *,
    is_input: bool,
    expand: Callable[[Tensor, Sequence[int]], Tensor] = Tensor.expand,
) -> Compared:
    """Return the tensors that both sides have and mean the same by, in one shape.

    Args:
        values: the reference's leaves by path.
        edges: the candidate's.
        view: whose copies of replicated tensors to take.
        is_input: whether they are arguments: the masks that a kernel is given are its own.
        expand: lets the reference's code repeat what it has once for all sequences.
    """
    pairs = {}
    for path, value in values.items():
        if isinstance(value, Tensor) and path in edges:
            edge = edges[path]
            shape = _common_shape(value.shape, edge)
            if shape is not None and _is_comparable(path, value, edge, is_input=is_input):
                own = value if value.shape == shape else expand(value, shape)
                pairs[path] = own, _expanded(edge.read(view), shape)
    return pairs


def substituted(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], pairs: Compared
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call with the candidate's values in place of the reference's."""
    bound = bind_arguments(module, args, kwargs)

    def take(path: str, value: Any) -> Any:
        return _as_shadow(*pairs[path]) if path in pairs else value

    new = {name: rebuild(value, take, name) for name, value in bound.items()}
    positional = list(new.values())[: len(args)]
    return tuple(positional), {name: new[name] for name in kwargs}


def substituted_output(output: Any, pairs: Compared) -> Any:
    """Return an output with the candidate's values; what was one tensor in two places stays one."""
    seen: dict[int, Any] = {}

    def take(path: str, value: Any) -> Any:
        if path in pairs and id(value) not in seen:
            seen[id(value)] = _as_shadow(*pairs[path])
        return seen.get(id(value), value) if isinstance(value, Tensor) else value

    return rebuild(output, take)


def real_parts(cand: LogicalTensor) -> LogicalTensor:
    """Return a complex tensor as one of its real and imaginary parts."""
    if not cand.data.is_complex():
        return cand
    parts = tuple(replace(part, box=(*part.box, (0, 2))) for part in cand.parts)
    return LogicalTensor(data=real_view(cand.data), parts=parts, dims=(*cand.dims, ""))


def plain_values(value: Any) -> Any:
    """Return a nested value with plain tensors in place of shadows, in the dtypes that they report."""
    return rebuild(value, lambda _, x: x.data64.to(x.dtype) if isinstance(x, ShadowTensor) else x)


def _as_shadow(own: Tensor, cand: LogicalTensor) -> Tensor:
    """Return the candidate's values, laid out in memory as the reference's are."""
    if not (cand.data.is_floating_point() or cand.data.is_complex()):
        return cand.data.clone()
    like = own.data64 if isinstance(own, ShadowTensor) else own
    values = widened(cand.data)
    return ShadowTensor(torch.empty_like(like, dtype=values.dtype).copy_(values), cand.data.dtype)


def _common_shape(own: torch.Size, edge: Edge) -> torch.Size | None:
    """Return the shape of both, where one may have once what the other has for each sequence, or None."""
    if own == edge.shape:
        return own
    is_alike = len(own) == len(edge.shape) and own[1:] == edge.shape[1:] and edge.dims[1:2] == ("token",)
    if not is_alike or 1 not in (own[0], edge.shape[0]):
        return None
    return torch.Size((max(own[0], edge.shape[0]), *own[1:]))


def _expanded(cand: LogicalTensor, shape: torch.Size) -> LogicalTensor:
    """Return a tensor with its batch of 1 repeated."""
    if cand.data.shape == shape:
        return cand
    parts = tuple([replace(part, box=((0, shape[0]), *part.box[1:])) for part in cand.parts])
    return LogicalTensor(data=cand.data.expand(shape), parts=parts, dims=("batch", *cand.dims[1:]))


def _is_comparable(path: str, value: Tensor, edge: Edge, *, is_input: bool) -> bool:
    dtype = getattr(torch, edge.dtype)
    if (dtype.is_complex, dtype.is_floating_point) != (value.is_complex(), value.is_floating_point()):
        return False
    is_mask = value.dtype == torch.bool or (value.is_floating_point() and "mask" in path)
    return not (is_input and is_mask)
