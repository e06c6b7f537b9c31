"""Collectives of the backend at hand, against exact answers.

What moves data unchanged is given random bits, NaNs and subnormals among them: whatever another part, an
older call, a shift or a cast leaves is seen and told apart. What reduces is given numbers of which
every partial sum is exact in the format, so that one answer is right whatever the order: a contribution that
is missing, doubled, scaled or rounded leaves its rank's own numbers as the difference. Numbers of which
no two orders make the same sum tell the order and the format.
"""

from collections.abc import Iterator

import torch

from validator.numerics.formats import FORMATS
from validator.probing.bandwidth import BandwidthCase
from validator.probing.draws import Draw, Memory
from validator.probing.exact import ExactCase
from validator.probing.exchanges import Collective, Reduction
from validator.probing.overlap import OverlapCase
from validator.probing.rounding import OrderCase

min_ranks = 2

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
NARROW = (torch.float8_e4m3fn, torch.float8_e5m2)
INTEGERS = (torch.int64, torch.int32, torch.uint8, torch.bool)
# No multiples of anything, none at all, and one that a transposed tensor can have.
SIZES = (1, 257, 1023, 0)
COLUMNS = (258,)
MOVING = (Collective.ALL_GATHER, Collective.ALL_TO_ALL, Collective.BROADCAST, Collective.SEND_RECV)
REDUCING = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER)
HAS_PARTS = (Collective.ALL_GATHER, Collective.ALL_TO_ALL, Collective.REDUCE_SCATTER)


def cases(world_size: int) -> Iterator[ExactCase | OrderCase | OverlapCase | BandwidthCase]:
    """Yield what is asked of the backend."""
    for collective in MOVING:
        yield from moving(collective)
    for collective in REDUCING:
        yield from reducing(collective)
    for collective in (*MOVING, *REDUCING):
        reduction = Reduction.SUM if collective in REDUCING else None
        yield OverlapCase(
            name="overlapped with compute",
            exposes="a buffer that is sent before it is filled, or read or overwritten too early",
            collective=collective,
            reduction=reduction,
            values=integers if reduction else bits,
            sizes=(20_001,),
            dtypes=(torch.float32,),
        )
        yield BandwidthCase(
            name="bandwidth",
            collective=collective,
            reduction=reduction,
            values=integers,
            sizes=(1 << 10, 1 << 16, 1 << 22),
            dtype=torch.bfloat16,
        )


def moving(collective: Collective) -> Iterator[ExactCase]:
    """Yield cases of a collective that changes no bit."""
    yield ExactCase(
        name="random bits",
        exposes="chunks that are swapped, shifted, cut off, stale or cast",
        collective=collective,
        values=bits,
        sizes=SIZES,
        dtypes=(*FLOATS, *NARROW, *INTEGERS),
    )
    if collective in HAS_PARTS:
        yield ExactCase(
            name="uneven parts",
            exposes="offsets that come from the rank's own part, and ranks that send nothing",
            collective=collective,
            values=bits,
            sizes=(1, 101),
            dtypes=(torch.float32, torch.bfloat16),
            uneven=True,
        )
    yield from scattered(collective, None)


def reducing(collective: Collective) -> Iterator[ExactCase | OrderCase]:
    """Yield cases of a collective that adds."""
    for values, exposes in (
        (integers, "a contribution that is missing, doubled or rounded; a reduction in a narrower format"),
        (one_owner, "whose contribution is corrupt: each element has one rank's alone"),
    ):
        yield ExactCase(
            name=values.__name__.replace("_", " "),
            exposes=exposes,
            collective=collective,
            reduction=Reduction.SUM,
            values=values,
            sizes=SIZES if values is integers else (257,),
            dtypes=(*FLOATS, *NARROW, torch.int64, torch.int32),
        )
    yield ExactCase(
        name="special values",
        exposes="infinities and NaNs of one rank that do not reach the others",
        collective=collective,
        reduction=Reduction.SUM,
        values=special,
        sizes=(257,),
        dtypes=FLOATS,
    )
    for reduction, values in (
        (Reduction.AVG, integers),
        (Reduction.MAX, integers),
        (Reduction.MIN, integers),
        (Reduction.PRODUCT, powers),
    ):
        yield ExactCase(
            name=values.__name__,
            exposes="the same of other reductions",
            collective=collective,
            reduction=reduction,
            values=values,
            sizes=(257,),
            dtypes=FLOATS,
        )
    if collective in HAS_PARTS:
        yield ExactCase(
            name="uneven parts",
            exposes="offsets that come from the rank's own part",
            collective=collective,
            reduction=Reduction.SUM,
            values=integers,
            sizes=(1, 101),
            dtypes=(torch.float32, torch.bfloat16),
            uneven=True,
        )
    yield from scattered(collective, Reduction.SUM)
    # Backends change their algorithm with the size.
    yield OrderCase(
        name="rounding sums",
        exposes="orders that change from call to call or rank to rank; a wider or narrower accumulator",
        collective=collective,
        values=rounding,
        sizes=(1023, 65_537),
        dtypes=(*FLOATS, *NARROW),
    )


