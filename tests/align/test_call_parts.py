"""Calls that are parts of one are put in its place, with the tree around them and what they exchanged."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tests.align.build import Recorder, tensor_ref
from validator.align.call_parts import CallParts, along, with_parts_joined
from validator.capturing.records import Call, Mesh, Operator, Placement, RankCapture, TensorRef

FIRST, SECOND = torch.arange(6.0).view(1, 2, 3), torch.arange(9.0).view(1, 3, 3)
WHOLE = torch.cat([FIRST, SECOND], 1)


def recorded(*parts: Tensor, sums: Sequence[int] = (1, 1)) -> RankCapture:
    """Record a layer with a child for each part; each makes so many sums over ranks, and the model one."""
    recorder = Recorder()
    with recorder.call("", {}):
        for part, count in zip(parts, sums, strict=True):
            with recorder.call("layer", {"x": part}) as out:
                recorder.leaf("layer.norm", part, part)
                for _ in range(count):
                    recorder.reduce(part / 2, part, (0, 1))
                out[""] = part
        recorder.reduce(WHOLE, WHOLE, (0, 1))
    return recorder.capture()


def calls(capture: RankCapture, module: str) -> list[Call]:
    return [call for call in capture.calls if call.module == module]


def group(capture: RankCapture, module: str = "layer") -> CallParts:
    whole = {"x": tensor_ref(WHOLE)}
    return CallParts(calls=tuple(calls(capture, module)), inputs=whole, outputs={"": tensor_ref(WHOLE)})


def end_to_end(parts: CallParts, tensors: Sequence[TensorRef]) -> TensorRef:
    return along(tensors, 1)


def test_the_first_call_stands_for_all_from_its_start_to_the_last_one_s_end() -> None:
    capture = recorded(FIRST, SECOND)
    first, second = calls(capture, "layer")
    (whole,) = calls(with_parts_joined(capture, [group(capture)], end_to_end), "layer")
    assert (whole.id, whole.n, whole.start, whole.end) == (first.id, 0, first.start, second.end)
    assert torch.equal(whole.inputs["x"].read(), WHOLE)


def test_what_is_inside_of_a_part_is_inside_of_the_whole() -> None:
    capture = recorded(FIRST, SECOND)
    made = with_parts_joined(capture, [group(capture)], end_to_end)
    (whole,) = calls(made, "layer")
    assert [call.parent for call in calls(made, "layer.norm")] == [whole.id, whole.id]


def test_sums_of_the_parts_are_those_of_the_whole_and_others_stay() -> None:
    capture = recorded(FIRST, SECOND)
    made = with_parts_joined(capture, [group(capture)], end_to_end)
    (whole,) = calls(made, "layer")
    by_call = {sum_.call: sum_ for sum_ in made.collectives}
    assert by_call.keys() == {whole.id, calls(made, "")[0].id}
    assert torch.equal(by_call[whole.id].entered[0].read(), WHOLE / 2)
    assert torch.equal(by_call[whole.id].left[0].read(), WHOLE)


def test_sums_that_the_parts_did_not_make_alike_or_that_do_not_fit_are_left_out() -> None:
    uneven = recorded(FIRST, SECOND, sums=(1, 2))
    made = with_parts_joined(uneven, [group(uneven)], end_to_end)
    assert [sum_.call for sum_ in made.collectives] == [calls(made, "")[0].id]
    capture = recorded(FIRST, SECOND)
    made = with_parts_joined(capture, [group(capture)], lambda parts, tensors: None)
    assert [sum_.call for sum_ in made.collectives] == [calls(made, "")[0].id]


def test_operators_of_one_part_alone_are_not_taken_for_the_whole_s() -> None:
    capture = recorded(FIRST, SECOND)
    operator = Operator(name="aten.add.Tensor", start=0, arguments={}, results=())
    capture = replace(capture, calls=tuple(replace(c, operators=(operator,)) for c in capture.calls))
    (whole,) = calls(with_parts_joined(capture, [group(capture)], end_to_end), "layer")
    assert whole.operators == ()
    made = with_parts_joined(capture, [group(capture)], end_to_end, joins_operators=True)
    assert calls(made, "layer")[0].operators == ()
    first = calls(capture, "layer")[0]
    alone = CallParts(calls=(first,), inputs=first.inputs, outputs=first.outputs)
    (kept, _) = calls(with_parts_joined(capture, [alone], end_to_end), "layer")
    assert kept.operators == (operator,)


def test_parts_on_a_mesh_are_one_that_lies_on_it_as_they_do() -> None:
    mesh = Mesh(axes=("tp",), shape=(2,), ranks=(0, 1))
    sharded = (Placement(kind="shard", dim=2),)
    parts = [
        tensor_ref(part, placements=sharded, mesh=mesh, global_shape=(1, part.shape[1], 6))
        for part in (FIRST, SECOND)
    ]
    whole = along(parts, 1)
    assert (whole.meta.placements, whole.meta.mesh) == (sharded, mesh)
    assert whole.meta.global_shape == (1, 5, 6)
    other = replace(parts[1], meta=replace(parts[1].meta, placements=(Placement(kind="replicate"),)))
    assert along([parts[0], other], 1).meta.global_shape is None
