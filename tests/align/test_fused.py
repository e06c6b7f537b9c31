"""Fused modules taken apart: calls, parameters, shards, consumers, and what is not fused at all."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tests.align.build import Recorder
from validator.align.builder import build_trace
from validator.align.fusions import find_parts, part_sizes, usual_fusions
from validator.align.traces import Trace, View
from validator.align.trees import Module
from validator.capturing.records import Mesh, Placement, RankCapture
from validator.errors import MismatchError
from validator.sharding.grammar import Dim
from validator.sharding.layout import TensorLayout, parse_layout, plan_layout
from validator.sharding.unshard import shard

PARTS = ("q_proj", "k_proj", "v_proj")
QUERIES, KEYS, WIDTH = 16, 8, 4
ALL = View(ranks=(0,))


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X = random(2, 3, WIDTH)
WEIGHTS = [random(rows, WIDTH, seed=i) for i, rows in enumerate((QUERIES, KEYS, KEYS), 1)]
BIASES = [random(len(weight), seed=10 + i) for i, weight in enumerate(WEIGHTS)]


def reference(leaves: Sequence[str] = PARTS) -> RankCapture:
    """Run three projections inside an attention."""
    recorder = Recorder()
    with recorder.call("", {"x": X}) as out, recorder.call("attn", {"x": X}) as inner:
        for leaf, weight, bias in zip(leaves, WEIGHTS, BIASES, strict=True):
            recorder.parameter(f"attn.{leaf}.weight", weight)
            recorder.parameter(f"attn.{leaf}.bias", bias)
            recorder.leaf(f"attn.{leaf}", X, X @ weight.T + bias)
        inner[""] = out[""] = X
    return recorder.capture()


def block(tensor: Tensor, rank: int, parts: int, world: int) -> Tensor:
    """Return a rank's block of rows that are split over so many, the ranks between holding copies."""
    return tensor.chunk(parts)[rank * parts // world]


def fused(world: int = 1, kv_parts: int | None = None, name: str = "qkv_proj") -> list[RankCapture]:
    """Run the projections as one, on each rank its block of every part."""
    captures = []
    for rank in range(world):
        parts = (world, kv_parts or world, kv_parts or world)
        weight, bias = (
            torch.cat([block(x, rank, n, world) for x, n in zip(tensors, parts, strict=True)])
            for tensors in (WEIGHTS, BIASES)
        )
        recorder = Recorder(rank)
        with recorder.call("", {"x": X}) as out, recorder.call("attn", {"x": X}) as inner:
            recorder.parameter(f"attn.{name}.weight", weight)
            recorder.parameter(f"attn.{name}.bias", bias)
            whole = X @ weight.T + bias
            recorder.leaf(f"attn.{name}", X, {"0": whole, "1": None})
            recorder.leaf("attn.core", whole, X)
            inner[""] = out[""] = X
        captures.append(recorder.capture())
    return captures


def assert_apart(trace: Trace, leaves: Sequence[str] = PARTS) -> None:
    """Require every part's call and parameters, bit for bit, wherever they came from."""
    assert trace.problems == ()
    assert trace.unmatched_parameters == ((), ())
    view = trace.views[0]
    for leaf, weight, bias in zip(leaves, WEIGHTS, BIASES, strict=True):
        call = trace.calls[f"attn.{leaf}", 0]
        assert call.parent == ("attn", 0)
        assert torch.equal(call.inputs["input"].read(view).data, X)
        assert torch.allclose(call.outputs[""].read(view).data, X @ weight.T + bias, rtol=1e-12)
        assert torch.equal(trace.parameters[f"attn.{leaf}.weight"].read(view).data, weight)
        assert torch.equal(trace.parameters[f"attn.{leaf}.bias"].read(view).data, bias)


@pytest.mark.parametrize(("world", "kv_parts"), [(1, 1), (2, 2), (4, 4), (4, 2), (8, 4)])
def test_a_usual_name_is_taken_apart_on_any_number_of_ranks(world: int, kv_parts: int) -> None:
    trace = build_trace(cand=fused(world, kv_parts), ref=reference())
    assert_apart(trace)
    assert trace.calls["attn.v_proj", 0].candidate_module == "attn.qkv_proj"
    assert trace.candidate_parameters["attn.k_proj.bias"] == "attn.qkv_proj.bias"
    assert trace.unmatched_candidate == ("attn.core",)
    assert trace.unmatched_reference == ()


@pytest.mark.parametrize(
    "layout", [None, {"attn.qkv_proj": "b s (q=16|k=8|v=8)[tp]"}], ids=["by its shapes", "as declared"]
)
def test_ranks_of_another_stage_hold_no_block(layout: dict[str, str] | None) -> None:
    others = []
    for rank in (2, 3):
        recorder = Recorder(rank)
        with recorder.call("", {"x": X}) as out:
            out[""] = X
        others.append(recorder.capture())
    trace = build_trace(cand=[*fused(2), *others], ref=reference(), layout=layout)
    assert_apart(trace)
    assert {part.rank for part in trace.parameters["attn.q_proj.weight"].parts} == {0, 1}


def reordered(line: str, world: int) -> list[RankCapture]:
    """Run the projections as one whose rows lie as a layout line of the outputs says."""
    declared = parse_layout(line).of("output")
    assert declared is not None
    dim = TensorLayout(text=line, dims=declared.layout.dims[-1:])
    captures = []
    for rank in range(world):
        weight, bias = (
            shard(
                plan_layout(whole.shape, layout=like(dim, whole.dim()), mesh=None, ranks=range(world)),
                whole,
                rank,
            )
            for whole in (torch.cat(WEIGHTS), torch.cat(BIASES))
        )
        recorder = Recorder(rank)
        with recorder.call("", {"x": X}) as out, recorder.call("attn", {"x": X}) as inner:
            recorder.parameter("attn.qkv_proj.weight", weight)
            recorder.parameter("attn.qkv_proj.bias", bias)
            recorder.leaf("attn.qkv_proj", X, X @ weight.T + bias)
            inner[""] = out[""] = X
        captures.append(recorder.capture())
    return captures


def like(dim: TensorLayout, ndim: int) -> TensorLayout:
    return TensorLayout(text=dim.text, dims=(*dim.dims, *[Dim(name="_")] * (ndim - 1)))


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize(
    "line",
    [
        "b s (q=4|k=2|v=2):per_kv_group{cut}",
        "b s (q=4|k=2|v=2):0,2,1{cut}",
        "b s (q=4|k=2|v=2){cut}",
    ],
    ids=["per kv group", "v before k", "per-rank blocks"],
)
def test_a_layout_line_says_in_which_order_the_parts_lie(line: str, world: int) -> None:
    line = line.format(cut="[tp]" if world > 1 else "")
    assert_apart(build_trace(cand=reordered(line, world), ref=reference(), layout={"*.qkv_proj": line}))


def sharded_storage(is_known: bool) -> list[RankCapture]:
    """Run the projections as one on two ranks, each of which stores half of the rows."""
    mesh = Mesh(axes=("dp",), shape=(2,), ranks=(0, 1))
    weight, bias = torch.cat(WEIGHTS), torch.cat(BIASES)
    captures = []
    for rank in range(2):
        recorder = Recorder(rank)
        with recorder.call("", {"x": X}) as out, recorder.call("attn", {"x": X}) as inner:
            for leaf, whole in (("weight", weight), ("bias", bias)):
                meta = {
                    "placements": (Placement(kind="shard", dim=0),),
                    "mesh": mesh,
                    "global_shape": whole.shape,
                }
                recorder.parameter(f"attn.qkv_proj.{leaf}", whole.chunk(2)[rank], **meta if is_known else {})
            recorder.leaf("attn.qkv_proj", X, X @ weight.T + bias)
            inner[""] = out[""] = X
        captures.append(recorder.capture())
    return captures


def test_rows_that_are_gathered_before_use_are_those_of_the_whole() -> None:
    assert_apart(build_trace(cand=sharded_storage(is_known=True), ref=reference()))


def test_rows_that_nothing_explains_are_listed_and_not_called_missing() -> None:
    trace = build_trace(cand=sharded_storage(is_known=False), ref=reference())
    assert trace.calls.keys() >= {(f"attn.{leaf}", 0) for leaf in PARTS}
    assert trace.unmatched_parameters[1] == ("attn.qkv_proj.weight", "attn.qkv_proj.bias")
    assert trace.missing_parameters == ()


def test_another_name_takes_braces() -> None:
    names = {"*.all": "*.{q_proj,k_proj,v_proj}"}
    trace = build_trace(cand=fused(2, name="all"), ref=reference(), names=names)
    assert_apart(trace)
    assert trace.found_names == {}


def test_on_one_rank_values_tell_what_another_name_means() -> None:
    leaves = ("one", "two", "three")
    trace = build_trace(cand=fused(name="all"), ref=reference(leaves))
    assert_apart(trace, leaves)
    assert trace.found_names == {"attn.all": "attn.{one,two,three}"}


def test_values_tell_the_order_too() -> None:
    weights, biases = (torch.cat([x[2], x[0], x[1]]) for x in (WEIGHTS, BIASES))
    recorder = Recorder()
    with recorder.call("", {"x": X}) as out, recorder.call("attn", {"x": X}) as inner:
        recorder.parameter("attn.all.weight", weights)
        recorder.parameter("attn.all.bias", biases)
        recorder.leaf("attn.all", X, X @ weights.T + biases)
        inner[""] = out[""] = X
    leaves = ("one", "two", "three")
    trace = build_trace(cand=[recorder.capture()], ref=reference(leaves))
    assert_apart(trace, leaves)


def test_what_is_given_the_whole_output_is_looked_through() -> None:
    (capture,) = fused()
    theirs = Recorder()
    with theirs.call("", {"x": X}) as out, theirs.call("attn", {"x": X}) as inner:
        for leaf, weight, bias in zip(PARTS, WEIGHTS, BIASES, strict=True):
            theirs.parameter(f"attn.{leaf}.weight", weight)
            theirs.parameter(f"attn.{leaf}.bias", bias)
            theirs.leaf(f"attn.{leaf}", X, X @ weight.T + bias)
        theirs.leaf("attn.core", X, X)
        inner[""] = out[""] = X
    trace = build_trace(cand=[capture], ref=theirs.capture())
    assert ("attn.core", 0) not in trace.calls
    assert trace.unmatched_candidate == trace.unmatched_reference == ("attn.core",)


def test_separate_modules_become_the_references_fused_one() -> None:
    (theirs,) = fused()
    trace = build_trace(cand=[reference()], ref=theirs)
    call = trace.calls["attn.qkv_proj", 0]
    assert trace.problems == ()
    want = theirs.calls[2].outputs["0"].read()
    assert torch.allclose(call.outputs["0"].read(ALL).data, want, rtol=1e-12)
    weight = trace.parameters["attn.qkv_proj.weight"]
    assert torch.equal(weight.read(ALL).data, torch.cat(WEIGHTS))
    assert call.candidate_module == "attn.{q_proj,k_proj,v_proj}"


def test_shapes_that_contradict_a_usual_name_keep_it_whole() -> None:
    narrow = Recorder()
    with narrow.call("", {"x": X}) as out, narrow.call("attn", {"x": X}) as inner:
        narrow.parameter("attn.qkv_proj.weight", torch.cat(WEIGHTS)[:-1])
        narrow.leaf("attn.qkv_proj", X, X @ torch.cat(WEIGHTS)[:-1].T)
        inner[""] = out[""] = X
    trace = build_trace(cand=[narrow.capture()], ref=reference())
    assert "attn.qkv_proj" in trace.unmatched_candidate
    assert set(trace.unmatched_reference) == {f"attn.{leaf}" for leaf in PARTS}


def test_braces_that_shapes_contradict_are_an_error_with_both_shapes() -> None:
    with pytest.raises(MismatchError, match=r"'attn\.qkv_proj' \(weight \[32, 4\], bias \[32\]\) can't hold"):
        build_trace(cand=fused(), ref=reference(), names={"*.qkv_proj": "*.{q_proj,k_proj}"})
    with pytest.raises(MismatchError, match=r"'attn\.w_proj', which the reference has not"):
        build_trace(cand=fused(), ref=reference(), names={"*.qkv_proj": "*.{q_proj,k_proj,w_proj}"})


@pytest.mark.parametrize(
    ("sizes", "width", "world", "want"),
    [
        ((16, 8, 8), 32, 1, (16, 8, 8)),
        ((16, 8, 8), 32, 4, (16, 8, 8)),
        ((16, 8, 8), 8, 4, (4, 2, 2)),
        ((16, 8, 8), 12, 4, (4, 4, 4)),
        ((16, 8, 8), 20, 4, (4, 8, 8)),
        ((16, 8, 8), 31, 4, None),
        ((12, 12), 8, 3, (4, 4)),
        ((12, 12), 7, 3, None),
    ],
)
def test_a_width_tells_what_a_rank_holds(
    sizes: tuple[int, ...], width: int, world: int, want: tuple[int, ...] | None
) -> None:
    assert part_sizes(sizes, width, world) == want


def module(name: str, *shape: int) -> Module:
    return Module(fqn=name, type="Linear", shapes={"weight": shape}, children=(), elements=1)


def test_usual_names_of_one_parent_are_each_taken_once() -> None:
    parts = [module(f"m.{leaf}", 4, 4) for leaf in ("gate_proj", "up_proj", "q_proj", "k_proj", "v_proj")]
    wholes = [module("m.gate_up_proj", 8, 4), module("m.qkv", 12, 4), module("m.o", 12, 4)]
    found = {f.whole: f.parts for f in usual_fusions(wholes, parts, 1)}
    assert found == {
        "m.gate_up_proj": ("m.gate_proj", "m.up_proj"),
        "m.qkv": ("m.q_proj", "m.k_proj", "m.v_proj"),
    }


def test_all_runs_that_add_up_are_found() -> None:
    others = [module(f"m.{i}", 4, 4) for i in range(3)]
    assert [f.parts for f in find_parts(module("m.x", 8, 4), others, 1)] == [("m.0", "m.1"), ("m.1", "m.2")]


def test_a_declared_layout_holds_for_the_other_dims_of_the_parts_too() -> None:
    x = random(2, 8, WIDTH)

    def run(
        rank: int, rows: list[int], outputs: dict[str, Tensor], weights: dict[str, Tensor]
    ) -> RankCapture:
        recorder = Recorder(rank)
        with recorder.call("", {"x": x}) as out, recorder.call("attn", {"x": x}) as inner:
            for leaf, output in outputs.items():
                recorder.parameter(f"attn.{leaf}.weight", weights[leaf])
                recorder.leaf(f"attn.{leaf}", x[:, rows], output[:, rows])
            inner[""] = out[""] = x
        return recorder.capture()

    weights = dict(zip(PARTS, WEIGHTS, strict=True))
    projected = {leaf: x @ weight.T for leaf, weight in weights.items()}
    cand = []
    for rank in range(4):
        (own, whole) = (
            {"qkv_proj": torch.cat([part.chunk(2, dim)[rank % 2] for part in parts.values()], dim)}
            for parts, dim in ((weights, 0), (projected, -1))
        )
        rows = [0, 3, 4, 7] if rank < 2 else [1, 2, 5, 6]
        cand.append(run(rank, rows, whole, own))
    order = "s:0,3,4,7,1,2,5,6[cp]"
    line = f"input=b {order} h, output=b {order} (q=16|k=8|v=8)[tp]"
    trace = build_trace(
        cand=cand,
        ref=run(0, list(range(8)), projected, weights),
        layout={"*.qkv_proj": line},
        mesh={"cp": 2, "tp": 2},
    )
    for leaf in PARTS:
        call = trace.calls[f"attn.{leaf}", 0]
        assert torch.equal(call.inputs["input"].read(ALL).data, x)
        assert torch.equal(call.outputs[""].read(ALL).data, projected[leaf])
