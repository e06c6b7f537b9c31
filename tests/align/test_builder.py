"""The trace of a small model on one rank and on several: healthy, with faults, and of other models."""

from dataclasses import replace

import pytest
import torch

from tests.align.build import BATCH, HIDDEN, TOKENS, VOCABULARY, WIDTH, Recorder, run_model, tensor_ref
from validator.align.builder import build_trace
from validator.align.traces import View
from validator.capturing.digest import row_hashes
from validator.capturing.records import RankCapture
from validator.errors import CaptureError, LayoutError, MismatchError

MODULES = ["", "embed", "norm", "mlp", "mlp.up", "mlp.down", "lm_head"]
ALL = View(ranks=(0, 1))


@pytest.fixture(scope="module")
def reference() -> RankCapture:
    return run_model()[0]


def with_parameter(capture: RankCapture, name: str, value: torch.Tensor) -> RankCapture:
    parameter = replace(capture.parameters[name], ref=tensor_ref(value))
    return replace(capture, parameters=capture.parameters | {name: parameter})


def test_a_healthy_run_has_one_view_and_every_call(reference: RankCapture) -> None:
    trace = build_trace(cand=run_model(world=2), ref=reference)
    assert [module for module, _ in trace.calls] == MODULES
    assert trace.views == (ALL,)
    assert trace.world_size == 2
    assert trace.problems == ()
    assert trace.unmatched_reference == trace.unmatched_candidate == ()
    assert trace.unmatched_parameters == ((), ())
    assert trace.calls["mlp.up", 0].parent == ("mlp", 0)
    assert trace.calls["", 0].values == {"use_cache": False}
    orders = [call.order for call in trace.calls.values()]
    assert orders == sorted(set(orders))


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_edge_and_parameter_is_the_references(reference: RankCapture, world: int) -> None:
    trace = build_trace(cand=run_model(world=world), ref=reference)
    view = trace.views[0]
    for call in reference.calls:
        ours = trace.calls[call.module, call.n]
        for edges, stored in ((ours.inputs, call.inputs), (ours.outputs, call.outputs)):
            for path, edge in edges.items():
                assert torch.allclose(edge.read(view).data, stored[path].read(), rtol=1e-12)
        assert set(ours.outputs) == set(call.outputs)
    for name, parameter in reference.parameters.items():
        assert torch.equal(trace.parameters[name].read(view).data, parameter.ref.read())


def test_edges_say_where_parts_came_from_and_what_dims_mean(reference: RankCapture) -> None:
    trace = build_trace(cand=run_model(world=2), ref=reference)
    hidden = trace.calls["mlp.up", 0].outputs[""].read(ALL)
    half = HIDDEN // 2
    assert [(part.rank, part.box[2]) for part in hidden.parts] == [(0, (0, half)), (1, (half, HIDDEN))]
    assert hidden.dims == ("batch", "token", "channel")
    assert trace.calls["", 0].inputs["input_ids"].read(ALL).dims == ("batch", "token")
    assert trace.parameters["embed.weight"].read(ALL).dims == ("channel", "")


def test_a_row_parallel_module_has_partials_with_their_slices(reference: RankCapture) -> None:
    trace = build_trace(cand=run_model(world=2), ref=reference)
    (partial,) = trace.calls["mlp.down", 0].partials
    batch_and_tokens = ((0, BATCH), (0, TOKENS))
    half = HIDDEN // 2
    assert partial.op == "all_reduce"
    assert partial.order == 0
    assert partial.input_boxes == {0: (*batch_and_tokens, (0, half)), 1: (*batch_and_tokens, (half, HIDDEN))}
    total = torch.stack(list(partial.tensors.values())).sum(0)
    assert torch.equal(total, trace.calls["mlp.down", 0].outputs[""].read(ALL).data)
    assert trace.calls["mlp", 0].partials == ()


