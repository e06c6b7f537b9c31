"""Orders in which candidates are known to lay out a dim, by name, each made from its layout line.

Orders come in families: those of one family are ways to lay out the same pieces, so that a candidate may have
any of them where any other is expected.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations

import numpy as np
import numpy.typing as npt

from validator.errors import LayoutError
from validator.sharding.grammar import read_line
from validator.sharding.places import places_of

__all__ = ["RANKS", "Order", "families", "order_names", "padded_families", "pairs", "read_as"]

Places = npt.NDArray[np.int64]

RANKS = (2, 4, 8)
"""Numbers of ranks that may have made a checkpoint that one rank runs."""
MOST_HEADS = 128
HEAD_SIZES = (2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256, 512)
BLOCKS = (2, 4, 8, 16, 32, 64, 128, 256)
MULTIPLES = (2, 4, 8, 16, 32, 64, 128, 256)
"""Sizes are padded to multiples of these."""
PERMUTED_RANKS = 4
"""All orders of so many ranks are tried; of more their reverse, and turns of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A way to lay out a dim.

    Attributes:
        name: in words that follow "is" and "should be".
        line: the dim in the words of `sharding.layout`, on the axis `tp`.
        places: `[size]` logical position of each of the candidate's, -1 for padding.
    """

    name: str
    line: str
    places: Places


def families(
    meaning: str,
    size: int,
    *,
    ranks: Sequence[int],
    head_size: int | None = None,
    is_repeated: bool = False,
) -> Iterator[list[Order]]:
    """Yield the families of orders of a dim, the first of each being the plain one.

    Args:
        meaning: of the dim: `"batch"`, `"token"`, `"head"`, `"channel"`, `"expert"`, or `""` for any.
        size: of the dim.
        ranks: numbers of ranks that may hold it: of the ranks that do, where there is one.
        head_size: channels of a head, where it is known.
        is_repeated: whether slices of the oracle are alike, as heads are that share a kv head.
    """
    is_known = len(ranks) == 1
    if is_known:
        yield from _rank_orders(size, ranks)
    match meaning:
        case "token":
            yield from () if is_known else _packed_tokens(size, ranks)
            yield _tokens(size, ranks)
            yield from _packed_tokens(size, ranks) if is_known else ()
        case "head":
            yield from _tiled(size) if is_repeated else ()
            yield _dealt("heads", size, ranks)
        case "batch" | "expert":
            yield _dealt({"batch": "sequences", "expert": "experts"}[meaning], size, ranks)
        case _:
            yield _halves(size, ranks, is_known=is_known)
            yield from _rotary(size, head_size)
            yield from _qkv(size, ranks, is_known=is_known)
            yield from _dealt_heads(size, ranks, head_size)


def order_names(
    order: Places, *, meaning: str = "", ranks: tuple[int, ...] = RANKS
) -> tuple[str, str] | None:
    """Return what an order is and should be, by the name of a known one; None where it is not known.

    Args:
        order: `[N]` which of the reference's slices each of the candidate's is.
        meaning: of the dim, as `orders.families` takes it.
        ranks: numbers of ranks that may hold it.
    """
    for actual, expected in pairs(partial(families, meaning, len(order), ranks=ranks)):
        if np.array_equal(read_as(actual, expected), order):
            return actual.name, expected.name
    return None


def pairs(known: Callable[[], Iterator[list[Order]]]) -> Iterator[tuple[Order, Order]]:
    """Yield what the layout may be and what it is taken for; first where it is taken for the plain one."""
    for family in known():
        yield from ((actual, family[0]) for actual in family[1:])
    for family in known():
        for expected, actual in permutations(family, 2):
            is_whole = bool((expected.places >= 0).all()) and len(expected.places) == len(family[0].places)
            if expected is not family[0] and is_whole:
                yield actual, expected


def read_as(actual: Order, expected: Order) -> Places:
    """Return which of the reference's slices each is, of a tensor in one order that is read as another."""
    order = np.empty_like(actual.places)
    order[expected.places] = actual.places
    return order


def padded_families(size: int, ranks: Sequence[int]) -> Iterator[list[Order]]:
    """Yield the families of orders with padding in between, whose last slices are cut off."""
    for count in ranks:
        for multiple in MULTIPLES:
            line = f"x[tp]:pad({multiple})"
            name = f"the shard of each of {count} ranks padded to a multiple of {multiple}"
            yield _family(size, count, "shards without padding between them", [(name, line)])


def _rank_orders(size: int, ranks: Sequence[int]) -> Iterator[list[Order]]:
    for count in ranks:
        if count <= PERMUTED_RANKS:
            orders = list(permutations(range(count)))[1:]
        else:
            turned = [[*range(by, count), *range(by)] for by in range(1, count)]
            orders = [tuple(order) for order in ([*range(count)][::-1], *turned)]
        for order in orders:
            listed = ",".join(map(str, order))
            yield _family(
                size,
                count,
                "shards in the order of the ranks",
                [(f"shards of ranks {listed}", f"x[tp:{listed}]")],
            )


def _halves(size: int, ranks: Sequence[int], *, is_known: bool) -> list[Order]:
    others = [
        ("the second half first (up, then gate)", "(gate|up):1,0"),
        ("halves interleaved (gate and up in turn)", "(gate|up):interleaved"),
        ("halves interleaved, the second first", "(gate|up):1,0:interleaved"),
        *((f"halves interleaved in blocks of {n}", f"(gate|up):interleaved({n})") for n in BLOCKS),
    ]
    (plain, *whole) = _family(size, 1, "halves (gate, then up)", others)
    of_ranks: list[Order] = []
    for count in ranks:
        blocks = [(f"gate and up of each of {count} ranks together", "(gate|up)[tp]")]
        of_ranks += _family(size, count, "", blocks)[1:]
    return [plain, *of_ranks, *whole] if is_known else [plain, *whole, *of_ranks]


