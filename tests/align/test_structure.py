"""Modules matched by structure, order and values where names say nothing."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from tests.align.build import Recorder
from validator.align.builder import build_trace
from validator.align.structure import Structure, match_structure
from validator.align.trees import tree_of
from validator.align.values import Values
from validator.capturing.records import RankCapture


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def captured(parameters: Mapping[str, Tensor], rank: int = 0) -> RankCapture:
    """Return a capture of modules with these parameters, called in order."""
    recorder = Recorder(rank)
    owners = list(dict.fromkeys(name.rpartition(".")[0] for name in parameters))
    above = {owner[:i] for owner in owners for i, letter in enumerate(owner) if letter == "."}
    with recorder.call("", {}):
        for name in [*sorted(above), *owners]:
            recorder.leaf(name, {}, {})
    for name, tensor in parameters.items():
        recorder.parameter(name, tensor)
    return recorder.capture()


def match(cand: list[RankCapture], ref: RankCapture, named: dict[str, str] | None = None) -> Structure:
    ours, theirs = tree_of(cand), tree_of([ref])
    values = Values(cand=ours, ref=theirs)
    return match_structure(cand=ours, ref=theirs, named=named or {"": ""}, values=values)


NORMS = [random(4, seed=1), random(4, seed=2)]
UP, DOWN = random(6, 4, seed=3), random(4, 6, seed=4)
REF = {
    "model.layers.0.first.weight": NORMS[0],
    "model.layers.0.up.weight": UP,
    "model.layers.0.second.weight": NORMS[1],
    "model.layers.0.down.weight": DOWN,
    "head.weight": random(9, 4, seed=5),
}


def renamed(names: Mapping[str, str], tensors: Mapping[str, Tensor] = REF) -> dict[str, Tensor]:
    """Return parameters in bfloat16 under other names, of modules in the order of `names`."""
    return {f"{new}.weight": tensors[f"{old}.weight"].to(torch.bfloat16) for new, old in names.items()}


NAMES = {
    "t.h.0.a": "model.layers.0.first",
    "t.h.0.b": "model.layers.0.up",
    "t.h.0.c": "model.layers.0.second",
    "t.h.0.d": "model.layers.0.down",
    "out": "head",
}
OUTER = {"t": "model", "t.h": "model.layers", "t.h.0": "model.layers.0"}


def test_shapes_and_order_tell_which_is_which() -> None:
    structure = match([captured(renamed(NAMES))], captured(REF))
    assert structure.modules == OUTER | NAMES
    assert structure.ambiguous == ()
    assert structure.left == ()


def test_values_come_before_order() -> None:
    swapped = {name: NAMES[name] for name in ("t.h.0.c", "t.h.0.b", "t.h.0.a", "t.h.0.d", "out")}
    assert match([captured(renamed(swapped))], captured(REF)).modules == OUTER | NAMES


def test_order_decides_where_values_are_all_the_same() -> None:
    ones = REF | {f"model.layers.0.{name}.weight": torch.ones(4) for name in ("first", "second")}
    assert match([captured(renamed(NAMES, ones))], captured(ones)).modules == OUTER | NAMES


def test_order_decides_where_a_value_is_wrong() -> None:
    wrong = renamed(NAMES) | {"t.h.0.a.weight": -NORMS[0].to(torch.bfloat16)}
    assert match([captured(wrong)], captured(REF)).modules == OUTER | NAMES


def test_a_level_that_one_side_alone_has_is_looked_through() -> None:
    flat = {name.replace("t.", "", 1) if name != "out" else name: new for name, new in NAMES.items()}
    matched = match([captured(renamed(flat))], captured(REF)).modules
    assert matched == {"h": "model.layers", "h.0": "model.layers.0"} | flat


def test_of_too_many_that_fit_values_tell_the_one() -> None:
    extra = renamed(NAMES) | {"t.h.0.e.weight": random(4, seed=9).to(torch.bfloat16)}
    structure = match([captured(extra)], captured(REF))
    assert {name: structure.modules.get(name) for name in NAMES} == NAMES
    assert "t.h.0.e" not in structure.modules


def test_of_too_many_that_fit_alike_none_is_taken_and_a_line_is_proposed() -> None:
    ref = {"first.weight": torch.ones(4), "head.weight": REF["head.weight"]}
    cand = {f"{name}.weight": torch.ones(4) for name in "ab"} | {"out.weight": ref["head.weight"]}
    structure = match([captured(cand)], captured(ref))
    assert structure.modules == {"out": "head"}
    assert structure.ambiguous == (
        (
            "first",
            "may be 'a' or 'b' of the candidate: say which, such as names = {'a': 'first'}",
        ),
    )


@pytest.mark.parametrize(("noise", "found"), [(0.02, True), (0.9, False)], ids=["close", "far"])
def test_what_modules_returned_tells_where_parameters_are_the_same(noise: float, found: bool) -> None:
    def run(outputs: Mapping[str, Tensor]) -> RankCapture:
        recorder = Recorder()
        with recorder.call("", {}):
            for name, output in outputs.items():
                recorder.leaf(name, {}, output)
        for name in outputs:
            recorder.parameter(f"{name}.weight", torch.ones(4))
        return recorder.capture()

    first, other = random(50, 4, seed=1), random(50, 4, seed=2)
    cand = run({"a": other, "b": first + noise * random(50, 4, seed=3)})
    structure = match([cand], run({"first": first}))
    assert structure.modules == ({"b": "first"} if found else {})
    assert len(structure.ambiguous) == (0 if found else 1)


def test_a_trace_lists_what_could_not_be_told_with_the_line_to_write() -> None:
    ones = {"first.weight": torch.ones(4), "head.weight": REF["head.weight"]}
    cand = {"a.weight": torch.ones(4), "b.weight": torch.ones(4), "head.weight": REF["head.weight"]}
    trace = build_trace(cand=[captured(cand)], ref=captured(ones))
    assert trace.unmatched_reference == ("first",)
    assert trace.unmatched_candidate == ("a", "b")
    (problem,) = trace.problems
    assert problem[0] == "first"
    assert problem[1].endswith("names = {'a': 'first'}")
    told = build_trace(cand=[captured(cand)], ref=captured(ones), names={"b": "first"})
    assert told.problems == ()
    assert told.calls["first", 0].candidate_module == "b"


def test_shards_are_told_by_their_values() -> None:
    def shard(rank: int) -> RankCapture:
        whole = renamed(NAMES)
        whole["t.h.0.b.weight"] = whole["t.h.0.b.weight"].chunk(2)[rank]
        whole["t.h.0.d.weight"] = whole["t.h.0.d.weight"].chunk(2, 1)[rank]
        return captured(whole, rank)

    structure = match([shard(0), shard(1)], captured(REF))
    assert structure.modules == OUTER | NAMES


def test_what_names_matched_stays() -> None:
    named = {
        "": "",
        "t": "model",
        "t.h": "model.layers",
        "t.h.0": "model.layers.0",
        "t.h.0.c": "model.layers.0.first",
    }
    modules = match([captured(renamed(NAMES))], captured(REF), named).modules
    assert modules["t.h.0.a"] == "model.layers.0.second"
    assert not modules.keys() & named.keys()


def test_numbered_modules_match_by_number_whatever_they_hold() -> None:
    lists = {f"list.{i}.weight": random(4, seed=20 + i) for i in range(3)}
    turned = {f"other.{i}.weight": lists[f"list.{2 - i}.weight"] for i in range(3)}
    modules = match([captured(turned)], captured(lists)).modules
    assert modules == {"other": "list"} | {f"other.{i}": f"list.{i}" for i in range(3)}


@pytest.mark.parametrize("turned_side", ["candidate", "reference"])
def test_a_conv1d_holds_the_weights_of_a_linear_the_other_way(turned_side: str) -> None:
    def run(name: str, weight: Tensor, kind: str) -> RankCapture:
        recorder = Recorder()
        with recorder.call("", {"x": x}) as out:
            recorder.leaf(name, x, x @ DOWN.T, kind)
            out[""] = x
        recorder.parameter(f"{name}.weight", weight)
        return recorder.capture()

    x = random(2, 6, seed=7)
    linear = ("torch.nn.Linear", DOWN)
    conv = ("transformers.pytorch_utils.Conv1D", DOWN.T)
    (kind, weight), (other, its) = (conv, linear) if turned_side == "candidate" else (linear, conv)
    trace = build_trace(cand=[run("c_fc", weight, kind)], ref=run("up", its, other))
    assert torch.equal(trace.parameters["up.weight"].read(trace.views[0]).data, its)
    assert trace.calls["up", 0].candidate_module == "c_fc"