@pytest.mark.parametrize("dim", [None, 1], ids=["replicated", "split by token"])
def test_an_input_whole_in_its_last_dim_has_no_slice(dim: int | None) -> None:
    whole = torch.zeros(2, 6, 4)

    def run(rank: int, world: int) -> RankCapture:
        recorder = Recorder(rank)
        with recorder.call("", {"x": whole}), recorder.call("down", {"input": part(rank, world)}):
            recorder.reduce(torch.full((2, 3, 4), float(rank)), torch.ones(2, 3, 4), (0, 1))
        return recorder.capture()

    def part(rank: int, world: int) -> torch.Tensor:
        return whole if dim is None else whole.chunk(world, dim)[rank]

    (partial,) = build_trace(cand=[run(0, 2), run(1, 2)], ref=run(0, 1)).calls["down", 0].partials
    assert partial.input_boxes == {0: None, 1: None}
    assert torch.equal(partial.tensors[1], torch.ones(2, 3, 4))


def test_two_groups_of_ranks_have_a_sum_each() -> None:
    def run(rank: int) -> RankCapture:
        recorder = Recorder(rank)
        with recorder.call("", {"x": torch.ones(2, 3)}):
            recorder.reduce(torch.ones(1), torch.ones(1), (0, 1) if rank < 2 else (2, 3))
        return recorder.capture()

    partials = build_trace(cand=[run(rank) for rank in range(4)], ref=run(0)).calls["", 0].partials
    assert [(partial.order, tuple(partial.tensors)) for partial in partials] == [(0, (0, 1)), (0, (2, 3))]


def test_ranks_with_other_numbers_of_sums_are_a_problem(reference: RankCapture) -> None:
    first, second = run_model(world=2)
    trace = build_trace(cand=[first, replace(second, collectives=())], ref=reference)
    assert trace.calls["mlp.down", 0].partials == ()
    assert trace.problems == (("mlp.down", "sums over ranks inside the call: 1 on rank 0, 0 on rank 1"),)


