"""Which of its names a call of a shared module gets."""

import pytest
from torch import nn

from validator.capturing.naming import NameDealer, Scope


@pytest.fixture
def model() -> nn.Module:
    block = nn.Sequential(nn.Identity())
    model = nn.Module()
    model.left, model.right = nn.Sequential(block, block), nn.Sequential(block)
    model.tail = nn.Identity()
    return model


def test_a_module_of_one_name_keeps_it(model: nn.Module) -> None:
    dealer, scope = NameDealer(model), Scope()
    assert [dealer.name(model.tail, scope) for _ in range(2)] == ["tail", "tail"]


def test_names_below_the_scope_come_in_turn(model: nn.Module) -> None:
    dealer = NameDealer(model)
    block = model.right[0]
    left = Scope("left")
    assert [dealer.name(block, left) for _ in range(3)] == ["left.0", "left.1", "left.0"]
    assert dealer.name(block, Scope("right")) == "right.0"
    assert dealer.name(block[0], Scope("left.1")) == "left.1.0"


def test_every_scope_begins_anew(model: nn.Module) -> None:
    dealer = NameDealer(model)
    assert [dealer.name(model.right[0], Scope("left")) for _ in range(2)] == ["left.0", "left.0"]


def test_all_names_come_in_turn_where_none_is_below_the_scope(model: nn.Module) -> None:
    dealer, scope = NameDealer(model), Scope("tail")
    names = [dealer.name(model.right[0], scope) for _ in range(3)]
    assert names == ["left.0", "left.1", "right.0"]
