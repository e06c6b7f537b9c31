"""Recipes: what rounding a device may do inside an operator.

A recipe says nothing of the last rounding of a result to its storage format: that half ulp is
always allowed. What it says of matrix products has the names that `Emulation` has.
"""

from dataclasses import dataclass, fields, replace

from validator.errors import UsageError
from validator.numerics.cache_scales import SHARED_BY, CacheScale, demand_cache_scales
from validator.numerics.contractions import FACTORS
from validator.numerics.formats import FORMATS
from validator.numerics.legality import (
    FLOATS,
    demand_accumulator_bits,
    demand_at_least_one,
    demand_one_of,
    refuse,
)

__all__ = ["CACHES", "EAGER", "FUSED", "RECIPES", "REQUANTISED", "Recipe", "recipe_named"]

CACHES = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "int8")
"""Formats of codes that a cache of keys and values may hold."""

REQUANTISED = (
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "int8",
    "int4",
    "mxfp4",
)
"""Formats of codes that a device may quantise weights to as it loads them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a candidate may round, and to which format.

    Attributes:
        name: how findings call it.
        inner: format of the intermediate results between operators, by torch's name, or `"storage"`:
            each operator then rounds to the format that it has when the reference's own code runs in
            the candidate's dtype.
        operators: format in which operators compute that the reference's code holds in a wider one (norms,
            softmax, routers), and in which all but matrix products compute inside.
        sums: format in which operators other than matrix products sum up (softmax, norms, means), one term
            after the other where it is narrower than float32.
        accumulate: format in which matrix products accumulate.
        accumulator_bits: bits after the leading one that the accumulator keeps, the rest being cut off; None
            where it rounds.
        block: terms in a block, where sums are those of blocks; None where the order is not known.
        split_k: contiguous parts that each matrix product may be split into.
        partials: format in which the parts' sums are kept and added up.
        reduce: format in which partial results are summed across ranks, or `"storage"`.
        factors: format that the factors of float32 matrix products may be rounded to, one of
            `contractions.FACTORS`. Where tensors can be stored in it, the products may be rounded to it too.
        fp8: whether products of two matrices may run in float8_e4m3fn with block scales.
        flush_subnormals: whether results below 2^-126 may become 0.
        weights: format in which weights that are held as codes enter products, or `"storage"` for that of the
            candidate's other weights, which most kernels dequantise to. Where scales are applied to what the
            codes add up to, it is float32.
        requantised: format to which the device quantised weights anew as it loaded them, one of
            `REQUANTISED`, or None. Each must then be the checkpoint's within half a step of its own codes.
        cache: format of the codes in which a cache holds the keys and values that attention reads, one of
            `CACHES`, or `"storage"` for that in which they were computed. They must then be what these codes
            stand for. A cache of latents, of which keys and values are made, can't be declared.
        cache_scale: what codes of the cache are multiplied by when they are read: a number for all layers;
            `"tensor"`, `"head"` or `"token"` where each of these has a scale of its own, its largest value
            over the largest code, None where each head of each token has one; a tuple of `CacheScale` where
            layers, or keys and values, differ.

    Raises:
        UsageError: a field's value is not legal, or contradicts another's.
    """

    name: str
    inner: str = "float32"
    operators: str = "float32"
    sums: str = "float32"
    accumulate: str = "float32"
    accumulator_bits: int | None = None
    block: int | None = None
    split_k: int = 1
    partials: str = "float32"
    reduce: str = "storage"
    factors: str = "float32"
    fp8: bool = False
    flush_subnormals: bool = False
    weights: str = "storage"
    requantised: str | None = None
    cache: str = "storage"
    cache_scale: float | str | tuple[CacheScale, ...] | None = None

    def __post_init__(self) -> None:
        for field_name in ("inner", "reduce", "weights"):
            demand_one_of(self, field_name, (*FLOATS, "storage"))
        for field_name in ("operators", "sums", "accumulate", "partials"):
            demand_one_of(self, field_name, FLOATS)
        demand_one_of(self, "factors", tuple(FACTORS))
        demand_one_of(self, "requantised", (None, *REQUANTISED))
        demand_one_of(self, "cache", (*CACHES, "storage"))
        demand_at_least_one(self, "block", "split_k")
        demand_accumulator_bits(self)
        if self.split_k == 1 and self.partials != "float32":
            refuse(
                self,
                "partials",
                self.partials,
                "split_k is 1, and one part leaves no partial sums: give 2 or more",
            )
        if self.fp8 and (self.factors != "float32" or self.split_k > 1):
            refuse(self, "fp8", True, "it has its own factors and parts; leave out factors and split_k")
        demand_cache_scales(self)
        if self.cache_scale is not None and self.cache == "storage":
            refuse(self, "cache_scale", self.cache_scale, "nothing is read by it: give cache= as well")

    @property
    def computes_as_float32(self) -> bool:
        """Whether operators compute inside as they do in float32, so that only results are rounded."""
        widths = (FORMATS[fmt].precision for fmt in (self.sums, self.accumulate, self.partials))
        return (
            min(widths) >= FORMATS["float32"].precision
            and self.accumulator_bits is None
            and self.factors == "float32"
            and not self.fp8
        )

    @property
    def declaration(self) -> str:
        """What stands behind `recipe =` in a target that declares this."""
        if RECIPES.get(self.name) == self:
            return f'"{self.name}"'
        given = [
            f"{field.name}={_source(getattr(self, field.name))}"
            for field in fields(self)
            if field.name == "name" or getattr(self, field.name) != field.default
        ]
        return f"validator.Recipe({', '.join(given)})"

    def cache_scale_of(self, module: str) -> CacheScale | None:
        """Return what codes are multiplied by that a module's attention reads; None where it reads none."""
        if self.cache == "storage":
            return None
        if isinstance(self.cache_scale, tuple):
            return next((scale for scale in self.cache_scale if scale.holds_for(module)), None)
        return CacheScale(keys=self.cache_scale, values=self.cache_scale)

    def reading(self, other: "Recipe") -> "Recipe":
        """Return this recipe with the cache that another declares."""
        return replace(self, cache=other.cache, cache_scale=other.cache_scale)

    def covers(self, other: "Recipe") -> bool:
        """Tell whether this recipe allows whatever another does."""
        looser = (
            _looseness(field.name, other) <= _looseness(field.name, self)
            for field in fields(self)
            if field.name not in ("name", "block")
        )
        return all(looser) and self.block in (None, other.block)

    def loosened(self, other: "Recipe") -> "Recipe":
        """Return this recipe with all that another allows beyond it, and that `fused` doesn't allow."""
        looser = {
            field.name: getattr(other, field.name)
            for field in fields(self)
            if field.name not in ("name", "block")
            and getattr(other, field.name) != field.default
            and _looseness(field.name, other) > _looseness(field.name, self)
        }
        accumulate = FORMATS[looser.get("accumulate", self.accumulate)]
        bits = looser.get("accumulator_bits", self.accumulator_bits)
        if bits is not None and accumulate.precision <= bits:
            looser["accumulator_bits"] = None
        if looser.get("fp8"):
            looser |= {"factors": "float32", "split_k": 1, "partials": "float32"}
        elif self.fp8:
            looser = {name: value for name, value in looser.items() if name not in _NOT_WITH_FP8}
        return replace(self, **looser)