def test_replicas_that_disagree_make_two_views(reference: RankCapture) -> None:
    trace = build_trace(cand=run_model(world=2, norm_factor={1: 1.5}), ref=reference)
    assert trace.views == (View(ranks=(0,)), View(ranks=(1,)))
    norm = trace.calls["norm", 0].outputs[""]
    assert norm.disagreeing == (1,)
    assert trace.calls["norm", 0].inputs["input"].disagreeing == ()
    healthy, faulty = (norm.read(view) for view in trace.views)
    assert torch.equal(faulty.data, healthy.data * 1.5)
    assert [part.rank for part in faulty.parts] == [1]
    # Each view judges the columns that its own rank made of its own norm.
    up = trace.calls["mlp.up", 0].outputs[""].read(trace.views[1])
    assert [part.box[2] for part in up.parts] == [(HIDDEN // 2, HIDDEN)]


def test_a_wrapped_candidate_is_matched(reference: RankCapture) -> None:
    trace = build_trace(cand=run_model(world=2, prefix="module"), ref=reference)
    assert [module for module, _ in trace.calls] == MODULES
    assert trace.calls["mlp.up", 0].candidate_module == "module.mlp.up"
    assert trace.candidate_parameters["embed.weight"] == "module.embed.weight"


def test_names_rename_modules_and_parameters(reference: RankCapture) -> None:
    trace = build_trace(cand=run_model(prefix="net"), ref=reference, names={"net": ""})
    assert [module for module, _ in trace.calls] == MODULES
    assert list(trace.parameters) == list(reference.parameters)


def test_names_that_match_nothing_are_an_error(reference: RankCapture) -> None:
    with pytest.raises(MismatchError, match=r"'nte' \(for 'model'\) matches no module or parameter"):
        build_trace(cand=run_model(), ref=reference, names={"nte": "model"})


def renamed(capture: RankCapture) -> RankCapture:
    """Return the capture of a model of other names, whose parameters were not captured."""
    names = {name: f"net{i}" for i, name in enumerate(capture.modules)} | {"": ""}
    return replace(
        capture,
        modules={names[n]: replace(info, fqn=names[n]) for n, info in capture.modules.items()},
        calls=tuple(replace(call, module=names[call.module]) for call in capture.calls),
        parameters={},
    )


def test_models_that_share_no_name_are_an_error(reference: RankCapture) -> None:
    with pytest.raises(MismatchError, match="share no module name"):
        build_trace(cand=[renamed(run_model()[0])], ref=reference)


def test_modules_of_one_side_alone_are_listed(reference: RankCapture) -> None:
    (capture,) = run_model()
    calls = tuple(replace(c, module="other") if c.module == "norm" else c for c in capture.calls)
    trace = build_trace(cand=[replace(capture, calls=calls)], ref=reference)
    assert trace.unmatched_reference == ("norm",)
    assert trace.unmatched_candidate == ("other",)
    assert ("norm", 0) not in trace.calls


def test_parameters_of_one_side_alone_are_listed(reference: RankCapture) -> None:
    (capture,) = run_model()
    parameters = dict(capture.parameters)
    parameters["extra.bias"] = parameters.pop("mlp.up.weight")
    trace = build_trace(cand=[replace(capture, parameters=parameters)], ref=reference)
    assert trace.unmatched_parameters == (("mlp.up.weight",), ("extra.bias",))


def test_a_split_that_does_not_add_up_is_a_problem_with_all_shapes(reference: RankCapture) -> None:
    captures = [
        replace(
            capture,
            calls=tuple(
                replace(call, inputs={"input": tensor_ref(torch.zeros(BATCH, TOKENS, 5))})
                if call.module == "mlp.down"
                else call
                for call in capture.calls
            ),
        )
        for capture in run_model(world=2)
    ]
    trace = build_trace(cand=captures, ref=reference)
    assert trace.problems == (
        (
            "mlp.down",
            "input input: rank 0 [2, 6, 5], rank 1 [2, 6, 5] against the reference's [2, 6, 12]; "
            "say how it is split in layout = {...}; its caller is judged as one function through it",
        ),
    )
    assert ("mlp.down", 0) not in trace.calls


def test_calls_that_do_not_line_up_are_a_problem(reference: RankCapture) -> None:
    (capture,) = run_model()
    up = next(call for call in capture.calls if call.module == "mlp.up")
    again = replace(up, id=len(capture.calls), n=1, start=up.start + 1000)
    trace = build_trace(cand=[replace(capture, calls=(*capture.calls, again))], ref=reference)
    assert ("mlp.up", 0) not in trace.calls
    ((module, why),) = trace.problems
    assert module == "mlp.up"
    assert "candidate 2 on rank 0, reference 1" in why


def test_a_declared_partial_output_is_added_up(reference: RankCapture) -> None:
    captures = run_model(world=2)
    trace = build_trace(cand=captures, ref=reference, layout={"mlp.down": "... +tp"})
    single = build_trace(cand=captures, ref=reference)
    doubled = trace.calls["mlp.down", 0].outputs[""].read(ALL).data
    assert torch.equal(doubled, 2 * single.calls["mlp.down", 0].outputs[""].read(ALL).data)


def test_a_layout_that_can_not_be_read_is_an_error(reference: RankCapture) -> None:
    with pytest.raises(LayoutError, match="expected a mesh axis"):
        build_trace(cand=run_model(), ref=reference, layout={"mlp.down": "b s[]"})


def test_a_layout_is_on_the_axes_of_the_mesh(reference: RankCapture) -> None:
    captures = run_model(world=2)
    layout = {"mlp.down": "b s h +tp"}
    summed = build_trace(cand=captures, ref=reference, layout=layout, mesh={"dp": 1, "tp": 2})
    copied = build_trace(cand=captures, ref=reference, layout=layout, mesh={"dp": 2, "tp": 1})
    outputs = [trace.calls["mlp.down", 0].outputs[""].read(ALL).data for trace in (summed, copied)]
    assert torch.equal(outputs[0], 2 * outputs[1])


def test_a_mesh_of_another_number_of_ranks_is_an_error(reference: RankCapture) -> None:
    with pytest.raises(LayoutError, match=r"mesh \{'tp': 4\} has 4 ranks, and the candidate ran on 2"):
        build_trace(cand=run_model(world=2), ref=reference, mesh={"tp": 4})


def test_other_inputs_are_an_error_with_both_shapes(reference: RankCapture) -> None:
    with pytest.raises(MismatchError, match=r"different inputs: input_ids is rank 0 \[2, 4\].*\[2, 6\]"):
        build_trace(cand=run_model(tokens=4), ref=reference)


def test_other_vocabularies_are_an_error_with_both_sizes(reference: RankCapture) -> None:
    message = r"different vocabularies: embed.weight has 30 rows in the candidate and 20 in the reference"
    with pytest.raises(MismatchError, match=message):
        build_trace(cand=run_model(vocabulary=30), ref=reference)
    with pytest.raises(MismatchError, match="has 30 rows on rank 0, 30 rows on rank 1 in the candidate"):
        build_trace(cand=run_model(vocabulary=30, world=2), ref=reference)


def test_logits_of_another_vocabulary_are_an_error(reference: RankCapture) -> None:
    (other,) = run_model(vocabulary=VOCABULARY + 4)
    other = replace(other, parameters=reference.parameters)
    with pytest.raises(
        MismatchError, match=r"logits are rank 0 \[2, 6, 24\] against the reference's \[2, 6, 20\]"
    ):
        build_trace(cand=[other], ref=reference)


def test_one_parameter_of_another_shape_is_a_problem(reference: RankCapture) -> None:
    (capture,) = run_model()
    trace = build_trace(cand=[with_parameter(capture, "mlp.up.weight", torch.zeros(3, WIDTH))], ref=reference)
    assert trace.problems == (("mlp.up", "mlp.up.weight: rank 0 [3, 8] against the reference's [12, 8]"),)
    assert "mlp.up.weight" not in trace.parameters


def test_a_capture_of_another_model_is_an_error(reference: RankCapture) -> None:
    (capture,) = run_model()
    for name, parameter in capture.parameters.items():
        capture = with_parameter(capture, name, torch.zeros(parameter.ref.meta.shape[0], 3))
    with pytest.raises(
        MismatchError, match=r"another model: 4 of its 4 parameters .* the first is embed\.weight"
    ):
        build_trace(cand=[capture], ref=reference)


def test_a_parameter_without_values_is_there_and_raises_when_read(reference: RankCapture) -> None:
    def refuse() -> torch.Tensor:
        raise CaptureError("only row hashes are stored")

    (capture,) = run_model()
    parameter = capture.parameters["embed.weight"]
    hashed = replace(parameter, ref=replace(parameter.ref, read=refuse), row_hashes=("00",) * VOCABULARY)
    capture = replace(capture, parameters=capture.parameters | {"embed.weight": hashed})
    edge = build_trace(cand=[capture], ref=reference).parameters["embed.weight"]
    assert edge.shape == (VOCABULARY, WIDTH)
    with pytest.raises(CaptureError, match="row hashes"):
        edge.read(View(ranks=(0,)))


def two_outputs(*names: str) -> RankCapture:
    recorder = Recorder()
    with recorder.call("", {"x": torch.ones(2, 3)}) as out:
        recorder.leaf("head", torch.ones(2, 3), {name: torch.ones(2, 3) for name in names})
        out.update({name: torch.ones(2, 3) for name in names})
    return recorder.capture()


def test_an_output_that_the_candidate_lacks_is_a_problem() -> None:
    trace = build_trace(cand=[two_outputs("logits")], ref=two_outputs("logits", "aux"))
    assert trace.problems == (
        ("", "output aux: the candidate has no such output"),
        ("head", "output aux: the candidate has no such output"),
    )
    assert trace.missing_outputs == (("", "aux"), ("head", "aux"))
    assert list(trace.calls["", 0].outputs) == ["logits"]


def test_an_output_that_is_none_in_the_candidate_is_no_problem() -> None:
    recorder = Recorder()
    with recorder.call("", {"x": torch.ones(2, 3)}) as out:
        out.update({"0": torch.ones(2, 3), "1": torch.ones(2, 2)})
    other = Recorder()
    with other.call("", {"x": torch.ones(2, 3)}) as out:
        out.update({"0": torch.ones(2, 3), "1": None})
    trace = build_trace(cand=[other.capture()], ref=recorder.capture())
    assert (trace.problems, trace.missing_outputs) == ((), ())


def add_inside(**inputs: torch.Tensor) -> RankCapture:
    """Run a model whose `add` has these inputs, and a child of its own."""
    recorder = Recorder()
    with recorder.call("", {"x": torch.ones(2, 3)}) as out, recorder.call("add", inputs) as added:
        recorder.leaf("add.norm", torch.ones(2, 3), torch.ones(2, 3))
        added[""] = out["y"] = torch.ones(2, 3)
    return recorder.capture()


def test_a_call_whose_inputs_have_no_counterpart_is_left_to_its_caller() -> None:
    x = torch.ones(2, 3)
    cand, ref = add_inside(h=x, r=torch.ones(2)), add_inside(hidden=x, residual=x, attention_mask=x)
    trace = build_trace(cand=[cand], ref=ref)
    assert list(trace.calls) == [("", 0), ("add.norm", 0)]
    assert trace.calls["add.norm", 0].parent == ("", 0)
    assert trace.problems == (
        (
            "add",
            "inputs without a counterpart: hidden, residual of the reference, h, r of the candidate; "
            "its caller is judged as one function through it",
        ),
    )


def test_arguments_of_other_names_and_a_mask_of_one_side_alone_leave_a_call_where_it_is() -> None:
    x = torch.ones(2, 3)
    ref = add_inside(hidden=x, attention_mask=torch.zeros(2, 2), residual=x)
    trace = build_trace(cand=[add_inside(h=x, r=x)], ref=ref)
    assert list(trace.calls["add", 0].inputs) == ["hidden", "residual"]
    assert trace.problems == ()


def without(capture: RankCapture, name: str) -> RankCapture:
    return replace(capture, parameters={n: p for n, p in capture.parameters.items() if n != name})


def test_a_parameter_that_the_candidates_module_lacks_is_missing(reference: RankCapture) -> None:
    (capture,) = run_model(prefix="module")
    trace = build_trace(cand=[without(capture, "module.mlp.up.weight")], ref=reference)
    assert trace.unmatched_parameters == (("mlp.up.weight",), ())
    assert trace.missing_parameters == ("mlp.up.weight",)


@pytest.mark.parametrize("name", ["mlp.up.packed", "mlp.up.lora.a", "mlp.fused", "flat"])
def test_a_parameter_that_another_may_stand_for_is_not_missing(reference: RankCapture, name: str) -> None:
    (capture,) = run_model()
    parameters = dict(capture.parameters)
    parameters[name] = parameters.pop("mlp.up.weight")
    assert build_trace(cand=[replace(capture, parameters=parameters)], ref=reference).missing_parameters == ()


def test_what_was_not_selected_for_the_capture_is_not_missing(reference: RankCapture) -> None:
    (capture,) = run_model()
    calls = tuple(call for call in capture.calls if call.module != "lm_head")
    selected = replace(without(capture, "lm_head.weight"), calls=calls)
    trace = build_trace(cand=[selected], ref=reference)
    assert trace.unmatched_parameters == (("lm_head.weight",), ())
    assert trace.missing_parameters == ()


def hashed(capture: RankCapture, name: str) -> RankCapture:
    """Return the capture with the hashes of a parameter's rows in place of its values."""
    parameter = capture.parameters[name]
    hashes, _ = row_hashes(parameter.ref.read())

    def refuse() -> torch.Tensor:
        raise CaptureError("its values are not stored")

    ref = replace(parameter.ref, read=refuse)
    return replace(
        capture, parameters=capture.parameters | {name: replace(parameter, ref=ref, row_hashes=hashes)}
    )


@pytest.mark.parametrize("name", ["embed.weight", "mlp.up.weight"], ids=["copies", "rows split"])
@pytest.mark.parametrize("hashed_ranks", [(0, 1), (1,)], ids=["all hashed", "one hashed"])
def test_row_hashes_are_those_of_the_whole_parameter(
    reference: RankCapture, name: str, hashed_ranks: tuple[int, ...]
) -> None:
    captures = [hashed(c, name) if c.rank in hashed_ranks else c for c in run_model(world=2)]
    edge = build_trace(cand=captures, ref=reference).parameters[name]
    assert edge.row_hashes is not None
    assert edge.row_hashes(ALL) == row_hashes(reference.parameters[name].ref.read())[0]


def test_rows_that_are_split_over_ranks_have_no_hashes(reference: RankCapture) -> None:
    captures = [hashed(capture, "mlp.down.weight") for capture in run_model(world=2)]
    trace = build_trace(cand=captures, ref=reference)
    assert trace.parameters["mlp.down.weight"].row_hashes is None
    assert trace.parameters["embed.weight"].row_hashes is None  # its values are stored
