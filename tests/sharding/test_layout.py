"""The target's layout: what can be read, and how errors point at what can't."""

import pytest

from validator.capturing.records import Placement
from validator.errors import LayoutError
from validator.sharding.layout import Layout, parse_layout, resolve_layouts

SHARD_2 = Placement(kind="shard", dim=2)
REPLICATE = Placement(kind="replicate")
PARTIAL = Placement(kind="partial", reduce="sum")


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("replicate", Layout(output=REPLICATE)),
        ("partial", Layout(output=PARTIAL)),
        ("shard(2)", Layout(output=SHARD_2)),
        ("shard( -1 )", Layout(output=Placement(kind="shard", dim=-1))),
        ("input=shard(2), output=partial", Layout(input=SHARD_2, output=PARTIAL)),
        (" input = replicate ", Layout(input=REPLICATE)),
    ],
)
def test_a_value_is_read(text: str, layout: Layout) -> None:
    assert parse_layout(text) == layout


@pytest.mark.parametrize(
    ("text", "why", "pointed"),
    [
        ("shrd(1)", "'shrd(1)' is no placement", "shrd(1)"),
        ("input=shard(2), output=shard", "'shard' is no placement", "output=shard"),
        ("output=partial, weight=shard(0)", "no side is called 'weight'", "weight=shard(0)"),
        ("partial, output=partial", "output is given twice", "output=partial"),
        ("", "'' is no placement", ""),
        ("input=partial,", "'' is no placement", ""),
    ],
)
def test_an_error_points_at_the_place(text: str, why: str, pointed: str) -> None:
    with pytest.raises(LayoutError) as caught:
        parse_layout(text)
    headline, shown, pointer = str(caught.value).split("\n")
    assert why in headline
    start, stop = pointer.index("^"), pointer.rindex("^") + 1
    assert shown[start:stop] == pointed


def test_a_pattern_names_every_module_that_it_matches() -> None:
    modules = ["model.layers.0.mlp", "model.layers.1.mlp", "model.norm"]
    layouts = resolve_layouts({"model.layers.*.mlp": "partial"}, modules)
    assert layouts == dict.fromkeys(modules[:2], Layout(output=PARTIAL))


def test_a_pattern_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(LayoutError, match=r"'model\.layer\.\*' matches no module .* model\.layers\.0"):
        resolve_layouts({"model.layer.*": "partial"}, ["model.layers.0"])
