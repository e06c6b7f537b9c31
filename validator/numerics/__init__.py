"""Numerics of rounding: formats, recipes, and the bands that rounding explains; nothing else of ours."""

from validator.numerics.bands import (
    Noise,
    blocked_lambda,
    factors_sigma,
    fp8_sigma,
    is_explained,
    matmul_sigma,
    normal_lambda,
    partials_sigma,
    product_noise,
    softmax_sigma,
    tail_lambda,
    truncation_bound,
)
from validator.numerics.formats import FORMATS, Format, format_of
from validator.numerics.operator_bands import (
    attention_noise,
    gelu_noise,
    layer_norm_noise,
    rms_norm_noise,
    rope_noise,
    silu_noise,
    sum_noise,
)
from validator.numerics.recipes import EAGER, FUSED, RECIPES, Recipe

__all__ = [
    "EAGER",
    "FORMATS",
    "FUSED",
    "RECIPES",
    "Format",
    "Noise",
    "Recipe",
    "attention_noise",
    "blocked_lambda",
    "factors_sigma",
    "format_of",
    "fp8_sigma",
    "gelu_noise",
    "is_explained",
    "layer_norm_noise",
    "matmul_sigma",
    "normal_lambda",
    "partials_sigma",
    "product_noise",
    "rms_norm_noise",
    "rope_noise",
    "silu_noise",
    "softmax_sigma",
    "sum_noise",
    "tail_lambda",
    "truncation_bound",
]
