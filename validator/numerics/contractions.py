"""Sums of products in a chosen order, block and accumulator, as software models of what kernels do.

Each addition is computed in float64 and then rounded to the accumulator, so that a product enters it
unrounded, as it does in a fused multiply-add.

Shape legend: * = batch, equal on both sides; M = rows, K = terms, N = columns.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from validator.errors import ComparisonError
from validator.numerics.formats import FORMATS, Format
from validator.numerics.rounding import round_nearest, round_toward_zero
from validator.numerics.ulp import ulp

__all__ = [
    "FACTORS",
    "TF32",
    "Accumulation",
    "Order",
    "fp8_errors",
    "fp8_product",
    "product_of_parts",
    "rounded_sum",
    "split_terms",
    "sum_products",
]

FP8_BLOCK = 128
TF32 = Format(
    name="tf32",
    dtype=None,
    bits=19,
    precision=11,
    e_min=-126,
    e_max=127,
    max=(2 - 2**-10) * 2.0**127,
    last_magnitude=0xFF << 10,
)
"""What some devices round the factors of float32 products to: 10 bits after the leading one."""
FACTORS = {
    "float32": FORMATS["float32"],
    "tf32": TF32,
    "float16": FORMATS["float16"],
    "bfloat16": FORMATS["bfloat16"],
}
"""What the factors of float32 products may be rounded to, strictest first."""
_FP8 = FORMATS["float8_e4m3fn"]
_FLOAT32 = FORMATS["float32"]
_Add = Callable[[Tensor, Tensor], Tensor]


class Order(StrEnum):
    """In which order terms are added.

    `pairwise` adds neighbours, then neighbouring sums; `blocked` sums `block` neighbours one by one, and then
    the blocks' sums one by one.
    """

    SEQUENTIAL = "sequential"
    REVERSED = "reversed"
    PAIRWISE = "pairwise"
    BLOCKED = "blocked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulation:
    """How one sum is accumulated.

    Attributes:
        fmt: format of the sums.
        order: of the terms.
        block: terms in a block, where the order is `blocked`.
        bits: where given, the running sum of single terms keeps this many bits after its leading one, and the
            rest is cut off; the sums of blocks stay in `fmt`.
    """

    fmt: Format = _FLOAT32
    order: Order = Order.SEQUENTIAL
    block: int | None = None
    bits: int | None = None

    def add(self, total: Tensor, term: Tensor) -> Tensor:
        """Add a term to the running sum, and round it to the accumulator."""
        total = total + term
        if self.bits is None:
            return round_nearest(total, self.fmt)
        return round_toward_zero(total, _with_bits(self.fmt, self.bits))

    def add_block(self, total: Tensor, block: Tensor) -> Tensor:
        """Add a block's sum to the sum of the blocks."""
        return round_nearest(total + block, self.fmt)


def sum_products(a: Tensor, b: Tensor, how: Accumulation) -> Tensor:
    """Multiply matrices with every sum accumulated in a chosen way.

    Args:
        a: `[*, M, K]` float64, values of a format of at most 26 bits, so that products are exact.
        b: `[*, K, N]` float64, as `a`.
        how: order and accumulator.

    Returns:
        `[*, M, N]` float64, values of the accumulator; zeros where K is 0.

    Raises:
        ComparisonError: an operand is not float64.

    Source:
        Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed. (2002), section 4.1 (orders).
    """
    for name, operand in (("a", a), ("b", b)):
        if operand.dtype != torch.float64:
            raise ComparisonError(
                f"{name} is {operand.dtype}: give float64, which holds its products exactly"
            )
    count = a.shape[-1]
    nothing = a.new_zeros((*a.shape[:-1], b.shape[-1]))
    if how.order is Order.BLOCKED and how.block is not None:
        return _blocked(a, b, how, how.block)
    indices = reversed(range(count)) if how.order is Order.REVERSED else range(count)
    terms = (a[..., :, j : j + 1] * b[..., j : j + 1, :] for j in indices)
    if how.order is Order.PAIRWISE:
        return _pairwise((how.add(nothing, term) for term in terms), nothing, how.add)
    total = nothing
    for term in terms:
        total = how.add(total, term)
    return total


def rounded_sum(parts: Iterable[Tensor], fmt: Format) -> Tensor:
    """Add up partial sums, one after the other, each of them and each sum kept in a format.

    Args:
        parts: `[*]` float64, at least one. One alone is no partial sum, and is returned as it is.
        fmt: the format that they are kept in.
    """
    first, *others = parts
    if not others:
        return first
    total = round_nearest(first, fmt)
    for part in others:
        total = round_nearest(total + round_nearest(part, fmt), fmt)
    return total


def split_terms(a: Tensor, b: Tensor, parts: int) -> list[tuple[Tensor, Tensor]]:
    """Split the terms of a product into contiguous parts, none of them empty unless all are.

    Args:
        a: `[*, M, K]`.
        b: `[*, K, N]`.
        parts: how many, at most.
    """
    parts = max(min(parts, a.shape[-1]), 1)
    return list(zip(a.tensor_split(parts, -1), b.tensor_split(parts, -2), strict=True))


