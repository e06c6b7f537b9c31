"""Patterns of the target's `names`: wildcards, braces, and errors that say what to do."""

import pytest

from validator.align.patterns import Patterns, starred
from validator.errors import MismatchError


@pytest.mark.parametrize(
    ("names", "name", "new"),
    [
        ({"decoder.*": "model.*"}, "decoder.layers.3.mlp", "model.layers.3.mlp"),
        ({"h.*.attn": "layers.*.self_attn"}, "h.12.attn", "layers.12.self_attn"),
        ({"h.*.attn": "layers.*.self_attn"}, "h.12.attn.q.weight", "layers.12.self_attn.q.weight"),
        ({"h.*.attn": "layers.*.self_attn"}, "h.12.attention", None),
        ({"h.*.e.*.up": "l.*.x.*.up_proj"}, "h.1.e.22.up", "l.1.x.22.up_proj"),
        ({"h": "layers", "h.*.mlp": "layers.*.ffn"}, "h.0.mlp.up", "layers.0.ffn.up"),
        ({"h": "layers", "h.*.mlp": "layers.*.ffn"}, "h.0.norm", "layers.0.norm"),
        ({"a.b": r"x\1"}, "a.b", r"x\1"),
        ({"a": ""}, "a.b", "b"),
        ({"": "model"}, "layers.0", "model.layers.0"),
        ({"": "model", "head": "lm_head"}, "head", "lm_head"),
        ({"h.*.{a,b}": "l.*.{c,d}"}, "h.3.b.weight", "l.3.d.weight"),
    ],
)
def test_a_pattern_renames_a_module_and_all_below_it(
    names: dict[str, str], name: str, new: str | None
) -> None:
    assert Patterns(names)(name) == new


def test_braces_on_the_right_are_the_parts_of_a_fused_module_in_order() -> None:
    patterns = Patterns({"h.*.qkv": "layers.*.attn.{q,k,v}.lin"})
    assert patterns.fused("h.7.qkv") == ("layers.7.attn.q.lin", "layers.7.attn.k.lin", "layers.7.attn.v.lin")
    assert patterns.fused("h.7.qkv.weight") == ()
    assert patterns("h.7.qkv") is None


def test_braces_on_the_left_are_modules_that_the_reference_has_as_one() -> None:
    patterns = Patterns({"h.*.{q,k,v}": "layers.*.qkv"})
    names = ["h.0.q", "h.0.k", "h.0.v", "h.0.o", "h.1.k", "h.1.v"]
    assert patterns.separate(names) == {"layers.0.qkv": ("h.0.q", "h.0.k", "h.0.v")}


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ({"h.*": "layers"}, r"'h\.\*' has 1 wildcards and 'layers' has 0"),
        ({"a": "b.{q,k"}, "one pair of braces"),
        ({"a": "{b,c}.{q,k}"}, "one pair of braces"),
        ({"a": "{q,,v}"}, "different names"),
        ({"a": "{q,q}"}, "different names"),
        ({"*": "{q,*}"}, "different names"),
        ({"{a,b}": "{q,k,v}"}, "lists 2 parts and '{q,k,v}' lists 3"),
    ],
)
def test_patterns_that_cannot_be_read_are_errors(names: dict[str, str], why: str) -> None:
    with pytest.raises(MismatchError, match=why):
        Patterns(names)


def test_patterns_without_use_are_named() -> None:
    patterns = Patterns({"h.*": "layers.*", "g": "x", "h.*.qkv": "layers.*.{q,k}"})
    assert patterns.unused(["h.0", "gg"]) == ["g", "h.*.qkv"]


def test_two_names_become_a_pattern() -> None:
    assert starred("h.3.ln", "layers.3.norm") == ("h.*.ln", "layers.*.norm")
    assert starred("h.3.ln", "layers.4.norm") == ("h.3.ln", "layers.4.norm")
