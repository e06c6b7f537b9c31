"""The order and the format of a sum are read off its bits."""

import pytest
import torch
from torch import Tensor

from tests.planted_collectives import content
from validator.numerics.formats import FORMATS
from validator.numerics.rounding import round_nearest
from validator.probing.draws import Draw
from validator.probing.orders import recognise
from validator.probing.records import OrderKind

SIZE = 600


def parts(world_size: int, dtype: str) -> Tensor:
    """Return what the shipped probe adds, `[world_size, SIZE]` float64."""
    draws = [
        Draw(rank=rank, world_size=world_size, size=SIZE, dtype=FORMATS[dtype].dtype or torch.float32, turn=0)
        for rank in range(world_size)
    ]
    return torch.stack([content().rounding(draw).to(torch.float64) for draw in draws])


def fold(parts_N: Tensor, ranks: list[int], inner: str) -> Tensor:
    total = parts_N[ranks[0]]
    for rank in ranks[1:]:
        total = round_nearest(total + parts_N[rank], FORMATS[inner])
    return total


def rotated(start: int, size: int) -> list[int]:
    return [(start + hop) % size for hop in range(size)]


@pytest.mark.parametrize("inner", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("world_size", [3, 5, 8])
def test_one_rank_after_the_other_is_named_with_its_first(world_size: int, inner: str) -> None:
    parts_N = parts(world_size, "bfloat16")
    got = round_nearest(fold(parts_N, rotated(2, world_size), inner), FORMATS["bfloat16"])
    order, formats = recognise(got, parts_N, FORMATS["bfloat16"])
    if inner == "float64":  # so wide that the sum is exact, whatever the order
        assert (order.kind, formats) == (OrderKind.HIDDEN, ("float64",))
    else:
        names = ", ".join(map(str, rotated(2, world_size)))
        assert (order.kind, formats) == (OrderKind.FOLD, (inner,))
        assert order.text == f"one after the other: {names}"


@pytest.mark.parametrize("world_size", [3, 4, 8])
def test_a_ring_is_one_order_a_chunk(world_size: int) -> None:
    parts_N = parts(world_size, "float16")
    chunks = zip(range(world_size), parts_N.chunk(world_size, 1), strict=True)
    got = torch.cat([fold(chunk, rotated(start, world_size), "float16") for start, chunk in chunks])
    order, formats = recognise(got, parts_N, FORMATS["float16"])
    assert (order.kind, order.text) == (OrderKind.RING, f"ring, upwards, in {world_size} chunks")
    assert formats == ("float16",)


def test_any_tree_over_five_ranks_is_found() -> None:
    parts_N = parts(5, "float32")
    f32 = FORMATS["float32"]
    pair = round_nearest(parts_N[1] + parts_N[4], f32)
    got = fold(torch.stack([fold(parts_N, [0, 3], "float32"), parts_N[2], pair]), [0, 2, 1], "float32")
    order, _ = recognise(got, parts_N, f32)
    assert (order.kind, order.text) == (OrderKind.TREE, "tree (((0 + 3) + (1 + 4)) + 2)")


def test_an_order_for_each_element_is_none_that_is_named() -> None:
    parts_N = parts(4, "float32")
    columns = [fold(part, rotated(at % 4, 4), "float32") for at, part in enumerate(parts_N.split(1, 1))]
    order, formats = recognise(torch.cat(columns), parts_N, FORMATS["float32"])
    assert (order.kind, formats) == (OrderKind.UNKNOWN, ())
