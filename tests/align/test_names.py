"""Matching names: patterns with their wildcards, wrappers, and errors that say what to do."""

import pytest

from validator.align.names import NameMap, map_modules
from validator.errors import MismatchError

REF = ["", "model", "model.embed", "model.layers.0", "model.layers.0.self_attn", "lm_head"]


@pytest.mark.parametrize(
    ("patterns", "name", "new"),
    [
        ({"decoder.*": "model.*"}, "decoder.layers.3.mlp", "model.layers.3.mlp"),
        ({"h.*.attn": "layers.*.self_attn"}, "h.12.attn", "layers.12.self_attn"),
        ({"h.*.attn": "layers.*.self_attn"}, "h.12.attn.q.weight", "layers.12.self_attn.q.weight"),
        ({"h.*.attn": "layers.*.self_attn"}, "h.12.attention", "h.12.attention"),
        ({"h.*.e.*.up": "l.*.x.*.up_proj"}, "h.1.e.22.up", "l.1.x.22.up_proj"),
        ({"h": "layers", "h.*.mlp": "layers.*.ffn"}, "h.0.mlp.up", "layers.0.ffn.up"),
        ({"h": "layers", "h.*.mlp": "layers.*.ffn"}, "h.0.norm", "layers.0.norm"),
        ({"a.b": r"x\1"}, "a.b", r"x\1"),
        ({"a": ""}, "a.b", "b"),
        ({"": "model"}, "layers.0", "model.layers.0"),
        ({"": "model", "head": "lm_head"}, "head", "lm_head"),
    ],
)
def test_a_pattern_renames_a_module_and_all_below_it(patterns: dict[str, str], name: str, new: str) -> None:
    assert NameMap(patterns)(name) == new


def test_a_wildcard_needs_a_place_to_go() -> None:
    with pytest.raises(MismatchError, match=r"'h\.\*' has 1 wildcards and 'layers' has 0"):
        NameMap({"h.*": "layers"})


def test_equal_names_match_and_others_are_left() -> None:
    _, matched = map_modules(cand=["", "model", "lm_head", "extra"], ref=REF, patterns={})
    assert matched == {"": "", "model": "model", "lm_head": "lm_head"}


@pytest.mark.parametrize("wrapper", ["module", "_orig_mod", "model"])
def test_a_wrapper_around_the_candidate_is_taken_off(wrapper: str) -> None:
    wrapped = ["", *(f"{wrapper}.{name}".rstrip(".") for name in REF)]
    rename, matched = map_modules(cand=wrapped, ref=REF, patterns={})
    assert matched == dict(zip(wrapped[1:], REF, strict=True))
    assert rename(f"{wrapper}.lm_head.weight") == "lm_head.weight"
    assert rename("outside.weight") is None


def test_a_wrapper_around_the_reference_is_put_on() -> None:
    rename, matched = map_modules(cand=["", "embed", "layers.0"], ref=REF, patterns={})
    assert matched == {"": "model", "embed": "model.embed", "layers.0": "model.layers.0"}
    assert rename("embed.weight") == "model.embed.weight"


def test_patterns_and_a_wrapper_go_together() -> None:
    cand = ["", "module", "module.embed", "blocks.0"]
    _, matched = map_modules(cand=cand, ref=["", "embed", "layers.0"], patterns={"blocks.*": "layers.*"})
    assert matched == {"module": "", "module.embed": "embed", "blocks.0": "layers.0"}


def test_models_of_one_module_match() -> None:
    assert map_modules(cand=[""], ref=[""], patterns={})[1] == {"": ""}


def test_models_that_share_no_name_are_an_error_with_names_of_both() -> None:
    with pytest.raises(MismatchError) as caught:
        map_modules(cand=["", "a.b", "a.c"], ref=REF, patterns={})
    message = str(caught.value)
    assert "share no module name" in message
    assert "candidate: 'a.b', 'a.c'" in message
    assert (
        "reference: 'model', 'model.embed', 'model.layers.0', 'model.layers.0.self_attn' and 1 more"
        in message
    )
    assert "names = {" in message


def test_two_modules_with_one_new_name_are_an_error() -> None:
    with pytest.raises(MismatchError, match="'model' and 'decoder' of the candidate are both 'model'"):
        map_modules(cand=["", "model", "decoder"], ref=REF, patterns={"decoder": "model"})


def test_patterns_without_use_are_named() -> None:
    rename = NameMap({"h.*": "layers.*", "g": "x"})
    assert rename.unused(["h.0", "gg"]) == ["g"]
