"""Numerics of rounding, usable by themselves: nothing here needs a model, or anything else of this package.

What a format can hold, and how far apart two of its values are:

>>> import torch
>>> from validator.numerics import format_of, ulp_error, ulp_steps, round_nearest
>>> bf16 = format_of("bfloat16")
>>> bf16.precision, bf16.unit_roundoff
(8, 0.00390625)
>>> exact = torch.tensor([1.003, 300.0], dtype=torch.float64)
>>> cand = round_nearest(exact, bf16).bfloat16()
>>> cand.tolist()
[1.0, 300.0]
>>> [round(error, 3) for error in ulp_error(exact=exact, cand=cand).tolist()]
[0.384, 0.0]
>>> ulp_steps(ref=cand, cand=cand * 1.015625).tolist()
[2, 2]

How far rounding can carry a matrix product, and what a pair of tensors or of distributions has in common:

>>> from validator.numerics import kl_divergence, matmul_sigma, measure, normal_lambda
>>> x, w = torch.ones(1, 64).double(), torch.ones(64, 4).double()
>>> bool((normal_lambda(4) * matmul_sigma(x, w, x @ w) < 1e-4).all())
True
>>> measure(ref=torch.ones(8), cand=torch.ones(8) * 1.5).max_abs
0.5
>>> kl_divergence(torch.zeros(1, 4), torch.zeros(1, 4)).tolist()
[0.0]

The modules `ulp`, `gain`, `kernels` and `rounding_kernels` hold more. Importing this package loads no torch.
"""

from importlib import import_module
from typing import Any

_NAMES = {
    "bands": (
        "Noise",
        "blocked_lambda",
        "factors_sigma",
        "fp8_sigma",
        "is_explained",
        "matmul_sigma",
        "normal_lambda",
        "partials_sigma",
        "product_noise",
        "softmax_sigma",
        "tail_lambda",
        "truncation_bound",
    ),
    "block_formats": (
        "MXFP4",
        "MXFP8_E4M3",
        "MXFP8_E5M2",
        "BlockFormat",
        "BlockScaled",
        "block_ulp",
        "dequantise",
        "quantise",
        "round_blocks",
        "unpack_float4",
    ),
    "cache_scales": ("CacheScale",),
    "contractions": ("Accumulation", "Order", "fp8_product", "rounded_sum", "split_terms", "sum_products"),
    "distributions": ("DistributionFigures", "WorstPosition", "compare_logits"),
    "divergences": ("js_divergence", "kl_divergence", "total_variation"),
    "emulation": ("Emulation", "RoundingMode"),
    "flips": (
        "FlippedToken",
        "Flips",
        "flip_sigmas",
        "judge_flips",
        "overtaking_probability",
        "poisson_binomial_sf",
    ),
    "formats": ("FORMATS", "Format", "format_of"),
    "gain": ("Gain", "slice_gains"),
    "greedy": ("FirstDifference", "GreedyVerdict", "judge_greedy"),
    "metrics": ("DimErrors", "Metrics", "measure", "measure_blocks"),
    "operator_bands": (
        "attention_noise",
        "gelu_noise",
        "layer_norm_noise",
        "rms_norm_noise",
        "rope_noise",
        "silu_noise",
        "sum_noise",
    ),
    "perplexity": ("Perplexity", "compare_perplexity"),
    "recipes": ("EAGER", "FUSED", "RECIPES", "Recipe"),
    "rounding": ("round_nearest", "round_stochastic", "round_toward_zero"),
    "sampling": ("SampleTest", "gumbel_choice", "paired_gumbel", "sample_test"),
    "shrinkage": ("shrunk_sigma",),
    "spreads": ("Spread", "clustered_se"),
    "top_bounds": ("Bounds", "kl_bounds", "total_variation_bounds"),
    "top_lists": ("TopLogprobs",),
    "top_logprobs": ("TopLogprobFigures", "compare_top_logprobs"),
    "ulp": ("ulp_error", "ulp_steps"),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_MODULE_OF]
