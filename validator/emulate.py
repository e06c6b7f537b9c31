"""Run a torch model with chosen arithmetic, to see on one machine what another would compute.

    with emulate(Emulation(factors="tf32")):
        model(**inputs)

Tensors keep their dtypes. Matrix products are summed as the `Emulation` says; with another rounding than to
nearest, or with subnormals flushed, every operator that rounds is computed in float64 and rounded so.
Attention runs as the separate operators of torch's math backend. Float64 tensors are left alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from validator.checks.operators import is_exact, operator_name
from validator.errors import UsageError
from validator.numerics.contractions import (
    FACTORS,
    Accumulation,
    Order,
    fp8_product,
    product_of_parts,
    rounded_sum,
    split_terms,
    sum_products,
)
from validator.numerics.emulation import Emulation, RoundingMode
from validator.numerics.formats import FORMATS, format_of
from validator.numerics.rounding import round_nearest, round_stochastic, round_toward_zero
from validator.wrapping import wrap

__all__ = ["Emulation", "Order", "RoundingMode", "emulate", "emulate_module"]

_EMULATED = (torch.float32, torch.float16, torch.bfloat16)
_PRODUCTS = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "addmm": 1, "baddbmm": 1}
"""Matrix products, with the position of their first factor."""
_CASTS = ("_to_copy", "copy")
_OTHER_PRODUCTS = (
    "_grouped_mm",
    "_scaled_grouped_mm",
    "_scaled_mm",
    "addbmm",
    "addmv",
    "addr",
    "convolution",
    "mkldnn_rnn_layer",
)
"""Operators that contain sums of products which are not taken apart here."""


@contextmanager
def emulate(emulation: Emulation) -> Iterator[None]:
    """Compute with chosen arithmetic inside of the block.

    Raises:
        UsageError: the code calls an operator with sums of products that can't be emulated.
    """
    with sdpa_kernel(SDPBackend.MATH), _Arithmetic(emulation):
        yield


def emulate_module(module: nn.Module, emulation: Emulation) -> None:
    """Let a module compute with chosen arithmetic from now on, in place, whoever calls it."""

    def forward(inner: Any, *args: Any, **kwargs: Any) -> Any:
        with emulate(emulation):
            return inner(*args, **kwargs)

    wrap(module, forward)


class _Arithmetic(TorchDispatchMode):
    def __init__(self, emulation: Emulation) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._emulation = emulation
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(kind not in (Tensor, nn.Parameter) for kind in types):
            return NotImplemented  # a DTensor, say, comes back as the plain tensors that it computes with
        leaves = tree_flatten((args, kwargs))[0]
        if func.namespace != "aten" or not any(map(_is_emulated, leaves)):
            return func(*args, **kwargs)
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:  # in inference mode `linear` comes whole
                return func.decompose(*args, **kwargs)
        name = operator_name(func)
        if name in _OTHER_PRODUCTS:
            raise UsageError(
                f"emulate() can't sum the products of aten::{name}: call it outside of emulate()"
            )
        if name in _PRODUCTS and self._sums_differently(name, args):
            return _put(func, args, kwargs, self._product(name, args, kwargs))
        rounds_natively = (
            self._emulation.rounding is RoundingMode.NEAREST and not self._emulation.flush_subnormals
        )
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        if rounds_natively or is_random or (is_exact(func) and name not in _CASTS):
            return func(*args, **kwargs)
        return self._rounded(func, args, kwargs)

    def _sums_differently(self, name: str, args: Any) -> bool:
        asked = self._emulation
        if not _is_emulated(args[_PRODUCTS[name]]):
            return False
        if asked.accumulate is not None or asked.split_k > 1 or asked.ranks > 1:
            return True
        is_rounded = asked.factors != "float32" and args[_PRODUCTS[name]].dtype == torch.float32
        return is_rounded or (asked.fp8 and name in ("mm", "addmm"))

    def _product(self, name: str, args: Any, kwargs: Any) -> Tensor:
        """Compute a matrix product, in the dtype of its factors."""
        first = _PRODUCTS[name]
        a, b = args[first], args[first + 1]
        dtype = a.dtype
        shape = {"mv": a.shape[:1], "dot": ()}.get(name)
        a, b = a.to(torch.float64), b.to(torch.float64)
        a = a[None] if a.ndim == 1 else a
        b = b[:, None] if b.ndim == 1 else b
        value = self._contracted(a, b, dtype, is_linear=name in ("mm", "addmm"))
        value = value if shape is None else value.reshape(shape)
        if first == 1:
            added = args[0].to(torch.float64)
            value = kwargs.get("beta", 1) * added + kwargs.get("alpha", 1) * value
        return self._stored(value, dtype)

    def _contracted(self, a: Tensor, b: Tensor, dtype: torch.dtype, *, is_linear: bool) -> Tensor:
        asked = self._emulation
        how = asked.accumulation
        if asked.fp8 and is_linear:
            return fp8_product(a, b, how or Accumulation())
        if asked.factors != "float32" and dtype == torch.float32:
            a, b = (round_nearest(x, FACTORS[asked.factors]) for x in (a, b))
        of_ranks = [
            product_of_parts(
                *of_rank,
                parts=asked.split_k,
                fmt=FORMATS[asked.partials],
                summed=lambda a, b: _summed(a, b, how),
            )
            for of_rank in split_terms(a, b, asked.ranks)
        ]
        return rounded_sum(of_ranks, FORMATS[asked.reduce] if asked.reduce else format_of(dtype))

    def _rounded(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute an operator in float64, and round what it returns or writes."""
        leaves, spec = tree_flatten((args, kwargs))
        wide_args, wide_kwargs = tree_unflatten(list(map(_widened, leaves)), spec)
        if func._schema.is_mutable:
            func(*wide_args, **wide_kwargs)
            for original, wide in zip(
                _written(func, args, kwargs), _written(func, wide_args, wide_kwargs), strict=True
            ):
                original.copy_(self._stored(wide, original.dtype) if _is_emulated(original) else wide)
            return _returned(_written(func, args, kwargs))
        native = func(*args, **kwargs)  # for its dtypes, and for results that are not floating
        return tree_map(self._like, native, func(*wide_args, **wide_kwargs))

    def _like(self, native: Any, wide: Any) -> Any:
        return self._stored(wide, native.dtype) if _is_emulated(native) else native

    def _stored(self, value: Tensor, dtype: torch.dtype) -> Tensor:
        """Round float64 values to a dtype."""
        fmt = format_of(dtype)
        match self._emulation.rounding:
            case RoundingMode.NEAREST:
                rounded = round_nearest(value, fmt)
            case RoundingMode.TOWARD_ZERO:
                rounded = round_toward_zero(value, fmt)
            case RoundingMode.STOCHASTIC:
                rounded = round_stochastic(value, fmt, self._generator(value.device))
        if self._emulation.flush_subnormals and dtype != torch.float16:
            is_subnormal = rounded.abs() < fmt.min_normal
            rounded = torch.where(is_subnormal, torch.copysign(torch.zeros_like(rounded), rounded), rounded)
        return rounded.to(dtype)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._emulation.seed)
        return self._generators[device]


def _summed(a: Tensor, b: Tensor, how: Accumulation | None) -> Tensor:
    if how is not None:
        return sum_products(a, b, how)
    return (a.to(torch.float32) @ b.to(torch.float32)).to(torch.float64)


def _put(func: Any, args: Any, kwargs: Any, value: Tensor) -> Tensor:
    """Return a result, in the place that the operator writes to if it does."""
    written = _written(func, args, kwargs) if func._schema.is_mutable else []
    return written[0].copy_(value) if written else value


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    written = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs[argument.name]
            if not isinstance(value, Tensor):
                raise UsageError(f"emulate() can't round what {func} writes: call it outside of emulate()")
            written.append(value)
    return written


def _returned(written: list[Tensor]) -> Any:
    return written[0] if len(written) == 1 else tuple(written)


def _is_emulated(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in _EMULATED


def _widened(leaf: Any) -> Any:
    """Return a leaf of the arguments for the same operator in float64; what it writes to is a copy."""
    if isinstance(leaf, Tensor):
        return leaf.to(torch.float64) if _is_emulated(leaf) else leaf.clone()
    return torch.float64 if isinstance(leaf, torch.dtype) and leaf in _EMULATED else leaf
