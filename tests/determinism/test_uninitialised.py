"""Memory is filled before anything is written to it."""

import pytest
import torch

from validator.determinism.uninitialised import FillUninitialised


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.empty(3, 2),
        lambda x: torch.empty_like(x),
        lambda x: x.new_empty(4),
        lambda x: torch.empty_strided((2, 3), (1, 2)),
        lambda x: torch.empty(5, dtype=torch.bfloat16),
    ],
    ids=["empty", "empty_like", "new_empty", "empty_strided", "bfloat16"],
)
def test_floats_are_nan(make: "object") -> None:
    assert callable(make)
    with FillUninitialised():
        made = make(torch.ones(2, 2))
    assert bool(made.isnan().all())


def test_integers_are_the_largest_of_their_type() -> None:
    with FillUninitialised():
        made = torch.empty(3, dtype=torch.int16)
    assert made.tolist() == [32767] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16, torch.bool], ids=str)
def test_all_are_zeros_where_that_is_asked(dtype: torch.dtype) -> None:
    with FillUninitialised(0.0):
        made = torch.empty(3, dtype=dtype)
    assert made.tolist() == [0] * 3


def test_what_is_written_later_and_what_is_no_fresh_memory_is_left_alone() -> None:
    with FillUninitialised():
        made = torch.zeros(3) + torch.full((3,), 2.0)
        out = torch.empty(3)
        torch.add(made, 1, out=out)
    assert made.tolist() == [2.0] * 3
    assert out.tolist() == [3.0] * 3


def test_a_resized_tensor_keeps_its_elements_and_the_rest_is_nan() -> None:
    x = torch.ones(4)
    with FillUninitialised():
        x.resize_(6)
    assert x[:4].tolist() == [1.0] * 4
    assert bool(x[4:].isnan().all())


def test_outside_of_the_block_nothing_is_filled() -> None:
    with FillUninitialised():
        pass
    torch.full((1000,), 7.0)
    assert not bool(torch.zeros(5).isnan().any())
