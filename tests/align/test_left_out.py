"""Modules that a user chose not to look at are told apart from those that the candidate lacks."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.align.build import run_model
from validator.align.builder import build_trace
from validator.align.traces import LeftOut, Trace
from validator.capturing.records import Call, RankCapture
from validator.capturing.selection import Selection

EVERYTHING = ("", "embed", "norm", "mlp", "mlp.up", "mlp.down", "lm_head")


def kept(capture: RankCapture, selection: Selection) -> RankCapture:
    """Return what a capture of some modules holds: all names, and their own calls and parameters."""
    parents = {call.id: call.parent for call in capture.calls}
    ids = {call.id for call in capture.calls if selection.keeps_module(call.module)}

    def around(call: Call) -> int | None:
        parent = call.parent
        while parent is not None and parent not in ids:
            parent = parents[parent]
        return parent

    return replace(
        capture,
        calls=tuple(replace(call, parent=around(call)) for call in capture.calls if call.id in ids),
        parameters={
            name: parameter
            for name, parameter in capture.parameters.items()
            if selection.keeps_module(name.rpartition(".")[0])
        },
    )


def traced(
    selection: Selection,
    *,
    told: Selection | None = None,
    world: int = 1,
    prefix: str = "",
    names: Mapping[str, str] | None = None,
) -> Trace:
    """Return the trace of a narrowed capture; by default it is told of the choice."""
    cand = [kept(capture, selection) for capture in run_model(world=world, prefix=prefix)]
    return build_trace(
        cand=cand,
        ref=run_model()[0],
        names=names,
        selection=selection if told is None else told,
    )


@pytest.mark.parametrize("world", [1, 2])
def test_what_was_not_included_is_left_out_and_the_rest_is_there(world: int) -> None:
    trace = traced(Selection(include=("mlp.*",)), world=world)
    assert trace.left_out.modules == ("", "embed", "norm", "mlp", "lm_head")
    assert trace.left_out.options == "--include 'mlp.*'"
    assert {module for module, _ in trace.calls} == {"mlp.up", "mlp.down"}
    assert trace.unmatched_reference == trace.missing_parameters == trace.problems == ()


def test_what_was_excluded_is_left_out() -> None:
    trace = traced(Selection(exclude=("norm", "mlp.up")))
    assert trace.left_out.modules == ("norm", "mlp.up")
    assert trace.left_out.options == "--exclude norm --exclude mlp.up"
    assert trace.unmatched_reference == ()


def test_a_whole_capture_leaves_nothing_out() -> None:
    assert traced(Selection()).left_out == LeftOut()


def test_a_module_that_was_to_be_kept_and_did_not_fire_is_the_candidates_fault() -> None:
    trace = traced(Selection(exclude=("norm", "mlp.up")), told=Selection(exclude=("norm",)))
    assert trace.left_out.modules == ("norm",)
    assert trace.unmatched_reference == ("mlp.up",)


def test_the_choice_is_made_by_the_candidates_names() -> None:
    trace = traced(Selection(include=("net.mlp.*",)), prefix="net", names={"net": ""})
    assert trace.left_out.modules == ("", "embed", "norm", "mlp", "lm_head")
    assert trace.unmatched_reference == ()


def test_what_the_candidate_has_no_module_for_is_left_out_with_what_it_lies_in() -> None:
    selection = Selection(exclude=("mlp",))
    (whole,) = run_model()
    modules = {name: info for name, info in whole.modules.items() if not name.startswith("mlp.")}
    calls = tuple(call for call in whole.calls if not call.module.startswith("mlp."))
    parameters = {name: p for name, p in whole.parameters.items() if not name.startswith("mlp.")}
    fused = replace(whole, modules=modules, calls=calls, parameters=parameters)
    trace = build_trace(cand=[kept(fused, selection)], ref=whole, selection=selection)
    assert trace.left_out.modules == ("mlp", "mlp.up", "mlp.down")
    trace = build_trace(cand=[fused], ref=whole, selection=Selection(exclude=("norm",)))
    assert trace.unmatched_reference == ("mlp.up", "mlp.down")


@pytest.mark.parametrize(
    ("modules", "told"),
    [
        (("",), "the model itself was left out by --exclude ''"),
        (("a",), "1 module was left out by --exclude ''"),
        (("a", "b"), "2 modules were left out by --exclude ''"),
        (("", "b"), "2 modules, the model itself among them, were left out by --exclude ''"),
    ],
    ids=["model", "one", "two", "model-and-one"],
)
def test_it_is_told_in_words(modules: tuple[str, ...], told: str) -> None:
    assert LeftOut(modules=modules, options="--exclude ''").told() == told