def _source(value: object) -> str:
    """Return an expression that makes a field's value."""
    if isinstance(value, tuple):
        return f"({', '.join(f'validator.{x!r}' for x in value)},)"
    return f'"{value}"' if isinstance(value, str) else repr(value)


_NOT_WITH_FP8 = ("factors", "split_k", "partials")


def _looseness(field_name: str, recipe: Recipe) -> float:
    """Return a number that grows with what a field allows."""
    value = getattr(recipe, field_name)
    if field_name in ("weights", "requantised", "cache", "cache_scale"):
        return 0.0  # it says what the values are, not how they are rounded
    if field_name == "accumulator_bits":
        return -float(value if value is not None else FORMATS["float64"].precision)
    if field_name == "factors":
        return float(tuple(FACTORS).index(value))
    if isinstance(value, str):
        return 0.0 if value == "storage" else -float(FORMATS[value].precision)
    return float(value)


FUSED = Recipe(name="fused")
EAGER = Recipe(name="eager", inner="storage")
_NARROW = {"bf16": "bfloat16", "fp16": "float16"}
_CODES = {"fp8": "float8_e4m3fn", "fp8-e5m2": "float8_e5m2", "int8": "int8"}
RECIPES = {
    recipe.name: recipe
    for recipe in (
        FUSED,
        *(Recipe(name=f"{short}-reduce", reduce=fmt) for short, fmt in _NARROW.items()),
        EAGER,
        Recipe(name="flush-subnormals", inner="storage", flush_subnormals=True),
        Recipe(name="tf32", inner="storage", factors="tf32"),
        Recipe(name="fp16-factors", inner="storage", factors="float16"),
        Recipe(name="bf16-factors", inner="storage", factors="bfloat16"),
        *(Recipe(name=f"{short}-sums", inner="storage", sums=fmt) for short, fmt in _NARROW.items()),
        Recipe(name="truncated-accumulator", inner="storage", accumulator_bits=13),
        *(
            Recipe(name=f"{short}-partials", inner="storage", split_k=8, partials=fmt)
            for short, fmt in _NARROW.items()
        ),
        *(
            Recipe(name=f"{short}-inside", inner="storage", operators=fmt, sums=fmt)
            for short, fmt in _NARROW.items()
        ),
        *(
            Recipe(name=f"{short}-accumulate", inner="storage", accumulate=fmt)
            for short, fmt in _NARROW.items()
        ),
        Recipe(name="fp8", inner="storage", fp8=True),
        *(
            Recipe(name=f"{short}-cache", inner="storage", cache=fmt, cache_scale=1.0)
            for short, fmt in _CODES.items()
            if fmt != "int8"
        ),
        *(
            Recipe(name=f"{short}-cache-by-{shared}", inner="storage", cache=fmt, cache_scale=scale)
            for short, fmt in _CODES.items()
            for shared, scale in (*((name, name) for name in SHARED_BY), ("token-head", None))
        ),
    )
}
"""Recipes that have a name, strictest first. Only the first and `eager` are allowed undeclared."""


def recipe_named(name: str | None) -> Recipe | None:
    """Return the recipe that `--recipe` names, or None for none.

    Raises:
        UsageError: there is no such recipe.
    """
    if name is None:
        return None
    if name not in RECIPES:
        raise UsageError(f"--recipe {name!r} is not known; there are {', '.join(RECIPES)}")
    return RECIPES[name]
