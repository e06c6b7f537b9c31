"""Where on an edge: what is judged, which rank it was, and what guilty elements have in common."""

import pytest
import torch
from torch import Tensor

from validator.align.traces import LogicalTensor, Part, View
from validator.checks.places import LISTED, judged_region, places, single_rank

HIDDEN = ("batch", "token", "channel")
BOTH = View(ranks=(0, 1))


def logical(*shape: int, dims: tuple[str, ...] = HIDDEN, parts: tuple[Part, ...] = ()) -> LogicalTensor:
    return LogicalTensor(data=torch.zeros(shape), parts=parts, dims=dims)


def halves(dim: int = 2, shape: tuple[int, ...] = (2, 6, 8)) -> tuple[Part, ...]:
    """Return the parts of two ranks that hold half of a dim each."""
    half = shape[dim] // 2
    return tuple(
        Part(
            rank=rank,
            box=tuple((rank * half, rank * half + half) if i == dim else (0, n) for i, n in enumerate(shape)),
        )
        for rank in (0, 1)
    )


def at(*indices: tuple[int, ...]) -> Tensor:
    return torch.tensor(indices, dtype=torch.int64) if indices else torch.zeros(0, 3, dtype=torch.int64)


def real(last: int = 3) -> Tensor:
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[1, last:] = False
    return mask


def test_everything_is_judged_where_nothing_is_padded_and_one_view_holds_all() -> None:
    assert judged_region(logical(2, 6, 8, parts=halves()), None, BOTH, 2) is None


@pytest.mark.parametrize(
    ("shape", "dims", "count"),
    [
        ((2, 6, 8), HIDDEN, 9 * 8),
        ((2, 4, 6, 8), ("batch", "head", "token", "channel"), 9 * 32),
        ((2, 6), ("batch", "token"), 9),
        ((12, 8), ("token", "channel"), 9 * 8),
    ],
    ids=["hidden", "heads first", "no channels", "flattened"],
)
def test_padded_tokens_are_left_out_in_every_layout(
    shape: tuple[int, ...], dims: tuple[str, ...], count: int
) -> None:
    region = judged_region(logical(*shape, dims=dims), real(), BOTH, 2)
    assert region is not None
    assert region.expand(shape).sum() == count


@pytest.mark.parametrize(
    ("shape", "dims"),
    [((8, 8), ("channel", "channel")), ((2, 5, 8), HIDDEN)],
    ids=["no tokens", "another number of tokens"],
)
def test_what_has_not_the_masks_tokens_is_judged_whole(shape: tuple[int, ...], dims: tuple[str, ...]) -> None:
    assert judged_region(logical(*shape, dims=dims), real(), BOTH, 2) is None


def test_a_view_judges_what_its_ranks_hold() -> None:
    region = judged_region(logical(2, 6, 8, parts=halves()), None, View(ranks=(1,)), 2)
    assert region is not None
    assert bool(region[..., 4:].all())
    assert not bool(region[..., :4].any())


def test_both_limits_hold_together() -> None:
    region = judged_region(logical(2, 6, 8, parts=halves()), real(), View(ranks=(1,)), 2)
    assert region is not None
    assert region.sum() == 9 * 4


def test_the_one_rank_that_holds_all_guilty_elements_is_named() -> None:
    cand = logical(2, 6, 8, parts=halves())
    assert single_rank(cand, at((0, 0, 5), (1, 3, 7)), BOTH, 2) == 1
    assert single_rank(cand, at((0, 0, 5), (1, 3, 2)), BOTH, 2) is None
    assert single_rank(cand, at(), BOTH, 2) is None


def test_a_rank_that_holds_several_boxes_is_told_from_one_that_holds_some_of_the_elements() -> None:
    zigzag = tuple(
        Part(rank=rank, box=((0, 2), tokens, (0, 8)))
        for rank, tokens in ((0, (0, 1)), (0, (5, 6)), (1, (1, 5)))
    )
    cand = logical(2, 6, 8, parts=zigzag)
    assert single_rank(cand, at((0, 0, 5), (1, 5, 7)), BOTH, 2) == 0
    assert single_rank(cand, at((0, 0, 5), (1, 4, 7)), BOTH, 2) is None


def test_a_replicated_element_is_no_ranks_own() -> None:
    everything = tuple(Part(rank=rank, box=((0, 2), (0, 6), (0, 8))) for rank in (0, 1))
    assert single_rank(logical(2, 6, 8, parts=everything), at((0, 0, 5)), BOTH, 2) is None


def test_a_view_of_one_rank_is_that_ranks_and_a_run_of_one_nobodys() -> None:
    cand = logical(2, 6, 8)
    assert single_rank(cand, at((0, 0, 5)), View(ranks=(3,)), 4) == 3
    assert single_rank(cand, at((0, 0, 5)), View(ranks=(0,)), 1) is None


def test_few_indices_that_hold_all_guilty_elements_are_listed_by_meaning() -> None:
    cand = logical(2, 16, 4, 32, dims=("batch", "token", "head", "channel"))
    outside = at((0, 3, 1, 5), (1, 3, 1, 6), (0, 4, 1, 5))
    assert places(outside, cand) == {
        "sequences": None,
        "tokens": [3, 4],
        "heads": [1],
        "channels": [5, 6],
        "experts": None,
    }


def test_elements_all_over_a_dim_are_not_listed() -> None:
    cand = logical(2, 16, 32)
    outside = at(*((0, token, 5) for token in range(9)))
    assert places(outside, cand)["tokens"] is None
    assert places(outside[:8], cand)["tokens"] == list(range(8))


def test_long_lists_are_none() -> None:
    cand = logical(1000, dims=("token",))
    outside = torch.arange(LISTED + 1)[:, None]
    assert places(outside, cand)["tokens"] is None
    assert places(outside[:LISTED], cand)["tokens"] == list(range(LISTED))


def test_one_of_two_sequences_is_listed_and_nothing_guilty_is_nowhere() -> None:
    cand = logical(2, 16, 32)
    assert places(at((1, 3, 5)), cand)["sequences"] == [1]
    assert set(places(at(), cand).values()) == {None}
