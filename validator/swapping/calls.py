"""What the calls of a model's modules were given and returned, without the values of activations.

A floating tensor becomes `Seen`: what a hybrid needs of it is its dtype, device and shape. Masks, positions
and flags are kept, since they follow the conventions of the side's own kernels.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from validator.capturing.values import bind_arguments, rebuild

__all__ = ["Call", "Seen", "is_activation", "record_calls"]


class Seen:
    """A floating tensor that was not kept. No dataclass: as a leaf of a nested value it must not be opened.

    Attributes:
        dtype: its format.
        device: where it was.
        shape: its sizes.
    """

    __slots__ = ("device", "dtype", "shape")

    def __init__(self, *, dtype: torch.dtype, device: torch.device, shape: torch.Size) -> None:
        self.dtype = dtype
        self.device = device
        self.shape = shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of a module, with `Seen` in place of floating tensors.

    Attributes:
        arguments: by the names of `bind_arguments`, positional ones first.
        positional: how many of them are positional.
        keywords: names of the others.
        output: what it returned.
    """

    arguments: Mapping[str, Any]
    positional: int
    keywords: tuple[str, ...]
    output: Any


def is_activation(path: str, leaf: Any) -> bool:
    """Tell whether a leaf is a floating tensor that was computed, and no mask."""
    if isinstance(leaf, Seen):
        return True
    floating = isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())
    return floating and "mask" not in path


def record_calls(modules: Mapping[str, nn.Module], run: Callable[[], Any]) -> dict[str, list[Call]]:
    """Run a model and return the calls of some of its modules, in order, by the names they have here.

    Args:
        modules: the modules to look at.
        run: runs the model that they are in.
    """
    calls: dict[str, list[Call]] = {name: [] for name in modules}

    def hook(name: str) -> Callable[..., None]:
        def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            bound = bind_arguments(module, args, kwargs)
            calls[name].append(
                Call(
                    arguments={key: rebuild(value, _kept, key) for key, value in bound.items()},
                    positional=len(args),
                    keywords=tuple(kwargs),
                    output=rebuild(output, _kept),
                )
            )

        return note

    with ExitStack() as hooks, torch.no_grad():
        for name, module in modules.items():
            handle = module.register_forward_hook(hook(name), with_kwargs=True)
            hooks.callback(handle.remove)
        run()
    return calls


def _kept(path: str, leaf: Any) -> Any:
    if is_activation(path, leaf):
        return Seen(dtype=leaf.dtype, device=leaf.device, shape=leaf.shape)
    return leaf
