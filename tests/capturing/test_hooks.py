"""What the hooks record: every call, under the right name, with what entered and left it."""

import gc
import weakref
from collections import OrderedDict

import pytest
import torch
from torch import nn

from validator.capturing.reader import open_capture
from validator.capturing.session import capture


class Inner(nn.Module):
    def forward(self, x, *, scale=1.0):
        return x * scale


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Inner()
        self.second = Inner()

    def forward(self, x):
        return self.second(self.first(x, scale=2.0), scale=3.0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.outer = Outer()
        self.tail = Inner()

    def forward(self, x):
        return self.tail(self.outer(x))


class Repeated(nn.Module):
    """One block that stands at two places of each of two stages."""

    def __init__(self):
        super().__init__()
        block = nn.Sequential(nn.Identity())
        self.left = nn.Sequential(block, block)
        self.right = nn.Sequential(block)

    def forward(self, x):
        return self.right(self.left(x))


def record(tmp_path, model, *args, times=1, **kwargs):
    path = tmp_path / "run.h5"
    with capture(model, path):
        for _ in range(times):
            model(*args, **kwargs)
    return open_capture(path).rank(0)


class Custom(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, mask=None, *rest, **options):
        return self.function(x)


def test_each_call_knows_the_call_that_encloses_it(tmp_path):
    calls = record(tmp_path, Model(), torch.ones(2)).calls
    assert [(c.id, c.module, c.parent) for c in calls] == [
        (0, "", None),
        (1, "outer", 0),
        (2, "outer.first", 1),
        (3, "outer.second", 1),
        (4, "tail", 0),
    ]


def test_calls_share_one_sequence_of_beginnings_and_ends(tmp_path):
    calls = record(tmp_path, Model(), torch.ones(2)).calls
    events = sorted([(c.start, "(") for c in calls] + [(c.end, ")") for c in calls])
    assert [position for position, _ in events] == list(range(10))
    assert "".join(kind for _, kind in events) == "((()())())"


def test_calls_of_a_module_are_numbered(tmp_path):
    run = record(tmp_path, Model(), torch.ones(2), times=3)
    assert [c.n for c in run.calls if c.module == "tail"] == [0, 1, 2]
    assert run.modules["tail"].calls == 3
    assert run.modules["tail"].type == f"{Inner.__module__}.Inner"


def test_arguments_are_stored_under_the_names_of_the_signature(tmp_path):
    inner = record(tmp_path, Model(), torch.ones(2)).calls[2]
    assert list(inner.inputs) == ["x", "scale"]
    assert torch.equal(inner.inputs["x"].read(), torch.ones(2))
    assert inner.inputs["scale"] == 2.0
    assert torch.equal(inner.outputs[""].read(), torch.full((2,), 2.0))


def test_nested_values_keep_their_path_and_plain_ones_their_value(tmp_path):
    model = Custom(lambda x: OrderedDict(logits=x, past=[(x + 1, None), (x + 2, "text")], count=3))
    call = record(tmp_path, model, torch.zeros(2), None, torch.ones(1), flag=True, bad=float("nan")).calls[0]
    assert list(call.inputs) == ["x", "mask", "args/0", "flag", "bad"]
    assert call.inputs["mask"] is None
    assert call.inputs["flag"] is True
    assert call.inputs["bad"] != call.inputs["bad"]
    assert list(call.outputs) == ["logits", "past/0/0", "past/0/1", "past/1/0", "past/1/1", "count"]
    assert torch.equal(call.outputs["past/1/0"].read(), torch.full((2,), 2.0))
    assert (call.outputs["past/0/1"], call.outputs["past/1/1"], call.outputs["count"]) == (None, "text", 3)


def test_other_objects_are_left_out(tmp_path):
    call = record(tmp_path, Custom(lambda x: {"x": x, "cache": object()}), torch.zeros(2)).calls[0]
    assert list(call.outputs) == ["x"]


def test_tensors_that_hold_no_dense_values_are_listed(tmp_path):
    model = Custom(lambda x: (x, x.to_sparse(), x.to("meta")))
    call = record(tmp_path, model, torch.ones(2)).calls[0]
    assert list(call.outputs) == ["0"]
    left_out = open_capture(tmp_path / "run.h5").manifest.left_out
    assert [text.split(":")[0] for text in left_out] == ["values/%root/outputs/1", "values/%root/outputs/2"]


def test_a_module_with_several_names_gets_them_in_turn_below_the_call_that_encloses_it(tmp_path):
    run = record(tmp_path, Repeated(), torch.ones(2), times=2)
    one_pass = ["", "left", "left.0", "left.0.0", "left.1", "left.1.0", "right", "right.0", "right.0.0"]
    assert [c.module for c in run.calls] == one_pass * 2
    assert [run.calls[c.parent].module for c in run.calls[1:9]] == [
        "",
        "left",
        "left.0",
        "left",
        "left.1",
        "",
        "right",
        "right.0",
    ]
    assert {run.modules[name].calls for name in one_pass} == {2}


def test_a_change_in_place_after_the_call_does_not_reach_the_capture(tmp_path):
    def add_in_place(x):
        y = x + 1
        model.kept = y
        return y

    model = nn.Sequential(Custom(add_in_place), Custom(lambda x: x.mul_(0)))
    run = record(tmp_path, model, torch.zeros(3))
    first, second = run.calls[1], run.calls[2]
    assert torch.equal(first.outputs[""].read(), torch.ones(3))
    assert torch.equal(second.inputs["x"].read(), torch.ones(3))
    assert torch.equal(second.outputs[""].read(), torch.zeros(3))


def test_views_are_stored_as_the_values_that_they_show(tmp_path):
    base = torch.arange(6.0).reshape(2, 3)
    call = record(tmp_path, Custom(lambda x: (x.t(), x[:, 1], x.expand(2, 2, 3))), base).calls[0]
    assert torch.equal(call.outputs["0"].read(), base.t())
    assert torch.equal(call.outputs["1"].read(), base[:, 1])
    assert torch.equal(call.outputs["2"].read(), base.expand(2, 2, 3))


def test_a_call_that_raises_never_ends_and_the_next_one_is_not_inside_it(tmp_path):
    def fail(x):
        raise RuntimeError("no")

    model = nn.Sequential(nn.Identity(), Custom(fail))
    path = tmp_path / "run.h5"
    with capture(model, path):
        with pytest.raises(RuntimeError, match="no"):
            model(torch.ones(1))
        model[0](torch.ones(1))
    calls = open_capture(path).rank(0).calls
    assert [(c.module, c.parent, c.end is None) for c in calls] == [
        ("", None, True),
        ("0", 0, False),
        ("1", 0, True),
        ("0", None, False),
    ]
    assert calls[0].outputs == {}


def test_a_call_that_returns_none_ends(tmp_path):
    call = record(tmp_path, Custom(lambda x: None), torch.ones(1)).calls[0]
    assert call.end == 1
    assert call.outputs == {"": None}


def test_parameters_and_buffers_are_stored_under_each_of_their_names(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model.tied = model[0]
    model.register_buffer("angles", torch.arange(3.0), persistent=False)
    parameters = record(tmp_path, model.eval(), torch.ones(4, 2)).parameters
    assert parameters["0.weight"].kind == parameters["tied.weight"].kind == "parameter"
    assert parameters["1.running_mean"].kind == "buffer"
    assert parameters["angles"].kind == "non_persistent_buffer"
    for name in ("0.weight", "tied.weight"):
        assert torch.equal(parameters[name].ref.read(), model[0].weight)
        assert parameters[name].row_hashes is None
    assert parameters["1.num_batches_tracked"].ref.read().dtype == torch.int64


def test_parameters_are_those_from_before_the_run(tmp_path):
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone()
    with capture(model, tmp_path / "run.h5"):
        model(torch.ones(1, 2))
        model.weight.data.zero_()
    assert torch.equal(open_capture(tmp_path / "run.h5").rank(0).parameters["weight"].ref.read(), before)


def test_the_autograd_graph_is_not_kept_alive(tmp_path):
    class Marker:
        def __call__(self, *gradients):
            return None

    model = nn.Linear(2, 2)
    with capture(model, tmp_path / "run.h5"):
        output, marker = model(torch.ones(1, 2)), Marker()
        output.grad_fn.register_hook(marker)
        graph = weakref.ref(marker)
        del output, marker
        gc.collect()
        assert graph() is None


def test_no_hook_is_left_behind(tmp_path):
    model = Model()
    record(tmp_path, model, torch.ones(2))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_module_name_can_be_anything(tmp_path):
    names = ["a/b", "../../etc", "<script>alert(1)</script>", "%root", "%index", "é", "nul\0"]
    model = nn.Module()
    model.forward = lambda x: [child(x) for child in model.children()]
    for name in names:
        model.add_module(name.replace(".", "_"), nn.Linear(1, 1))
    run = record(tmp_path, model, torch.ones(1))
    expected = [name.replace(".", "_") for name in names]
    assert [c.module for c in run.calls] == ["", *expected]
    assert set(run.parameters) == {f"{name}.{p}" for name in expected for p in ("weight", "bias")}
    assert [p.name for p in tmp_path.rglob("*")] == ["run.h5"]