def _qkv(size: int, ranks: Sequence[int], *, is_known: bool) -> Iterator[list[Order]]:
    """Yield those of q, k and v for all numbers of heads that the size allows."""
    for kv_heads in range(1, MOST_HEADS + 1):
        if size % kv_heads:
            continue
        for queries in range(1, MOST_HEADS // kv_heads + 1):
            if (size // kv_heads) % (queries + 2):
                continue
            heads = f"(q={queries * kv_heads}|k={kv_heads}|v={kv_heads})"
            by_group = [("Q, K and V per kv group", f"{heads}:per_kv_group")]
            (plain, *grouped) = _family(size, 1, "all of Q, then K, then V", by_group)
            of_ranks: list[Order] = []
            for count in ranks:
                if kv_heads % count == 0:
                    blocks = [(f"Q, K and V of each of {count} ranks together", f"{heads}[tp]")]
                    of_ranks += _family(size, count, "", blocks)[1:]
            yield [plain, *of_ranks, *grouped] if is_known else [plain, *grouped, *of_ranks]


def _rotary(size: int, head_size: int | None) -> Iterator[list[Order]]:
    for channels in HEAD_SIZES if head_size is None else (head_size,):
        if channels % 2 == 0 and size % channels == 0:
            yield _family(
                size,
                1,
                f"rotary halves of each head of {channels}",
                [
                    (
                        f"rotary pairs interleaved in each head of {channels}",
                        f"(heads={size // channels} (x|y):interleaved)",
                    )
                ],
            )


def _dealt_heads(size: int, ranks: Sequence[int], head_size: int | None) -> Iterator[list[Order]]:
    for count in ranks:
        for channels in HEAD_SIZES if head_size is None else (head_size,):
            if size % channels == 0 and (size // channels) % count == 0:
                name = f"heads of {channels}"
                line = f"(heads={size // channels} dim)[tp:interleaved]"
                yield _family(
                    size, count, f"{name} in order", [(f"{name} dealt to {count} ranks in turn", line)]
                )


def _dealt(what: str, size: int, ranks: Sequence[int]) -> list[Order]:
    family = _family(size, 1, f"{what} in order", [])
    for count in ranks:
        family += _family(size, count, "", [(f"{what} dealt to {count} ranks in turn", "x[tp:interleaved]")])[
            1:
        ]
    return family


def _tiled(size: int) -> Iterator[list[Order]]:
    for kv_heads in range(2, size):
        if size % kv_heads == 0:
            repeated = Order(name=f"each of {kv_heads} kv heads repeated", line="", places=np.arange(size))
            places = np.arange(size).reshape(kv_heads, -1).T.reshape(-1)
            yield [repeated, Order(name=f"all {kv_heads} kv heads in turn", line="", places=places)]


def _tokens(size: int, ranks: Sequence[int]) -> list[Order]:
    family = _family(size, 1, "tokens in order", [])
    for count in ranks:
        orders = [
            (f"tokens in zigzag over {count} ranks", "s[tp:zigzag]"),
            (f"tokens dealt to {count} ranks in turn", "s[tp:interleaved]"),
            *((f"tokens dealt to {count} ranks in turns of {n}", f"s[tp:interleaved({n})]") for n in BLOCKS),
        ]
        family += _family(size, count, "", orders)[1:]
    return family


def _packed_tokens(size: int, ranks: Sequence[int]) -> Iterator[list[Order]]:
    """Yield those of sequences of one length in one dim, each cut by itself."""
    for sequences in range(2, min(size, MOST_HEADS)):
        if size % sequences:
            continue
        of_all = f"{sequences} sequences one after the other"
        family = _family(size, 1, of_all, [])
        places = np.arange(size).reshape(sequences, -1).T.reshape(-1)
        family.append(Order(name=f"the tokens of {sequences} sequences in turn", line="", places=places))
        for count in ranks:
            orders = [
                (
                    f"the shards of {count} ranks, each with its part of {sequences} sequences",
                    f"(b={sequences} s[tp])",
                ),
                (f"{sequences} sequences in zigzag each over {count} ranks", f"(b={sequences} s[tp:zigzag])"),
                (f"tokens in zigzag over {count} ranks as one sequence", "s[tp:zigzag]"),
            ]
            family += _family(size, count, "", orders)[1:]
        yield family


def _family(size: int, ranks: int, plain: str, others: Sequence[tuple[str, str]]) -> list[Order]:
    """Return the plain order, and those of the others that fit the size and are not plain."""
    family = [Order(name=plain, line="x", places=np.arange(size))]
    for name, line in others:
        places = _places(line, size, ranks)
        if places is not None and not np.array_equal(places, family[0].places):
            family.append(Order(name=name, line=line, places=places))
    return family


def _places(line: str, size: int, ranks: int) -> Places | None:
    """Return the order of the ranks' parts laid end to end, as far as the size; None where nothing fits."""
    dim = read_line(line)["output"].dims[0]
    try:
        parts = [places_of(dim, size, axes={"tp": (i, ranks)}, text=line) for i in range(ranks)]
    except LayoutError:
        return None
    return np.concatenate(parts)[:size]
