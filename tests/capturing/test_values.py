"""Names of nested values, and path parts that any name can be made into."""

import dataclasses
from collections import OrderedDict, defaultdict, namedtuple
from types import MappingProxyType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from validator.capturing.values import (
    bind_arguments,
    escape_part,
    flatten,
    flatten_arguments,
    rebuild,
    tensors,
    unescape_part,
)

ANY_TEXT = st.text(st.characters(exclude_categories=()))
Pair = namedtuple("Pair", ["left", "right"])


@dataclasses.dataclass
class Output:
    logits: object
    cache: object = None


@given(ANY_TEXT)
def test_any_name_survives_escaping(name):
    assert unescape_part(escape_part(name)) == name


@given(ANY_TEXT)
def test_an_escaped_part_is_a_harmless_name(name):
    part = escape_part(name)
    assert part not in ("", ".", "..")
    assert "/" not in part
    assert part.isascii()
    assert part.isprintable()


@given(ANY_TEXT)
def test_no_escaped_part_can_be_one_of_the_formats_own_names(name):
    assert not (escape_part(name)[:1] == "%" and escape_part(name)[1:2].islower())


@pytest.mark.parametrize("name", ["model.layers.0", "<b>x", "a b", "it's", "w[0]"])
def test_an_ordinary_name_is_left_as_it_is(name):
    assert escape_part(name) == name


def test_leaves_are_named_by_their_path():
    value = {"a": (1, [2, Pair(3, 4)]), "b/c": Output(logits=5)}
    assert flatten(value) == {
        "a/0": 1,
        "a/1/0": 2,
        "a/1/1/left": 3,
        "a/1/1/right": 4,
        "b%2Fc/logits": 5,
        "b%2Fc/cache": None,
    }


def test_a_bare_tensor_has_the_empty_path():
    tensor = torch.zeros(2)
    assert tensors(tensor) == {"": tensor}


def test_a_rebuilt_value_keeps_its_types():
    value = OrderedDict(x=[1, (2, Pair(3, 4))], y=Output(logits=5))
    rebuilt = rebuild(value, lambda path, leaf: leaf if leaf is None else (path, leaf)[1] * 10)
    assert rebuilt == OrderedDict(x=[10, (20, Pair(30, 40))], y=Output(logits=50))
    assert type(rebuilt) is OrderedDict
    assert type(rebuilt["x"][1][1]) is Pair


def test_a_rebuilt_mapping_needs_no_constructor_that_takes_one():
    value = defaultdict(list, a=1)
    rebuilt = rebuild(value, lambda path, leaf: leaf * 10)
    assert rebuilt == {"a": 10}
    assert rebuilt["new"] == []
    assert value == {"a": 1}
    assert type(rebuild(OrderedDict(a=1), lambda path, leaf: leaf)) is OrderedDict
    proxy = MappingProxyType({"a": 1})
    assert rebuild(proxy, lambda path, leaf: leaf * 10) == {"a": 10}


def test_arguments_get_the_names_of_the_signature():
    class Module(nn.Module):
        def forward(self, x, mask=None, *rest, scale=1.0, **options):
            return x

    assert bind_arguments(Module(), (1, 2, 3, 4), {"scale": 5, "flag": 6}) == {
        "x": 1,
        "mask": 2,
        "args/0": 3,
        "args/1": 4,
        "scale": 5,
        "flag": 6,
    }


def test_arguments_stand_in_the_order_of_the_signature_whatever_the_callers():
    class Module(nn.Module):
        def forward(self, x, hidden=None, residual=None, **options):
            return x

    bound = bind_arguments(Module(), (1,), {"extra": 4, "residual": 3, "hidden": 2})
    assert list(bound) == ["x", "hidden", "residual", "extra"]


def test_flattened_arguments_open_surplus_and_nested_ones():
    class Module(nn.Module):
        def forward(self, *xs, scale=1.0):
            return xs[0]

    leaves = flatten_arguments(Module(), (1, (2, 3)), {"scale": 4, "a": {"b/c": 5}})
    assert leaves == {"args/0": 1, "args/1/0": 2, "args/1/1": 3, "scale": 4, "a/b%2Fc": 5}
