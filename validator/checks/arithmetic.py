"""Float64 arithmetic that runs unmodified model code, and simulates on request what rounding does to it.

Under `Arithmetic` every floating tensor is a `ShadowTensor`: it reports the dtype that the code
would see on the device, so that every branch, cast and `finfo` in the code behaves as it does
there, and holds its values in float64. What happens after each operator is the `Rounding`:

- `Rounding.none()`: nothing. This is the oracle: casts and `dtype=` arguments change the label alone.
- `Rounding.stochastic(recipe)`: each operator adds the noise of its own inner arithmetic and rounds
  stochastically to the recipe's inner format (or, for `inner="storage"`, to the format that the
  operator's result has in this very code). The spread of such runs is the band's sigma.
- `Rounding.nearest(recipe)`: rounds to nearest, without noise. This is the control of the gain test.

A tensor remembers its value before its own last rounding (`exact`): what leaves at an edge is that
one, since the last rounding to the storage format has its half ulp in the band already.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from validator.checks.attention import attention
from validator.checks.operator_noise import is_known, operator_sigma
from validator.checks.operators import KERNELS, accumulates, is_exact, operator_name
from validator.checks.promotion import result_dtypes
from validator.checks.selections import selection
from validator.checks.shadow import ShadowTensor, widened
from validator.numerics.formats import format_of
from validator.numerics.recipes import Recipe
from validator.numerics.rounding import round_nearest, round_stochastic

__all__ = ["Arithmetic", "Choice", "Constant", "Rounding"]

RESHAPERS = ("resize", "set", "squeeze", "swapaxes", "swapdims", "t", "transpose", "unsqueeze")
"""Operators that in their in-place form change the shape of a tensor, which a shadow can't."""

STRICT_FUNCTIONS = frozenset(
    (
        torch.conv1d,
        torch.conv2d,
        torch.conv3d,
        torch.conv_transpose1d,
        torch.conv_transpose2d,
        torch.conv_transpose3d,
    )
)
"""Functions that compare the dtypes of input and parameters themselves."""

ATTENTION_ARGUMENTS = (
    "query",
    "key",
    "value",
    "attn_mask",
    "dropout_p",
    "is_causal",
    "scale",
    "enable_gqa",
)
"""Of `torch.nn.functional.scaled_dot_product_attention`, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A number that the code gives to an operator that rounds, such as an epsilon or a scale.

    Attributes:
        position: which of the code's rounding operators it is given to.
        leaf: which of that operator's flattened arguments it is.
        op: aten name of the operator.
        value: the number.
    """

    position: int
    leaf: int
    op: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A choice that the code made by value, where the candidate's own is known.

    Attributes:
        name: unique within the code, the same in every run of it.
        op: aten name of the operator.
        best: `[*]` float64, the values that this run would have chosen.
        chosen: `[*]` the values at the candidate's choice, which the code goes on with, ordered like `best`.
    """

    name: str
    op: str
    best: Tensor
    chosen: "ShadowTensor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """What happens to an operator's result, and in the oracle to a constant.

    Attributes:
        recipe: the recipe that is simulated, or None for the oracle.
        generator: source of noise and of stochastic rounding; None rounds to nearest and adds no noise.
        sigma_cache: noise of each operator of one piece of code by position, kept from run to run.
        altered: a constant of the code and the factor to multiply it by.
    """

    recipe: Recipe | None = None
    generator: torch.Generator | None = None
    sigma_cache: dict[int, Tensor | None] = field(default_factory=dict)
    altered: tuple[Constant, float] | None = None

    @classmethod
    def none(cls) -> Self:
        """Return the oracle's arithmetic: float64 and nothing else."""
        return cls()

    @classmethod
    def altering(cls, constant: Constant, factor: float) -> Self:
        """Return the oracle's arithmetic with one constant of the code multiplied by `factor`."""
        return cls(altered=(constant, factor))

    @classmethod
    def stochastic(cls, recipe: Recipe, seed: int, sigma_cache: dict[int, Tensor | None]) -> Self:
        """Return one noisy run under `recipe`."""
        return cls(recipe=recipe, generator=torch.Generator().manual_seed(seed), sigma_cache=sigma_cache)

    @classmethod
    def nearest(cls, recipe: Recipe) -> Self:
        """Return the control's arithmetic under `recipe`."""
        return cls(recipe=recipe)

    def round(self, value: Tensor, dtype: torch.dtype) -> Tensor:
        """Round an intermediate result that the code holds in `dtype`."""
        assert self.recipe is not None
        if value.is_complex():
            parts = self.round(torch.view_as_real(value), dtype.to_real())
            return torch.view_as_complex(parts)
        fmt = format_of(dtype)
        if self.recipe.inner != "storage":
            inner = format_of(self.recipe.inner)
            # Code that asks for a wider format than the recipe's gets it.
            fmt = inner if inner.precision >= fmt.precision else fmt
        if self.generator is None:
            return round_nearest(value, fmt)
        return round_stochastic(value, fmt, self.generator)