def product_of_parts(
    a: Tensor, b: Tensor, *, parts: int, fmt: Format, summed: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Multiply matrices with the terms split into parts, whose sums are kept and added up in a format.

    Args:
        a: `[*, M, K]` float64.
        b: `[*, K, N]` float64.
        parts: contiguous parts; 1 leaves no partial sums.
        fmt: format of the parts' sums.
        summed: multiplies one part.
    """
    return rounded_sum([summed(*part) for part in split_terms(a, b, parts)], fmt)


def fp8_product(x: Tensor, w: Tensor, how: Accumulation) -> Tensor:
    """Multiply matrices in float8_e4m3fn with block scales, as an FP8 GEMM does.

    Each block's largest magnitude is scaled to 448: blocks of 1 x 128 along K in `x`, of 128 x 128 in `w`.
    The products of 128 terms are accumulated as `how` says, then scaled and added to a float32 sum.

    Args:
        x: `[M, K]` float64, the activations.
        w: `[K, N]` float64, the weight, transposed as a linear layer multiplies by it.
        how: order and accumulator within 128 terms.

    Returns:
        `[M, N]` float64, values of float32.

    Source:
        DeepSeek-V3 technical report, arXiv 2412.19437, section 3.3.2.
    """
    total = x.new_zeros((x.shape[0], w.shape[1]))
    for x_block, w_block in zip(x.split(FP8_BLOCK, 1), w.split(FP8_BLOCK, 0), strict=True):
        x_scale, w_scale = _fp8_scales(x_block, w_block)
        product = sum_products(_quantised(x_block, x_scale), _quantised(w_block, w_scale), how)
        total = round_nearest(total + product * round_nearest(x_scale * w_scale, _FLOAT32), _FLOAT32)
    return total


def fp8_errors(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Return the deviation that `fp8_product`'s quantisation gives to each element of its factors.

    Args:
        x: `[M, K]` float64.
        w: `[K, N]` float64.

    Returns:
        `[M, K]` and `[K, N]` float64: a step of float8_e4m3fn at the scaled value, over sqrt(12).
    """
    of_x: list[Tensor] = []
    of_w: list[Tensor] = []
    for x_block, w_block in zip(x.split(FP8_BLOCK, 1), w.split(FP8_BLOCK, 0), strict=True):
        for errors, block, scale in zip(
            (of_x, of_w), (x_block, w_block), _fp8_scales(x_block, w_block), strict=True
        ):
            errors.append(ulp(block / scale, _FP8) * scale / math.sqrt(12))
    return torch.cat(of_x, 1), torch.cat(of_w, 0)


def _fp8_scales(x_block: Tensor, w_block: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scales `[M, 1]` and `[1, N]` of one block of terms."""
    columns = [block.abs().amax().expand(block.shape[1]) for block in w_block.split(FP8_BLOCK, 1)]
    return _scale(x_block.abs().amax(1, keepdim=True)), _scale(torch.cat(columns)[None])


def _blocked(a: Tensor, b: Tensor, how: Accumulation, size: int) -> Tensor:
    total = a.new_zeros((*a.shape[:-1], b.shape[-1]))
    for a_block, b_block in zip(a.split(size, -1), b.split(size, -2), strict=True):
        block = torch.zeros_like(total)
        for j in range(a_block.shape[-1]):
            block = how.add(block, a_block[..., :, j : j + 1] * b_block[..., j : j + 1, :])
        total = how.add_block(total, block)
    return total


def _pairwise(terms: Iterable[Tensor], nothing: Tensor, add: _Add) -> Tensor:
    """Sum as a balanced tree of neighbours does, holding one sum of each depth."""
    sums: list[tuple[int, Tensor]] = []
    for term in terms:
        depth, total = 0, term
        while sums and sums[-1][0] == depth:
            total = add(sums.pop()[1], total)
            depth += 1
        sums.append((depth, total))
    if not sums:
        return nothing
    total = sums.pop()[1]
    while sums:
        total = add(sums.pop()[1], total)
    return total


def _with_bits(fmt: Format, bits: int) -> Format:
    """Return the format with `bits` bits after the leading one, for cutting to."""
    return Format(
        name=f"{fmt.name} cut to {bits} bits",
        dtype=None,
        bits=fmt.bits - (fmt.precision - 1 - bits),
        precision=bits + 1,
        e_min=fmt.e_min,
        e_max=fmt.e_max,
        max=(2 - 2.0**-bits) * 2.0**fmt.e_max,
        last_magnitude=fmt.last_magnitude >> (fmt.precision - 1 - bits),
    )


def _scale(greatest: Tensor) -> Tensor:
    scale = round_nearest(greatest / _FP8.max, _FLOAT32)
    return torch.where(scale > 0, scale, 1.0)


def _quantised(values: Tensor, scale: Tensor) -> Tensor:
    return round_nearest((values / scale).clamp(-_FP8.max, _FP8.max), _FP8)
