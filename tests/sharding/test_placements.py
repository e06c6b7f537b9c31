"""Finding how a tensor lies on the ranks: recorded, declared, inferred, or an error with every shape."""

from typing import Any

import pytest
import torch

from tests.align.build import tensor_ref
from validator.capturing.records import Mesh, Placement, TensorMeta
from validator.errors import LayoutError
from validator.sharding.inference import Evidence, Habits
from validator.sharding.layout import Declared, parse_layout
from validator.sharding.placements import disagreeing, place
from validator.sharding.unshard import unshard

TP2 = Mesh(axes=("tp",), shape=(2,), ranks=(0, 1))


def metas(*shapes: tuple[int, ...], **meta: Any) -> dict[int, TensorMeta]:
    return {
        rank: TensorMeta(dtype="float32", shape=shape, checksum="same", **meta)
        for rank, shape in enumerate(shapes)
    }


def test_a_tensor_that_is_whole_on_every_rank_is_a_copy() -> None:
    assert place(metas((2, 4), (2, 4)), shape=(2, 4)).copies == ((0, 1),)


@pytest.mark.parametrize("sizes", [(2, 2), (3, 1), (4, 0), (1, 2, 1)], ids=str)
def test_shapes_that_add_up_are_shards_in_rank_order(sizes: tuple[int, ...]) -> None:
    plan = place(metas(*((5, size) for size in sizes)), shape=(5, 4))
    assert [h.shape for h in plan.holdings] == [(5, size) for size in sizes]
    starts = [part.box[1][0] for part in plan.parts(range(len(sizes)))]
    assert starts == sorted(starts)


def test_shapes_that_do_not_add_up_are_stated() -> None:
    with pytest.raises(LayoutError) as caught:
        place(metas((2, 6, 40), (2, 6, 40)), shape=(2, 6, 96))
    assert str(caught.value) == (
        "rank 0 [2, 6, 40], rank 1 [2, 6, 40] against the reference's [2, 6, 96]; "
        "say how it is split in layout = {...}"
    )


def test_one_rank_has_no_layout_to_declare() -> None:
    with pytest.raises(LayoutError, match=r"^rank 0 \[3\] against the reference's \[4\]$"):
        place(metas((3,)), shape=(4,))


def test_shapes_that_differ_in_two_dims_are_no_shards() -> None:
    with pytest.raises(
        LayoutError, match=r"rank 0 \[2, 3\], rank 1 \[2, 3\] against the reference's \[4, 6\]"
    ):
        place(metas((2, 3), (2, 3)), shape=(4, 6))


def test_shapes_of_other_ranks_are_no_shards() -> None:
    with pytest.raises(LayoutError, match=r"rank 0 \[4\], rank 1 \[4\] against the reference's \[2, 4\]"):
        place(metas((4,), (4,)), shape=(2, 4))


def test_dtensor_placements_come_before_shapes() -> None:
    recorded = metas(
        (2, 4),
        (2, 4),
        placements=(Placement(kind="partial", reduce="sum"),),
        mesh=TP2,
        global_shape=(2, 4),
    )
    assert place(recorded, shape=(2, 4)).reduce == "sum"


def test_dtensor_placements_that_contradict_the_shapes_are_not_believed() -> None:
    # torch.chunk would give 3 and 2; from_local was given 1 and 4.
    recorded = metas((1,), (4,), placements=(Placement(kind="shard", dim=0),), mesh=TP2, global_shape=(5,))
    assert [h.shape for h in place(recorded, shape=(5,)).holdings] == [(1,), (4,)]


def test_a_dtensor_of_another_size_is_an_error() -> None:
    recorded = metas((2,), (2,), placements=(Placement(kind="shard", dim=0),), mesh=TP2, global_shape=(4,))
    with pytest.raises(LayoutError, match=r"\[4\] against the reference's \[8\]"):
        place(recorded, shape=(8,))


