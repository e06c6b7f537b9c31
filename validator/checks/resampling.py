"""The noise of operators that combine neighbours: pooling, interpolation, sampling, Fourier transforms.

Shape legend: N = batch, C = channels, D = the spatial dims, * = the result's shape.
"""

import math
from typing import Any

from torch import Tensor

from validator.checks.how import How, Row
from validator.numerics.bands import C, Noise
from validator.numerics.formats import FORMATS

__all__ = ["RESAMPLING"]


def _average_pool(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    """Return the noise of an average over windows that each hold values no larger than their dims' largest.

    Source:
        The sum's row divided by its m terms, `0.43 u sqrt(m/2 sum a^2 + m/3 (m y)^2) / m`, where
        `sum a^2 <= m max^2`; and the division's.
    """
    x: Tensor = args[0]
    size = args[1] if isinstance(args[1], list | tuple) else [args[1]]
    spatial = len(size)
    is_adaptive = len(args) == 2 and not kwargs and _has_shape(result, size)
    if is_adaptive:
        size = [-(-x.shape[i - spatial] // size[i]) + 1 for i in range(spatial)]
    terms = math.prod(size * (spatial if len(size) == 1 else 1))
    largest = _largest(x, spatial)
    variance = largest.square() / 2 + (terms / 3 + 1) * result.square()
    return Noise(sigma=C * how.u_of_sums * variance.sqrt())


def _has_shape(result: Tensor, size: Any) -> bool:
    return list(result.shape[-len(size) :]) == list(size)


def _largest(x: Tensor, spatial: int) -> Tensor:
    """Return the largest magnitude of each channel, with dims of size 1 for the spatial ones."""
    return x.abs().amax(list(range(-spatial, 0)), keepdim=True)


def _interpolated(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    """Return the noise of linear and cubic interpolation along each spatial dim.

    Source:
        Positions in the input are good to `2 u size`, the weights of neighbours move with them (a cubic's at
        most 1.5 times as fast), and neighbours differ by at most twice the largest value: at most `6 u size`
        of it in all, a third of which as sigma is well inside of lambda. 16 products.
    """
    x: Tensor = args[0]
    spatial = result.dim() - 2
    reach = 2 * sum(x.shape[-spatial:])
    sigma = C * how.u * (4 + reach) * _largest(x, spatial)
    return Noise(sigma=sigma.expand(result.shape))


def _in_storage(row: Row) -> Row:
    """Return the row of an operator whose kernels may weigh and add up in the format of a 16-bit input."""

    def wider(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
        noise, spatial = row(args, kwargs, result, how), result.dim() - 2
        if how.fmt.precision >= FORMATS["float32"].precision:
            return noise
        bound = 2 * spatial * how.fmt.unit_roundoff * _largest(args[0], spatial)
        return Noise(sigma=noise.sigma, bound=bound.expand(result.shape))

    return wider


_NEAREST = 1
"""Mode of `grid_sampler_2d`."""


def _sampled(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    """Return the noise of sampling at points that are given: as of interpolation, the points being exact."""
    x: Tensor = args[0]
    spatial = result.dim() - 2
    largest = _largest(x, spatial).expand(result.shape)
    if args[2] == _NEAREST:
        # Rounding may decide which one is nearest.
        return Noise(bound=2 * largest)
    # Positions may be held in the format of the input.
    u = max(how.u, how.fmt.unit_roundoff)
    return Noise(sigma=C * u * (4 + 2 * sum(x.shape[-spatial:])) * largest)


def _fourier(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    """Return the noise of a Fourier transform: alike for all frequencies, as large as their mean square says.

    Source:
        Higham, "Accuracy and Stability of Numerical Algorithms", theorem 24.2: `log2(n)` stages, each of
        which adds a relative error of a few u to the transform's 2-norm; they add up as a random walk.
    """
    dims: list[int] = list(args[1])
    n = math.prod(max(args[0].shape[d], result.shape[d]) for d in dims)
    size = result.abs().square().mean(dims, keepdim=True).sqrt()
    sigma = C * how.u_of_sums * 6 * math.sqrt(math.log2(max(n, 1)) + 1) * size
    return Noise(sigma=sigma.expand(result.shape))


RESAMPLING: dict[str, Row] = {
    "_adaptive_avg_pool2d": _average_pool,
    "_adaptive_avg_pool3d": _in_storage(_average_pool),
    "_fft_c2c": _fourier,
    "_fft_c2r": _fourier,
    "_fft_r2c": _fourier,
    "_upsample_bicubic2d_aa": _interpolated,
    "_upsample_bilinear2d_aa": _interpolated,
    "adaptive_avg_pool1d": _average_pool,
    "avg_pool1d": _average_pool,
    "avg_pool2d": _average_pool,
    "avg_pool3d": _average_pool,
    "grid_sampler_2d": _sampled,
    "grid_sampler_3d": _sampled,
    "upsample_bicubic2d": _in_storage(_interpolated),
    "upsample_bilinear2d": _interpolated,
    "upsample_linear1d": _in_storage(_interpolated),
    "upsample_trilinear3d": _in_storage(_interpolated),
}
