"""Matching modules by name: wrappers, prefixes, patterns, and errors that say what to do."""

import pytest

from validator.align.names import map_modules, map_parameters, require_shared
from validator.align.patterns import Patterns
from validator.errors import MismatchError

REF = ["", "model", "model.embed", "model.layers", "model.layers.0", "model.layers.0.self_attn", "lm_head"]


def match(cand: list[str], ref: list[str] = REF, names: dict[str, str] | None = None) -> dict[str, str]:
    return map_modules(cand=cand, ref=ref, patterns=Patterns(names or {}))


def test_equal_names_match_and_others_are_left() -> None:
    assert match(["", "model", "lm_head", "extra"]) == {"": "", "model": "model", "lm_head": "lm_head"}


@pytest.mark.parametrize("wrapper", ["module", "_orig_mod", "model"])
def test_a_wrapper_around_the_candidate_is_taken_off(wrapper: str) -> None:
    wrapped = ["", *(f"{wrapper}.{name}".rstrip(".") for name in REF)]
    assert match(wrapped) == dict(zip(wrapped[1:], REF, strict=True))


def test_a_wrapper_around_the_reference_is_put_on() -> None:
    matched = match(["", "embed", "layers", "layers.0"])
    assert matched == {
        "": "model",
        "embed": "model.embed",
        "layers": "model.layers",
        "layers.0": "model.layers.0",
    }


@pytest.mark.parametrize("holder", ["_checkpoint_wrapped_module", "_fsdp_wrapped_module", "module"])
def test_wrappers_inside_the_path_are_looked_through(holder: str) -> None:
    cand = [
        "",
        "_orig_mod",
        "_orig_mod.model",
        "_orig_mod.model.layers",
        "_orig_mod.model.layers.0",
        f"_orig_mod.model.layers.0.{holder}",
        f"_orig_mod.model.layers.0.{holder}.self_attn",
        "_orig_mod.model.embed",
        "_orig_mod.lm_head",
    ]
    assert match(cand) == {
        "_orig_mod": "",
        "_orig_mod.model": "model",
        "_orig_mod.model.layers": "model.layers",
        f"_orig_mod.model.layers.0.{holder}": "model.layers.0",
        f"_orig_mod.model.layers.0.{holder}.self_attn": "model.layers.0.self_attn",
        "_orig_mod.model.embed": "model.embed",
        "_orig_mod.lm_head": "lm_head",
    }


def test_a_module_of_a_wrappers_name_is_one_if_the_reference_has_it_or_it_has_siblings() -> None:
    names = ["", "block", "block.module", "block.module.up"]
    assert match(names, names) == {name: name for name in names}
    assert match(["", "block", "block.module", "block.other"], ["", "block"]) == {"": "", "block": "block"}


@pytest.mark.parametrize(
    ("old", "new"),
    [("language_model.model", "model"), ("model", "model.language_model"), ("a.b", "")],
)
def test_one_prefix_is_exchanged_for_another_and_what_lies_outside_stays(old: str, new: str) -> None:
    def tree(prefix: str) -> list[str]:
        parts = prefix.split(".") if prefix else []
        above = [".".join(parts[:count]) for count in range(len(parts))]
        inside = ["", "layers", "layers.0", "layers.0.mlp", "norm"]
        return [*above, *(".".join(filter(None, (prefix, name))) for name in inside), "lm_head"]

    cand, ref = tree(old), tree(new)
    matched = match(cand, ref)
    assert matched["lm_head"] == "lm_head"
    assert matched[f"{old}.layers.0.mlp"] == f"{new}.layers.0.mlp".lstrip(".")
    assert matched[old] == new
    assert len(set(matched.values())) == len(matched)


@pytest.mark.parametrize("pattern", ["blocks.*", "module.blocks.*"])
def test_patterns_go_with_a_wrapper_with_its_name_or_without(pattern: str) -> None:
    cand = ["", "module", "module.embed", "module.blocks", "module.blocks.0"]
    matched = match(cand, ["", "embed", "layers", "layers.0"], {pattern: "layers.*"})
    assert matched == {"module": "", "module.embed": "embed", "module.blocks.0": "layers.0"}


def test_two_modules_with_one_new_name_are_an_error() -> None:
    with pytest.raises(MismatchError, match="'decoder' and 'model' of the candidate are both 'model'"):
        match(["", "model", "decoder"], names={"decoder": "model"})


def test_parameters_follow_their_modules_unless_a_pattern_names_them() -> None:
    names = map_parameters(
        cand=["w.embed.weight", "w.scale", "other.weight", "w.embed.odd"],
        modules={"w": "", "w.embed": "embed"},
        patterns=Patterns({"w.embed.odd": "embed.even"}),
        ref=["embed.weight", "scale", "embed.even"],
    )
    assert names == {"w.embed.weight": "embed.weight", "w.scale": "scale", "w.embed.odd": "embed.even"}


def test_models_of_one_module_match() -> None:
    assert match([""], [""]) == {"": ""}
    require_shared({"": ""}, cand=[""], ref=[""])


def test_models_that_share_no_name_are_an_error_with_names_of_both() -> None:
    with pytest.raises(MismatchError) as caught:
        require_shared({"": ""}, cand=["", "a.b", "a.c"], ref=REF)
    message = str(caught.value)
    assert "share no module name" in message
    assert "candidate: 'a.b', 'a.c'" in message
    assert "reference: 'model', 'model.embed', 'model.layers', 'model.layers.0' and 2 more" in message
    assert "names = {" in message