def test_groups_with_a_mesh_each_hold_copies() -> None:
    shard = (Placement(kind="shard", dim=0),)
    meshes = [TP2, TP2, *[Mesh(axes=("tp",), shape=(2,), ranks=(2, 3))] * 2]
    recorded = {
        rank: metas((2,), placements=shard, mesh=mesh, global_shape=(4,))[0]
        for rank, mesh in enumerate(meshes)
    }
    assert place(recorded, shape=(4,)).copies == ((0, 2), (1, 3))


def declared(text: str) -> Declared:
    found = parse_layout(text).of("output")
    assert found is not None
    return found


def test_a_declared_partial_is_a_sum() -> None:
    plan = place(metas((4,), (4,)), shape=(4,), declared=declared("h +tp"))
    assert plan.reduce == "sum"


def test_a_declared_shard_leaves_whole_tensors_alone() -> None:
    assert place(metas((4,), (4,)), shape=(4,), declared=declared("h[tp]")).copies == ((0, 1),)
    assert place(metas((3,), (3,)), shape=(3,), declared=declared("(a|b)[tp]")).copies == ((0, 1),)


def test_a_declared_order_of_whole_tensors_is_taken() -> None:
    (holding, _) = place(metas((4,), (4,)), shape=(4,), declared=declared("(gate|up):1,0")).holdings
    assert [run.logical for run in holding.dims[0]] == [range(2, 4), range(2)]


def test_a_declared_shard_must_fit() -> None:
    with pytest.raises(LayoutError) as caught:
        place(metas((2, 4), (2, 4)), shape=(4, 4), declared=declared("b h[tp]"))
    assert str(caught.value) == (
        "rank 0 [2, 4], rank 1 [2, 4] against the reference's [4, 4], which the declared 'b h[tp]' does not "
        "explain: it gives rank 0 [4, 2], rank 1 [4, 2]"
    )


def test_a_declared_shard_that_fits_is_taken() -> None:
    plan = place(metas((2, 4), (2, 4)), shape=(4, 4), declared=declared("b[tp] h"))
    assert plan.shard_of(1) == ((2, 4), (0, 4))


def test_a_layout_of_other_dims_says_nothing() -> None:
    plan = place(metas((2, 4), (2, 4)), shape=(4, 4), declared=declared("b s h[tp]"))
    assert plan.shard_of(1) == ((2, 4), (0, 4))


def test_copies_with_other_bits_disagree_with_the_lowest_rank() -> None:
    copies = metas((2,), (2,), (2,))
    copies[1] = TensorMeta(dtype="float32", shape=(2,), checksum="other")
    assert disagreeing(place(copies, shape=(2,)), copies) == (1,)


def test_shards_never_disagree() -> None:
    shards = metas((2,), (2,))
    shards[1] = TensorMeta(dtype="float32", shape=(2,), checksum="other")
    assert disagreeing(place(shards, shape=(4,)), shards) == ()


@pytest.mark.parametrize("is_outer", [True, False], ids=["groups beside each other", "groups apart"])
def test_dtensors_of_several_submeshes_are_parts_of_the_batch(is_outer: bool) -> None:
    whole = torch.arange(48.0).reshape(2, 8, 3)
    groups = [(0, 1), (2, 3)] if is_outer else [(0, 2), (1, 3)]
    tensors = {
        rank: tensor_ref(
            whole[i : i + 1].chunk(2, 1)[j],
            placements=(Placement(kind="shard", dim=1),),
            mesh=Mesh(axes=("tp",), shape=(2,), ranks=group),
            global_shape=(1, 8, 3),
        )
        for i, group in enumerate(groups)
        for j, rank in enumerate(group)
    }
    evidence = Evidence(tensors=tensors, ref=tensor_ref(whole), role="", habits=Habits(inputs=(2, 8)))
    plan = place({rank: t.meta for rank, t in tensors.items()}, shape=whole.shape, evidence=evidence)
    assert torch.equal(unshard(plan, lambda rank: tensors[rank].read()), whole)