def scattered(collective: Collective, reduction: Reduction | None) -> Iterator[ExactCase]:
    """Yield cases on tensors that are not contiguous, which a backend must read right or refuse.

    torch promises neither, and gloo reads some as if they were contiguous (pytorch issues 24836, 192920).
    """
    for memory, sizes in ((Memory.TRANSPOSED, COLUMNS), (Memory.STRIDED, (257,))):
        yield ExactCase(
            name=f"{memory} memory",
            exposes="elements taken in the order of memory, or from the gaps",
            collective=collective,
            reduction=reduction,
            values=bits if reduction is None else integers,
            sizes=sizes,
            dtypes=(torch.float32,),
            memory=memory,
            promised=False,
        )


def bits(draw: Draw) -> torch.Tensor:
    """Return random bit patterns; never the one that buffers are filled with."""
    if draw.dtype is torch.bool:
        return torch.rand(draw.size, generator=draw.generator()) < 0.5
    width = draw.dtype.itemsize
    patterns = torch.randint(0, 256, (draw.size, width), dtype=torch.uint8, generator=draw.generator())
    patterns[:, 0] = patterns[:, 0].clamp(max=254)
    return patterns.reshape(-1).view(draw.dtype)


def integers(draw: Draw) -> torch.Tensor:
    """Return integers, as large as their sums stay exact, with one of them doubled.

    None of them is 0, unless there are more ranks than the format has integers: then as many take turns.
    """
    largest = _largest(draw) // (draw.world_size + 1)
    numbers = torch.randint(
        (largest + 1) // 2, largest + 1, (draw.size,), dtype=torch.int64, generator=draw.generator()
    ).clamp(min=1)
    signs = torch.randint(0, 2, (draw.size,), generator=draw.generator("sign")) * 2 - 1
    has_turn = (torch.arange(draw.size) + draw.rank) % draw.world_size < _largest(draw)
    return (numbers * signs * has_turn).to(torch.float64).to(draw.dtype)


def one_owner(draw: Draw) -> torch.Tensor:
    """Return integers where the element's number says that it is this rank's, else 0."""
    mine = (torch.arange(draw.size) % draw.world_size) == draw.rank
    return torch.where(mine, integers(draw), torch.zeros((), dtype=draw.dtype))


def special(draw: Draw) -> torch.Tensor:
    """Return integers, and on one rank an infinity or NaN each seventh element."""
    numbers = integers(draw)
    mine = torch.arange(draw.size) % (7 * draw.world_size) == 7 * draw.rank
    kinds = torch.tensor([float("inf"), float("-inf"), float("nan")], dtype=torch.float64).to(draw.dtype)
    return torch.where(mine, kinds[torch.arange(draw.size) % 3], numbers)


def powers(draw: Draw) -> torch.Tensor:
    """Return powers of two, none of them 1: products are exact, and each factor leaves its mark."""
    exponents = torch.randint(0, 2, (draw.size,), generator=draw.generator()) * 2 - 1
    signs = torch.randint(0, 2, (draw.size,), generator=draw.generator("sign")) * 2 - 1
    return (signs * torch.exp2(exponents.to(torch.float64))).to(draw.dtype)


def rounding(draw: Draw) -> torch.Tensor:
    """Return numbers of which each order and inner format makes another sum.

    Every second element is of any size within the format's precision, which tells the orders of sums that
    round at each hop. In the others two ranks' large numbers cancel and leave what a float32 inside lost.
    """
    fmt = next(fmt for fmt in FORMATS.values() if fmt.dtype == draw.dtype)
    generator = draw.generator()
    significands = 1 + torch.rand(draw.size, dtype=torch.float64, generator=generator)
    signs = torch.randint(0, 2, (draw.size,), generator=generator) * 2 - 1
    spread = min(fmt.precision, fmt.e_max // 2)
    exponents = torch.randint(-spread // 2, spread // 2 + 1, (draw.size,), generator=generator)
    numbers = signs * torch.ldexp(significands, exponents)
    # The same on every rank: who has the large numbers, and what they are.
    pair = torch.rand(draw.size, draw.world_size, generator=draw.shared_generator()).argsort(1)[:, :2]
    large = torch.ldexp(torch.ones((), dtype=torch.float64), torch.tensor(min(24, fmt.e_max - 2)))
    cancelling = torch.where(
        pair[:, 0] == draw.rank, large, torch.where(pair[:, 1] == draw.rank, -large, numbers)
    )
    every_second = torch.arange(draw.size) % 2 == 0
    return torch.where(every_second, numbers, cancelling).to(draw.dtype)


def _largest(draw: Draw) -> int:
    """Return the integer up to which the format has all."""
    fmt = next((fmt for fmt in FORMATS.values() if fmt.dtype == draw.dtype), None)
    # Products in float64 stay exact below 2^53 too, and integers must not be large for a sum to be right.
    return 1 << (fmt.precision if fmt is not None else 20)
