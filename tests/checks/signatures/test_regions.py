"""The part of an edge that is off, and what is said of it."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.checks.signatures.build import BF16, kind, named, values
from validator.align.traces import Part
from validator.numerics.rounding import round_nearest

NOISE = 0.5


def spoiled(y: Tensor, *where: Any) -> Tensor:
    """Return values with noise of their own size on a part."""
    cand = y.clone()
    cand[where] += NOISE * values(*y.shape, seed=9)[where]
    return cand


ALL = slice(None)
SPLIT = tuple(Part(rank=rank, box=((0, 4), (0, 16), (16 * rank, 16 * rank + 16))) for rank in range(2))
"""Channels split over two ranks."""


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ((ALL, slice(0, 4)), ("tokens", {"start": 0, "stop": 4, "edge": "prefix", "block": 4})),
        ((ALL, slice(8, 16)), ("tokens", {"start": 8, "stop": 16, "edge": "suffix", "block": 8})),
        ((ALL, slice(4, 8)), ("tokens", {"start": 4, "stop": 8, "edge": "inside", "block": 4})),
        ((ALL, slice(3, 6)), ("tokens", {"start": 3, "stop": 6, "edge": "inside"})),
        ((ALL, slice(5, 16)), ("tokens", {"start": 5, "stop": 16, "edge": "suffix"})),
        ((ALL, [2, 9]), ("tokens", {"tokens": [2, 9]})),
        ((3,), ("sequences", {"sequences": [3]})),
        ((ALL, ALL, 7), ("channels", {"channels": [7]})),
        ((ALL, ALL, slice(24, 32)), ("channels", {"start": 24, "stop": 32, "edge": "suffix", "block": 8})),
    ],
    ids=["prefix", "suffix", "block", "range", "from a window on", "two", "sequence", "channel", "channels"],
)
def test_a_region_is_named_with_where_it_begins_and_ends(
    where: tuple[Any, ...], found: tuple[str, dict[str, Any]]
) -> None:
    y = values()
    assert named(y, spoiled(y, *where)) == found


def test_noise_everywhere_is_no_region() -> None:
    y = values()
    assert kind(y, spoiled(y, ...)) is None


def test_a_few_elements_anywhere_are_no_region() -> None:
    y = values()
    cand = y.clone()
    for place in ((0, 3, 5), (1, 9, 30), (3, 14, 11)):
        cand[place] += 1
    assert kind(y, cand) is None


def test_all_but_the_first_position_is_no_region() -> None:
    """The first position has a single key: what is wrong with attention does not show there."""
    y = values()
    assert kind(y, spoiled(y, ALL, slice(1, None))) is None


def test_an_error_that_grows_with_the_position_has_no_edge() -> None:
    y = values(4, 64, 32)
    ramp = (torch.arange(64, dtype=torch.float64) / 4000)[:, None]
    assert kind(y, y + ramp * values(4, 64, 32, seed=9)) is None


def test_a_factor_on_one_channel() -> None:
    y = values()
    cand = y.clone()
    cand[..., 7] *= 1.5
    found = named(y, cand)
    assert found == ("factor", {"factor": pytest.approx(1.5, rel=1e-2), "within": "channel 7"})


def test_a_factor_on_a_channel_that_was_rounded_before_it() -> None:
    y = values(4, 64, 32)
    cand = round_nearest(y, BF16)
    cand[..., 7] *= 1.02
    assert named(y, cand) == ("factor", {"factor": pytest.approx(1.02, rel=1e-3), "within": "channel 7"})


def test_a_factor_on_weights_that_are_rounded_leaves_more_than_rounding_its_result() -> None:
    y = values(4, 64, 32)
    cand = y.clone()
    cand[..., 7] = 1.02 * y[..., 7] + 0.003 * values(4, 64, seed=3)
    assert named(y, cand) == ("factor", {"factor": pytest.approx(1.02, rel=1e-3), "within": "channel 7"})
    cand[..., 7] += 0.02 * values(4, 64, seed=4)
    assert named(y, cand) == ("channels", {"channels": [7]})


def test_heads_are_named_where_channels_are_heads() -> None:
    y = values()
    assert named(y, spoiled(y, ALL, ALL, slice(8, 16)), head_size=8) == ("heads", {"heads": [1]})
    half = named(y, spoiled(y, ALL, ALL, slice(8, 12)), head_size=8)
    assert half == ("channels", {"start": 8, "stop": 12, "edge": "inside", "block": 4})


def test_a_dim_of_heads() -> None:
    y = values(4, 8, 16, 16)
    dims = ("batch", "head", "token", "channel")
    assert named(y, spoiled(y, ALL, 3), dims=dims) == ("heads", {"heads": [3]})


def test_a_bad_rank_is_told_from_a_bad_head_on_it() -> None:
    y = values()
    options = {"parts": SPLIT, "head_size": 8, "world_size": 2}
    assert named(y, spoiled(y, ALL, ALL, slice(16, 32)), **options) == ("rank", {"rank": 1})
    assert named(y, spoiled(y, ALL, ALL, slice(16, 24)), **options) == ("heads", {"heads": [2]})


def test_what_all_ranks_hold_blames_none() -> None:
    y = values()
    copies = tuple(Part(rank=rank, box=((0, 4), (0, 16), (0, 32))) for rank in range(2))
    assert kind(y, spoiled(y, ALL, ALL, slice(16, 32)), parts=copies, world_size=2) == "channels"


def test_tokens_of_a_rank_are_its_part() -> None:
    y = values()
    zigzag = tuple(
        Part(rank=rank, box=((0, 4), (4 * block, 4 * block + 4), (0, 32)))
        for rank, blocks in enumerate([(0, 3), (1, 2)])
        for block in blocks
    )
    cand = spoiled(spoiled(y, ALL, slice(0, 4)), ALL, slice(12, 16))
    assert named(y, cand, parts=zigzag, world_size=2) == ("rank", {"rank": 0})
    assert kind(y, spoiled(y, ALL, slice(0, 4)), parts=zigzag, world_size=2) == "tokens"


def routed(tokens: int = 64, experts: int = 8) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.stack([torch.randperm(experts, generator=generator)[:2] for _ in range(tokens)])


@pytest.mark.parametrize("bad", [[6], [6, 7], [0, 3]], ids=str)
def test_all_tokens_of_some_experts(bad: list[int]) -> None:
    y, routing = values(64, 32), routed()
    is_bad = torch.isin(routing, torch.tensor(bad)).any(-1)
    assert named(y, spoiled(y, is_bad), routing=routing) == ("experts", {"experts": bad})


def test_a_few_tokens_of_an_expert_may_not_show_it() -> None:
    y, routing = values(64, 32), routed()
    of_experts = (routing >= 4).any(-1).nonzero()[:, 0]
    found = named(y, spoiled(y, of_experts[torch.arange(len(of_experts)) % 10 != 0]), routing=routing)
    assert found == ("experts", {"experts": [4, 5, 6, 7]})


def test_some_tokens_of_an_expert_are_not_the_expert() -> None:
    y, routing = values(64, 32), routed()
    of_expert = (routing == 6).any(-1).nonzero()[:, 0]
    found = named(y, spoiled(y, of_expert[: len(of_expert) // 2]), routing=routing)
    assert found is None or found[0] != "experts"


def test_tokens_that_have_nothing_to_do_with_experts_are_tokens() -> None:
    y, routing = values(64, 32), routed()
    assert kind(y, spoiled(y, slice(16, 32)), routing=routing) == "tokens"
