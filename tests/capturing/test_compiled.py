"""Compiled regions are seen from outside, whichever way they were compiled, and stay as they are.

The backends here don't generate code, so these take a second; `tests/test_compiled.py` has inductor.
"""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import validator
from validator.capturing.compiled import Entry, enter_region, find_regions, require_uncompiled
from validator.capturing.manifest import ProofStatus
from validator.capturing.reader import open_capture
from validator.capturing.session import capture_run
from validator.errors import CaptureError, TargetError


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, hidden_states, scale=1.0):
        return hidden_states + scale * self.inner(hidden_states)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x, scale=0.5)
        return self.head(x)


class Compiled:
    """A backend that counts the graphs it was given."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1
        return graph.forward


def _wrapped(model, backend):
    for i, layer in enumerate(model.layers):
        model.layers[i] = torch.compile(layer, backend=backend)
    return model


def _called(model, backend):
    for layer in model.layers:
        layer.compile(backend=backend)
    return model


def _forward(model, backend):
    for layer in model.layers:
        layer.forward = torch.compile(layer.forward, backend=backend)
    return model


def _whole(model, backend):
    return torch.compile(model, backend=backend)


def _whole_call(model, backend):
    model.compile(backend=backend)
    return model


WAYS = {"wrapper": _wrapped, "call": _called, "forward": _forward}
WHOLE = {"wrapper": _whole, "call": _whole_call}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def recorded(model, path, **options):
    x = torch.linspace(-1, 1, 32).view(4, 8)
    capture_run(lambda: model(x), model, path, **options)
    return open_capture(path)


@pytest.mark.parametrize("way", WAYS)
def test_a_block_is_recorded_and_nothing_in_it(tmp_path, way):
    model = WAYS[way](Model(), "eager")
    captured = recorded(model, tmp_path / "run.h5")
    suffix = "._orig_mod" if way == "wrapper" else ""
    modules = {call.module for call in captured.rank(0).calls}
    wrappers = {"layers.0", "layers.1"} if way == "wrapper" else set()
    assert modules == {"", "head", f"layers.0{suffix}", f"layers.1{suffix}", *wrappers}
    call = next(call for call in captured.rank(0).calls if call.module == f"layers.1{suffix}")
    assert set(call.inputs) == {"hidden_states", "scale"}
    assert call.inputs["scale"] == 0.5
    assert captured.manifest.compiled == {"layers.0": 1, "layers.1": 1}
    assert captured.manifest.proof.status is ProofStatus.IDENTICAL
    assert "layers.0.inner" not in captured.manifest.silent


@pytest.mark.parametrize("way", WAYS)
def test_a_block_that_is_chosen_comes_with_the_parameters_of_all_in_it(tmp_path, way):
    model = WAYS[way](Model(), "eager")
    chosen = recorded(model, tmp_path / "chosen.h5", include="layers.1").rank(0).parameters
    plain = "layers.1._orig_mod.inner" if way == "wrapper" else "layers.1.inner"
    assert set(chosen) == {f"{plain}.weight", f"{plain}.bias"}
    left = recorded(model, tmp_path / "left.h5", include="layers.1", exclude=plain)
    assert set(left.rank(0).parameters) == set()
    other = recorded(model, tmp_path / "other.h5", include="head").rank(0).parameters
    assert set(other) == {"head.weight", "head.bias"}


@pytest.mark.parametrize("way", WHOLE)
def test_a_model_that_is_compiled_whole_is_one_region(tmp_path, way):
    captured = recorded(WHOLE[way](Model(), "eager"), tmp_path / "run.h5")
    assert {call.module for call in captured.rank(0).calls} <= {"", "_orig_mod"}
    assert captured.manifest.compiled == {"": 6}


@pytest.mark.parametrize("way", WAYS)
def test_capturing_compiles_nothing_anew_and_leaves_nothing_behind(tmp_path, way):
    backend = Compiled()
    model = WAYS[way](Model(), backend)
    x = torch.linspace(-1, 1, 32).view(4, 8)
    with torch.no_grad():
        model(x)
        before, graphs = [dict(vars(m)) for m in model.modules()], backend.graphs
        capture_run(lambda: model(x), model, tmp_path / "run.h5")
        model(x)
    assert backend.graphs == graphs > 0
    for old, module in zip(before, model.modules(), strict=True):
        assert vars(module).keys() == old.keys()
        for name in ("forward", "_compiled_call_impl"):
            assert vars(module).get(name) is old.get(name)
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


@pytest.mark.parametrize("way", WAYS)
def test_a_call_that_raises_inside_of_a_region_ends_the_recording_of_it(tmp_path, way):
    model = WAYS[way](Model(), "eager")
    with pytest.raises(RuntimeError):
        capture_run(lambda: model(torch.ones(4, 7)), model, tmp_path / "run.h5", proof=False)
    assert not model.layers[0]._forward_hooks


def test_a_function_that_is_kept_from_compiling_is_no_region():
    model = Model()
    model.layers[0].forward = torch.compiler.disable(model.layers[0].forward)
    assert find_regions(dict(model.named_modules())) == ()


def test_a_region_inside_of_another_is_a_part_of_it():
    model = _called(Model(), "eager")
    model.layers[0].inner.compile(backend="eager")
    found = find_regions(dict(model.named_modules()))
    assert [(region.fqn, region.entry) for region in found] == [
        ("layers.0", Entry.CALL),
        ("layers.1", Entry.CALL),
    ]


def test_a_pattern_for_the_inside_says_which_region_it_is_in(tmp_path):
    with pytest.raises(CaptureError, match=r"inside of a compiled.*'layers.0', 'layers.1' are compiled"):
        recorded(_called(Model(), "eager"), tmp_path / "run.h5", include="*.inner")


@pytest.mark.parametrize("way", WAYS)
def test_a_reference_that_is_compiled_is_refused(way):
    require_uncompiled(Model(), "the reference")
    with pytest.raises(TargetError, match=r"the reference is compiled \(layers.0 and 1 more\).*before torch"):
        require_uncompiled(WAYS[way](Model(), "eager"), "the reference")
    with pytest.raises(TargetError, match="the model itself"):
        validator.check(reference=_whole(Model(), "eager"), candidate=Model(), inputs={"x": torch.ones(4, 8)})


@pytest.mark.parametrize("way", WAYS)
def test_our_dispatch_modes_are_off_inside_of_a_region_and_others_are_not(way):
    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    model = WAYS[way](Model(), "eager")
    x = torch.ones(4, 8)
    (region, _) = find_regions(dict(model.named_modules()))
    with torch.no_grad():
        model(x)
        leave = enter_region(region, before=lambda *_: None, after=lambda *_: None)
        Mode.__module__ = "validator.tests"
        with Mode():
            region.module(x)
        assert seen == []
        Mode.__module__ = "elsewhere"
        with Mode():
            region.module(x)
        assert seen != []
        leave()