class Arithmetic:
    """Context in which torch code computes with `ShadowTensor`s.

    Args:
        rounding: what to do after each operator.
        lift: gives a plain floating tensor that meets the code (a parameter, a buffer, a constant) its
            float64 values and the dtype to report; by default its own.
        choose: gives the candidate's indices for a choice, by its name and the code's own indices, or None.

    Attributes:
        choices: what `topk`, `argmax` and `argmin` chose, where `choose` knew the candidate's choice.
        constants: the numbers that the code gave to operators that round, in the order of their use.
    """

    def __init__(
        self,
        rounding: Rounding,
        lift: Callable[[Tensor], tuple[Tensor, torch.dtype]] | None = None,
        choose: Callable[[str, Tensor], Tensor | None] | None = None,
    ) -> None:
        self.rounding = rounding
        self.choices: list[Choice] = []
        self._choose = choose
        self._choosers = 0
        self._decided: dict[int, Tensor] = {}
        self.constants: list[Constant] = []
        self._lift = lift or (lambda tensor: (widened(tensor), tensor.dtype))
        self._position = 0
        self._functions = _Functions(self)
        self._operators = _Operators(self)

    def __enter__(self) -> Self:
        self._functions.__enter__()  # type: ignore[no-untyped-call]
        self._operators.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exc: Any) -> None:
        self._operators.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._functions.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Leave the arithmetic for a while, from inside code that runs under it."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()

    def shadow(self, tensor: Tensor) -> ShadowTensor:
        """Return a plain floating tensor as a shadow (a shadow as it is)."""
        if isinstance(tensor, ShadowTensor):
            return tensor
        data64, dtype = self._lift(tensor)
        return ShadowTensor(data64, dtype)

    def shadow_outside(self, value: Any) -> Any:
        """Return a plain floating tensor as a shadow, for a function that itself compares dtypes."""
        if not _is_floating(value) or isinstance(value, ShadowTensor):
            return value
        # The function that is being called has left the function mode already.
        self._operators.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        try:
            return self.shadow(value)
        finally:
            self._operators.__enter__()  # type: ignore[no-untyped-call]

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute one aten operator."""
        if operator_name(func) in RESHAPERS and func._schema.is_mutable:
            raise NotImplementedError(f"{func} changes a tensor's shape in place")
        if operator_name(func).startswith("_scaled_dot_product"):
            return self._attention_kernel(func, args, kwargs)
        originals, spec = tree_flatten((args, kwargs))
        leaves = [self.shadow(x) if _is_floating(x) else x for x in originals]
        shadows = [x for x in leaves if isinstance(x, ShadowTensor)]
        if not any(isinstance(x, Tensor) for x in originals):
            return self._made(func, args, kwargs)
        dtypes = result_dtypes(func, leaves, spec)
        exact = is_exact(func) and not accumulates(func, args, kwargs)
        if not exact:
            leaves = self._with_constants(operator_name(func), leaves)
        if func._schema.is_mutable:
            written = _written(func, originals, spec)
            by_original = dict(zip(map(id, originals), leaves, strict=True))
            self._part_exact_from_rounded(exact, written, shadows)
            _call(func, leaves, spec, "data64")
            if exact and all(_is_parted(x) for x in written):
                _call(func, leaves, spec, "exact64")
            return self._mutated(func, exact, written, shadows, by_original)
        result = _call(func, leaves, spec, "data64")
        chosen = self._chosen(func, leaves, spec, result)
        if chosen is not None:
            return chosen
        self._follow_choices(func, originals, shadows, result)
        if exact:
            return self._moved(func, leaves, spec, shadows, result, dtypes)
        return self._computed(func, leaves, spec, shadows, result, dtypes)

    def is_chosen(self, tensor: Tensor) -> bool:
        """Tell whether an integer or boolean tensor was decided by rounded values."""
        return id(tensor) in self._decided

    def _made(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator without inputs as it is: its values are what the candidate's code makes as well."""
        made = func(*args, **kwargs)
        return ShadowTensor(widened(made), made.dtype) if _is_floating(made) else made

    def _follow_choices(
        self, func: Any, originals: list[Any], shadows: list[ShadowTensor], result: Any
    ) -> None:
        """Note integers and booleans that rounded values decided, directly or through others."""
        if not any(x.depth for x in shadows) and not any(id(x) in self._decided for x in originals):
            return
        for made in tree_flatten(result)[0]:
            if isinstance(made, Tensor) and not _is_floating(made):
                self._decided[id(made)] = made

    def attention(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ShadowTensor:
        """Compute `torch.nn.functional.scaled_dot_product_attention` as one operator."""
        self._operators.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        try:
            return self._attend(dict(zip(ATTENTION_ARGUMENTS, args, strict=False)) | kwargs)
        finally:
            self._operators.__enter__()  # type: ignore[no-untyped-call]

    def _attend(self, named: dict[str, Any]) -> ShadowTensor:
        if named.get("scale") is None:
            named["scale"] = 1 / math.sqrt(named["query"].shape[-1])
        originals, spec = tree_flatten(named)
        leaves = [self.shadow(x) if _is_floating(x) else x for x in originals]
        unknown = next((x.unknown for x in leaves if isinstance(x, ShadowTensor) and x.unknown), "")
        leaves = self._with_constants("scaled_dot_product_attention", leaves)
        recipe = self.rounding.recipe
        dtype = named["query"].dtype
        computed = attention(
            **tree_unflatten([_widen(x, "data64") for x in leaves], spec),
            storage=None if recipe is None else format_of(dtype),
            rounded_scores=recipe is not None and recipe.inner == "storage",
            with_sigma=self.rounding.generator is not None,
        )
        # Attention is judged by noisy runs even where it is the only operator: its band depends on the
        # recipe.
        return self._finish(computed.output, dtype, computed.sigma, computed.bound, 2, unknown)

    def _attention_kernel(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute one of aten's attention kernels, which some code calls in place of the function."""
        named = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        named["attn_mask"] = named.get("attn_mask", named.get("attn_bias"))
        output = self._attend({name: named[name] for name in ATTENTION_ARGUMENTS if name in named})
        # What such a kernel returns beside the output is for the backward pass.
        return (output, *[None] * (len(func._schema.returns) - 1))

    def _computed(
        self,
        func: Any,
        leaves: list[Any],
        spec: Any,
        shadows: list[ShadowTensor],
        result: Any,
        dtypes: list[Any],
    ) -> Any:
        """Wrap the result of an operator that rounds."""
        depth = 1 + max((x.depth + x.is_cast for x in shadows), default=0)
        name = operator_name(func)
        unknown = next((x.unknown for x in shadows if x.unknown), "" if is_known(name) else f"aten.{name}")
        sigma = None
        if self.rounding.generator is not None or (self.rounding.recipe is None and depth == 1):
            sigma = self._sigma(func, leaves, spec, result)
        flat, result_spec = tree_flatten(result)
        wrapped = [
            self._finish(x, dtype, sigma if i == 0 else None, None, depth, unknown) if _is_floating(x) else x
            for i, (x, dtype) in enumerate(zip(flat, dtypes, strict=False))
        ]
        return tree_unflatten(wrapped, result_spec)

    def _finish(
        self,
        value: Tensor,
        dtype: torch.dtype,
        sigma: Tensor | None,
        bound: Tensor | None,
        depth: int,
        unknown: str,
    ) -> ShadowTensor:
        """Add the operator's own noise to its result, and round it."""
        rounding = self.rounding
        if rounding.recipe is None:
            return ShadowTensor(value, dtype, depth=depth, sigma64=sigma, unknown=unknown)
        if rounding.generator is not None and sigma is not None:
            value = value + sigma * torch.randn(value.shape, dtype=value.dtype, generator=rounding.generator)
        rounded = rounding.round(value, dtype)
        return ShadowTensor(rounded, dtype, exact64=value, depth=depth, bound64=bound, unknown=unknown)

    def _moved(
        self,
        func: Any,
        leaves: list[Any],
        spec: Any,
        shadows: list[ShadowTensor],
        result: Any,
        dtypes: list[Any],
    ) -> Any:
        """Wrap the result of an operator that only moves values; what else is known of them moves alike."""
        flat, result_spec = tree_flatten(result)
        exact = flat
        if any(x.exact64 is not x.data64 for x in shadows):
            exact = tree_flatten(_call(func, leaves, spec, "exact64"))[0]
        depth = max((x.depth for x in shadows), default=0)
        is_cast = any(x.is_cast for x in shadows)
        sigma = bound = [None] * len(flat)
        if any(x.is_complex() for x in (*shadows, *filter(_is_floating, flat))):
            depth = max(depth + 1, 2) if depth else 0
        elif len(shadows) == 1:
            sigma = _move_extra(func, leaves, spec, shadows[0].sigma64, "sigma64") or sigma
            bound = _move_extra(func, leaves, spec, shadows[0].bound64, "bound64") or bound
        elif any(x.sigma64 is not None for x in shadows):
            depth += 1
        wrapped = []
        for i, x in enumerate(flat):
            if not _is_floating(x):
                wrapped.append(x)
                continue
            narrows = bool(shadows) and _is_narrower(dtypes[i], shadows[0].dtype)
            narrows = narrows or _has_inexact_constant(leaves, dtypes[i])
            # A narrower value that is widened again was rounded on the way, not last.
            widens = is_cast and bool(shadows) and _is_narrower(shadows[0].dtype, dtypes[i])
            value = x
            if widens:
                exact[i] = x
            if narrows and self.rounding.recipe is not None and self.rounding.recipe.inner == "storage":
                value, exact[i] = self.rounding.round(x, dtypes[i]), x
            wrapped.append(
                ShadowTensor(
                    value,
                    dtypes[i],
                    exact64=exact[i],
                    depth=max(depth + 1, 2) if widens else depth,
                    is_cast=(is_cast and not widens) or narrows,
                    sigma64=None if widens else sigma[i],
                    bound64=bound[i],
                    unknown=next((x.unknown for x in shadows if x.unknown), ""),
                    aliases=shadows[0].aliases if func.is_view and shadows else None,
                )
            )
        return tree_unflatten(wrapped, result_spec)

    def _part_exact_from_rounded(self, exact: bool, written: list[Any], shadows: list[ShadowTensor]) -> None:
        """Give what is written to exact values of its own, where the operator will make them differ."""
        if self.rounding.recipe is None or (exact and not any(map(_is_parted, shadows))):
            return
        for shadow in written:
            if isinstance(shadow, ShadowTensor) and not _is_parted(shadow):
                storage = shadow.data64.untyped_storage().clone()
                for alias in shadow.aliases:
                    values = alias.data64
                    alias.exact64 = values.new_empty(0).set_(
                        storage, values.storage_offset(), values.size(), values.stride()
                    )

    def _mutated(
        self,
        func: Any,
        exact: bool,
        written: list[Any],
        shadows: list[ShadowTensor],
        by_original: dict[int, Any],
    ) -> Any:
        """Bring the tensors that an in-place operator changed up to date, and return them as they came."""
        name = operator_name(func)
        is_understood = exact or is_known(name)
        unknown = next((x.unknown for x in shadows if x.unknown), "" if is_understood else f"aten.{name}")
        depth = max((x.depth + x.is_cast for x in shadows), default=0) + (0 if exact else 1)
        for original in written:
            shadow = by_original[id(original)]
            if not isinstance(shadow, ShadowTensor):
                continue
            if shadow is not original:
                # A plain tensor of the code's own, such as a buffer: it keeps its dtype.
                original.copy_(shadow.data64.to(original.dtype))
                continue
            for alias in shadow.aliases:
                alias.depth, alias.sigma64, alias.bound64 = max(alias.depth, depth, 2), None, None
                alias.unknown = alias.unknown or unknown
            recipe = self.rounding.recipe
            if recipe is None:
                continue
            if not exact:
                shadow.exact64.copy_(shadow.data64)
            narrows = recipe.inner == "storage" and any(_is_narrower(shadow.dtype, x.dtype) for x in shadows)
            if narrows and not _is_parted(shadow):
                self._part_exact_from_rounded(exact, [shadow], shadows)
            if not exact or narrows:
                shadow.data64.copy_(self.rounding.round(shadow.data64, shadow.dtype))
        if not func._schema.returns:
            return None
        return written[0] if len(func._schema.returns) == 1 else tuple(written)

    def _chosen(self, func: Any, leaves: list[Any], spec: Any, result: Any) -> Any:
        """Return what an operator gives for the candidate's choice; None where that is not known."""
        self._choosers += 1
        args, kwargs = tree_unflatten(leaves, spec)
        source = args[0]
        made = selection(func, args, kwargs, result)
        if self._choose is None or made is None or not isinstance(source, ShadowTensor):
            return None
        self._choosers += 1
        name = f"{operator_name(func)}/{self._choosers}"
        chosen = self._choose(name, made.indices)
        if chosen is None or bool(((chosen < 0) | (chosen >= source.shape[made.dim])).any()):
            return None
        dim, is_wide = made.dim, made.indices.dim() == source.dim()
        wide, own = (x if is_wide else x.unsqueeze(dim) for x in (chosen, made.indices))
        picked = ShadowTensor(
            source.data64.gather(dim, wide),
            source.dtype,
            exact64=source.exact64.gather(dim, wide),
            depth=source.depth,
            is_cast=source.is_cast,
            sigma64=None if source.sigma64 is None else source.sigma64.gather(dim, wide),
            unknown=source.unknown,
        )
        best, values = source.data64.gather(dim, own), picked.exact64
        if not made.is_ordered:
            best, values = (x.sort(dim, descending=True).values for x in (best, values))
        compared = ShadowTensor(values, source.dtype, depth=source.depth)
        self.choices.append(Choice(name=name, op=operator_name(func), best=best, chosen=compared))
        if not made.has_values:
            return chosen
        if not is_wide:
            picked = ShadowTensor(
                picked.data64.squeeze(dim),
                source.dtype,
                exact64=picked.exact64.squeeze(dim),
                depth=source.depth,
                is_cast=source.is_cast,
                sigma64=None if picked.sigma64 is None else picked.sigma64.squeeze(dim),
                unknown=source.unknown,
            )
        return (picked, chosen)

    def _with_constants(self, op: str, leaves: list[Any]) -> list[Any]:
        """Note the constants among an operator's arguments, and alter the one that is to be altered."""
        self._position += 1
        found = [
            Constant(position=self._position, leaf=i, op=op, value=x)
            for i, x in enumerate(leaves)
            if isinstance(x, float) and x != 0 and math.isfinite(x)
        ]
        self.constants += found
        if self.rounding.altered is None or self.rounding.altered[0] not in found:
            return leaves
        constant, factor = self.rounding.altered
        return [x * factor if i == constant.leaf else x for i, x in enumerate(leaves)]

    def _sigma(self, func: Any, leaves: list[Any], spec: Any, result: Any) -> Tensor | None:
        position, cache = self._position, self.rounding.sigma_cache
        if position not in cache:
            args, kwargs = tree_unflatten([_widen(x, "data64") for x in leaves], spec)
            cache[position] = operator_sigma(operator_name(func), args, kwargs, result)
        return cache[position]


class _Operators(TorchDispatchMode):
    def __init__(self, arithmetic: Arithmetic) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._arithmetic = arithmetic

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._arithmetic.run(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """Functions that are one operator on a device, whatever torch decomposes them into here."""

    def __init__(self, arithmetic: Arithmetic) -> None:
        super().__init__()
        self._arithmetic = arithmetic

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            return self._arithmetic.attention(args, kwargs or {})
        if func in STRICT_FUNCTIONS:
            args = tuple(self._arithmetic.shadow_outside(x) for x in args)
            kwargs = {name: self._arithmetic.shadow_outside(x) for name, x in (kwargs or {}).items()}
        return func(*args, **(kwargs or {}))


def _is_parted(value: Any) -> bool:
    return isinstance(value, ShadowTensor) and value.exact64 is not value.data64


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _is_narrower(dtype: torch.dtype, than: torch.dtype) -> bool:
    return format_of(dtype.to_real()).precision < format_of(than.to_real()).precision


def _has_inexact_constant(leaves: list[Any], dtype: torch.dtype) -> bool:
    """Tell whether an operator that moves values also moves a number that the dtype can't hold."""
    numbers = [x for x in leaves if isinstance(x, float) and math.isfinite(x)]
    if not numbers:
        return False
    exact = torch.tensor(numbers, dtype=torch.float64)
    return not torch.equal(round_nearest(exact, format_of(dtype.to_real())), exact)


def _widen(value: Any, attribute: str) -> Any:
    """Replace a shadow by its values, and a floating `dtype=` by float64."""
    if isinstance(value, ShadowTensor):
        return getattr(value, attribute)
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    if isinstance(value, torch.dtype) and value.is_complex:
        return torch.complex128
    return value


def _call(func: Any, leaves: list[Any], spec: Any, attribute: str) -> Any:
    args, kwargs = tree_unflatten([_widen(x, attribute) for x in leaves], spec)
    kernel = KERNELS.get(operator_name(func), func)
    if any(isinstance(x, ShadowTensor) for x in leaves):
        return kernel(*args, **kwargs)
    # Factories without a dtype, and divisions of integers, give the default one.
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return kernel(*args, **kwargs)
    finally:
        torch.set_default_dtype(default)


def _move_extra(
    func: Any, leaves: list[Any], spec: Any, extra: Tensor | None, attribute: str
) -> list[Any] | None:
    """Apply an operator that moves values to a sigma or bound, which stays positive where values don't."""
    if extra is None:
        return None
    moved: Any = _call(func, leaves, spec, attribute)
    return [x.abs() if isinstance(x, Tensor) else x for x in tree_flatten(moved)[0]]


def _written(func: Any, originals: list[Any], spec: Any) -> list[Any]:
    """Return the arguments that an in-place operator writes to."""
    args, kwargs = tree_unflatten(originals, spec)
    named = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    return [
        named[a.name]
        for a in func._schema.arguments
        if a.alias_info is not None and a.alias_info.is_write and isinstance(named.get(a.name), Tensor)
    ]
