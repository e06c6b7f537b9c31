"""The logits of a model are found on the ranks that hold them, and copies that differ are named."""

import pytest
import torch
from torch import nn

from validator.errors import MismatchError
from validator.long_context.shares import Share, holders, modules_of

LOGITS = torch.arange(24.0).view(2, 12)


def shares(
    *parts: torch.Tensor | None, modules: tuple[str, ...] = (), vocabulary: int = 12
) -> dict[int, Share]:
    named = modules or ("",) * len(parts)
    return {
        rank: Share.of([part], vocabulary=vocabulary, modules=named[rank])
        for rank, part in enumerate(parts)
        if part is not None
    }


def padded_parts(*, padding: float) -> tuple[torch.Tensor, ...]:
    """Return 250 logits of two tokens in four parts of 64, the last with 6 that pad them."""
    logits = torch.randn(2, 250, generator=torch.Generator().manual_seed(0))
    return nn.functional.pad(logits, (0, 6), value=padding).chunk(4, dim=-1)


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


def test_hidden_states_as_wide_as_the_vocabulary_are_refused_and_not_taken_for_logits() -> None:
    hidden, stages = torch.ones(2, 12), ("first", "last")
    with pytest.raises(MismatchError, match=r"rank 0 returns 12 .* rank 1 12, other .*None in their place"):
        holders(shares(hidden, LOGITS, modules=stages), vocabulary=12)
    four = shares(hidden, hidden, *LOGITS.chunk(2, dim=-1), modules=("first", "first", "last", "last"))
    with pytest.raises(MismatchError, match="rank 0 returns 12 numbers a token and rank 2 6"):
        holders(four, vocabulary=12)
    assert holders(shares(None, LOGITS, modules=stages), vocabulary=12).ranks == (1,)
    # All ranks may have copies whatever they hold besides.
    assert holders(shares(LOGITS, LOGITS, modules=stages), vocabulary=12).problem is None


def test_hidden_states_half_as_wide_as_the_vocabulary_before_the_last_stage_are_no_parts() -> None:
    hidden = (torch.ones(2, 6), torch.zeros(2, 6))
    found = holders(shares(*hidden, LOGITS, modules=("first", "middle", "last")), vocabulary=12)
    assert (found.ranks, found.copies) == ((2,), 1)


def test_stages_are_told_apart_by_their_modules_and_ranks_with_other_experts_are_not() -> None:
    def model(**modules: nn.Module) -> str:
        return modules_of(nn.ModuleDict(modules))

    def experts(*numbers: int) -> nn.Module:
        return nn.ModuleDict({str(number): nn.Linear(2, 2) for number in numbers})

    head, embedding = nn.Linear(2, 2), nn.Embedding(2, 2)
    assert model(experts=experts(0, 1), head=head) == model(experts=experts(2, 3), head=head)
    assert model(layers=experts(0), head=nn.Linear(2, 2, bias=False)) == model(layers=experts(1), head=head)
    assert model(embedding=embedding, layers=experts(0)) != model(layers=experts(1), head=head)
    assert model(layers=experts(0), head=nn.Identity()) != model(layers=experts(1), head=head)


def test_what_pads_a_vocabulary_in_equal_parts_is_cut_and_need_not_be_equal() -> None:
    again = padded_parts(padding=-1.0)
    found = holders(shares(*padded_parts(padding=0.0), *again, vocabulary=250), vocabulary=250)
    assert (found.ranks, found.copies, found.unequal, found.padding) == ((0, 1, 2, 3), 2, (), 6)
    assert found.note == "the last 6 logits of rank 3 pad the vocabulary and are not judged"
    again[3][0, 57] += 1
    found = holders(shares(*padded_parts(padding=0.0), *again, vocabulary=250), vocabulary=250)
    assert found.unequal == ((7, 3),)


def test_parts_that_are_too_wide_for_padding_or_are_of_two_stages_are_refused() -> None:
    wide = torch.arange(1200.0).view(2, 600).chunk(2, dim=-1)
    too_wide = shares(*wide, vocabulary=301)
    with pytest.raises(MismatchError, match="300 logits a token on rank 0"):
        holders(too_wide, vocabulary=301)
    of_stages = shares(*wide, modules=("first", "last"), vocabulary=590)
    with pytest.raises(MismatchError, match="300 logits a token on rank 0"):
        holders(of_stages, vocabulary=590)
    assert holders(shares(*wide, vocabulary=590), vocabulary=590).padding == 10


def test_what_is_empty_counts_among_the_bits_of_no_rank() -> None:
    assert shares(torch.cat([LOGITS, LOGITS[:0]])) == shares(LOGITS)
    assert Share.of([LOGITS, LOGITS[:0]], vocabulary=12) == shares(LOGITS)[0]
