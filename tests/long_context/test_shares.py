"""The logits of a model are found on the ranks that hold them, and copies that differ are named."""

import pytest
import torch

from validator.errors import MismatchError
from validator.long_context.shares import Share, holders

LOGITS = torch.arange(24.0).view(2, 12)


def shares(*parts: torch.Tensor | None) -> dict[int, Share]:
    return {rank: Share.of([part]) for rank, part in enumerate(parts) if part is not None}


def test_the_lowest_rank_with_all_logits_holds_them_and_equal_copies_are_well() -> None:
    found = holders(shares(None, LOGITS, LOGITS.clone()), vocabulary=12)
    assert (found.ranks, found.copies, found.unequal, found.problem) == ((1,), 2, (), None)


def test_a_copy_that_differs_in_one_bit_is_named_with_the_rank_that_it_should_equal() -> None:
    other = LOGITS.clone()
    other[1, 3] = other[1, 3].nextafter(torch.tensor(torch.inf))
    found = holders(shares(LOGITS, LOGITS, other), vocabulary=12)
    assert found.unequal == ((2, 0),)
    assert found.problem is not None
    assert found.problem.startswith("rank 2 holds other logits than rank 0 after the same tokens")


@pytest.mark.parametrize("count", [2, 3, 5])
def test_neighbours_with_a_part_of_the_vocabulary_each_hold_it_together(count: int) -> None:
    parts = LOGITS.chunk(count, dim=-1)
    again = [part.clone() for part in parts]
    found = holders(shares(*parts, *again), vocabulary=12)
    assert (found.ranks, found.copies, found.unequal) == (tuple(range(len(parts))), 2, ())
    again[1] = again[1] + 1
    found = holders(shares(*parts, *again), vocabulary=12)
    assert found.unequal == ((len(parts) + 1, 1),)


def test_hidden_states_as_wide_as_a_part_of_the_vocabulary_are_no_logits() -> None:
    hidden = torch.ones(2, 6)
    first, second = LOGITS.chunk(2, dim=-1)
    assert holders(shares(hidden, hidden, first, second), vocabulary=12).ranks == (2, 3)


@pytest.mark.parametrize(
    "parts",
    [
        (LOGITS[:, :6],),
        (LOGITS[:, :6], LOGITS[:, :6]),
        (LOGITS[:, :6], None, LOGITS[:, 6:]),
        (LOGITS[:, :5],) * 3,
    ],
    ids=["one part", "one part twice", "parts of ranks that are no neighbours", "other parts"],
)
def test_logits_that_are_not_all_there_are_refused_with_what_each_rank_returned(
    parts: tuple[torch.Tensor | None, ...],
) -> None:
    size = LOGITS.shape[-1]
    with pytest.raises(MismatchError, match=rf"logits a token on rank 0.*and the reference {size}: return"):
        holders(shares(*parts), vocabulary=size)


def test_what_is_empty_counts_among_the_bits_of_no_rank() -> None:
    assert Share.of([LOGITS, LOGITS[:0]]) == Share.of([LOGITS])
