"""What arithmetic `validator.emulate` runs a model with."""

from dataclasses import dataclass
from enum import StrEnum

from validator.numerics.contractions import FACTORS, Accumulation, Order
from validator.numerics.formats import FORMATS
from validator.numerics.legality import (
    FLOATS,
    demand_accumulator_bits,
    demand_at_least_one,
    demand_one_of,
    refuse,
)

__all__ = ["Emulation", "RoundingMode"]


class RoundingMode(StrEnum):
    """How an operator's result is rounded to its dtype."""

    NEAREST = "nearest"
    TOWARD_ZERO = "toward_zero"
    STOCHASTIC = "stochastic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """Arithmetic to run a model with; the defaults change nothing.

    Attributes:
        accumulate: format in which matrix products accumulate; None leaves the sums to torch's own kernel, in
            float32.
        order: of the additions, where `accumulate` is given.
        block: terms in a block of the order `blocked`.
        accumulator_bits: bits after the leading one that the accumulator keeps; the rest is cut off, as in
            FP8 tensor cores that keep 13. Needs `accumulate`.
        split_k: contiguous parts that each sum is split into.
        partials: format in which the parts' sums are kept and added up.
        ranks: emulated ranks that the terms of each product are sharded over, as those of a row-parallel
            projection are; `emulate_module` picks the projection.
        reduce: format in which the ranks' sums are added up; None is that of the operands.
        rounding: of every operator's result.
        flush_subnormals: whether float32 and bfloat16 results below 2^-126 become 0, as in a device's
            flush-to-zero mode. Those of float16 are normal in the float32 that it computes in, and stay.
        factors: format that factors of float32 matrix products are rounded to, one of `contractions.FACTORS`.
        fp8: whether products of two matrices (not batches of them, as in attention) run in float8_e4m3fn with
            block scales; see `numerics.contractions.fp8_product`.
        seed: of stochastic rounding, drawn anew at each entry.
    """

    accumulate: str | None = None
    order: Order = Order.SEQUENTIAL
    block: int | None = None
    accumulator_bits: int | None = None
    split_k: int = 1
    partials: str = "float32"
    ranks: int = 1
    reduce: str | None = None
    rounding: RoundingMode = RoundingMode.NEAREST
    flush_subnormals: bool = False
    factors: str = "float32"
    fp8: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        demand_one_of(self, "accumulate", (None, *FLOATS))
        demand_one_of(self, "order", tuple(Order))
        demand_one_of(self, "partials", FLOATS)
        demand_one_of(self, "factors", tuple(FACTORS))
        demand_one_of(self, "reduce", (None, *FLOATS))
        demand_one_of(self, "rounding", tuple(RoundingMode))
        # A plain string is as good as its enum's member, but only the member can be told by `is`.
        object.__setattr__(self, "order", Order(self.order))
        object.__setattr__(self, "rounding", RoundingMode(self.rounding))
        demand_at_least_one(self, "split_k", "ranks", "block")
        if (self.block is None) != (self.order is not Order.BLOCKED):
            refuse(
                self,
                "block",
                self.block,
                f"the order is {self.order}; give both order='blocked' and block, or neither",
            )
        if self.accumulate is None and (self.order, self.accumulator_bits) != (Order.SEQUENTIAL, None):
            refuse(
                self, "accumulate", None, "torch's own kernel sums; order and accumulator_bits need a format"
            )
        if self.accumulate is not None:
            demand_accumulator_bits(self)
        if self.split_k == 1 and self.partials != "float32":
            refuse(
                self,
                "partials",
                self.partials,
                "split_k is 1, and one part leaves no partial sums: give 2 or more",
            )
        if self.ranks == 1 and self.reduce is not None:
            refuse(self, "reduce", self.reduce, "ranks is 1: one rank reduces nothing; give 2 or more")
        if self.fp8 and (self.factors != "float32" or self.split_k > 1 or self.ranks > 1):
            why = "it has its own factors and parts; leave out factors, split_k and ranks"
            refuse(self, "fp8", True, why)

    @property
    def accumulation(self) -> Accumulation | None:
        """How one sum is accumulated, or None where torch's own kernel does it."""
        if self.accumulate is None:
            return None
        return Accumulation(
            fmt=FORMATS[self.accumulate], order=self.order, block=self.block, bits=self.accumulator_bits
        )
