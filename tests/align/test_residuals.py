"""Residual streams that are kept apart, and second arguments that are no residuals."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.align.build import Recorder
from validator.align.residuals import join_residuals
from validator.capturing.records import Call, Placement, RankCapture, TensorRef

X, R, GATE = (
    torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(i)).to(torch.bfloat16) for i in range(3)
)
ROTARY = torch.ones(1, 3, 2)
MODULES = {name: name for name in ("", "layer", "layer.norm", "layer.mlp", "norm")}


def norm(x: Tensor) -> Tensor:
    return x / 2


def reference() -> RankCapture:
    """Run a layer of norm and MLP on the residual stream, and a last norm."""
    recorder = Recorder()
    stream = X + R
    with recorder.call("", {"x": stream}) as out:
        with recorder.call("layer", {"hidden_states": stream, "rotary/0": ROTARY}) as layer:
            recorder.leaf("layer.norm", {"hidden_states": stream}, norm(stream))
            recorder.leaf("layer.mlp", {"x": norm(stream)}, -norm(stream))
            layer[""] = last = stream - norm(stream)
        recorder.leaf("norm", {"hidden_states": last}, norm(last))
        out["logits"] = norm(last)
    return recorder.capture()


def apart(second: str = "residual") -> RankCapture:
    """Run the same with hidden states and residual apart; the last norm returns the normed tensor alone."""
    recorder = Recorder()
    stream = X + R
    with recorder.call("", {"x": stream}) as out:
        with recorder.call("layer", {"positions": 0, "x": X, second: R, "rotary/0": ROTARY}) as layer:
            recorder.leaf("layer.norm", {"x": X, second: R}, {"0": norm(stream), "1": stream})
            recorder.leaf("layer.mlp", {"x": norm(stream)}, -norm(stream))
            layer.update({"0": -norm(stream), "1": stream})
        last = stream - norm(stream)
        recorder.leaf("norm", {"x": -norm(stream), second: stream}, norm(last))
        out["logits"] = norm(last)
    return recorder.capture()


def joined(capture: RankCapture, modules: dict[str, str] = MODULES) -> dict[str, Call]:
    (result,) = join_residuals(cand=[capture], ref=reference(), modules=modules)
    return {call.module: call for call in result.calls}


def read(values: dict[str, TensorRef]) -> dict[str, Tensor]:
    return {path: value.read() for path, value in values.items() if isinstance(value, TensorRef)}


def assert_same(ours: dict[str, TensorRef], want: dict[str, Tensor]) -> None:
    found = read(ours)
    assert found.keys() == want.keys()
    assert all(torch.equal(found[path], want[path]) for path in want)


def test_norms_and_layers_take_and_return_the_sum() -> None:
    calls = joined(apart())
    stream = X + R
    assert_same(calls["layer"].inputs, {"x": stream, "rotary/0": ROTARY})
    assert calls["layer"].inputs["positions"] == 0
    assert_same(calls["layer.norm"].inputs, {"x": stream})
    assert_same(calls["layer.norm"].outputs, {"0": norm(stream)})
    assert_same(calls["layer"].outputs, {"0": stream - norm(stream)})
    assert_same(calls["norm"].inputs, {"x": stream - norm(stream)})
    assert_same(calls["layer.mlp"].outputs, {"": -norm(stream)})


def test_a_residual_is_known_by_what_is_returned_where_its_name_says_nothing() -> None:
    calls = joined(apart("second"))
    assert_same(calls["layer.norm"].inputs, {"x": X + R})
    # The last norm returns one tensor: its second argument may be anything.
    assert list(calls["norm"].inputs) == ["x", "second"]


def test_a_run_without_residuals_is_as_it_was() -> None:
    capture = reference()
    assert join_residuals(cand=[capture], ref=capture, modules=MODULES) == (capture,)


def test_a_gate_beside_a_normed_tensor_is_no_residual() -> None:
    recorder = Recorder()
    with recorder.call("", {"x": X}) as out:
        recorder.leaf("norm", {"hidden_states": X, "gate": GATE}, X * GATE)
        out["logits"] = X
    capture = recorder.capture()
    assert join_residuals(cand=[capture], ref=capture, modules=MODULES) == (capture,)


def test_what_ranks_still_have_to_add_up_is_no_residual() -> None:
    capture = apart()
    placed = (Placement(kind="partial", reduce="sum"),)

    def partial(value: TensorRef) -> TensorRef:
        return replace(value, meta=replace(value.meta, placements=placed))

    calls = tuple(
        replace(c, inputs=c.inputs | {"x": partial(c.inputs["x"])}) if c.module.endswith("norm") else c
        for c in capture.calls
    )
    assert joined(replace(capture, calls=calls))["layer.norm"].inputs.keys() == {"x", "residual"}


@pytest.mark.parametrize("missing", ["layer.norm", "layer"])
def test_a_module_without_counterpart_keeps_what_it_has(missing: str) -> None:
    calls = joined(apart(), {name: new for name, new in MODULES.items() if name != missing})
    assert "residual" in calls[missing].inputs
    assert "residual" not in calls["norm"].inputs
