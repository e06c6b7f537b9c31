"""Tensors are found wherever they are kept, and memory that several share counts once."""

from collections import deque
from typing import Any

import pytest
import torch

from validator.long_context.storages import sizes_of, tensors_in

KEPT = torch.zeros(4)


class Owner:
    def __init__(self) -> None:
        self.kept = KEPT

    def method(self) -> torch.Tensor:
        return KEPT


def closed_over() -> Any:
    kept = KEPT
    return lambda: kept


@pytest.mark.parametrize(
    "value",
    [KEPT, [KEPT], (1, KEPT), {"a": {"b": KEPT}}, {KEPT}, deque([KEPT]), closed_over()],
    ids=["itself", "list", "tuple", "dicts", "set", "deque", "closure"],
)
def test_a_tensor_is_found_in_containers_and_closures(value: Any) -> None:
    assert [tensor is KEPT for tensor in tensors_in(value, depth=2)] == [True]


@pytest.mark.parametrize("value", [3, None, Owner(), Owner().method, [[[KEPT]]]])
def test_what_lies_deeper_or_in_other_objects_is_not_looked_for(value: Any) -> None:
    assert list(tensors_in(value, depth=2)) == []


def test_a_tensor_made_of_others_gives_these() -> None:
    class Made(torch.Tensor):
        parts = (torch.zeros(2), torch.ones(3))

        def __tensor_flatten__(self) -> tuple[list[str], None]:
            return ["codes", "scales"], None

    made: Any = torch.zeros(5).as_subclass(Made)
    made.codes, made.scales = Made.parts
    found = list(tensors_in([made], depth=1))
    assert [a is b for a, b in zip(found, Made.parts, strict=True)] == [True, True]


def test_views_of_one_memory_count_once_and_none_for_nothing() -> None:
    whole = torch.zeros(8, dtype=torch.float32)
    assert sizes_of([whole, whole[2:], whole.view(2, 4)]) == {whole.data_ptr(): 32}
    assert sizes_of([torch.zeros(3, device="meta"), torch.empty(0)]) == {}
