"""Edges: which tensors are one edge, and what a view reads."""

from collections.abc import Sequence

import pytest
import torch

from tests.align.build import tensor_ref
from validator.align.dims import dims_of
from validator.align.edges import JoinedEdge, find_views, join, join_side
from validator.align.traces import View
from validator.errors import LayoutError
from validator.sharding.layout import parse_layout
from validator.sharding.plan import Part


def no_dims(shape: Sequence[int], path: str) -> tuple[str, ...]:
    return ("",) * len(shape)


def test_shards_are_joined_from_all_ranks_and_judged_on_those_of_the_view() -> None:
    whole = torch.arange(8.0).reshape(2, 4)
    refs = {rank: tensor_ref(part) for rank, part in enumerate(whole.chunk(2, 1))}
    logical = join(refs, path="", shape=(2, 4), dims_of=no_dims).edge.read(View(ranks=(1,)))
    assert torch.equal(logical.data, whole)
    assert logical.parts == (Part(rank=1, box=((0, 2), (2, 4))),)


def test_a_view_reads_its_own_copy() -> None:
    refs = {rank: tensor_ref(torch.full((2,), float(rank))) for rank in range(3)}
    edge = join(refs, path="", shape=(2,), dims_of=no_dims).edge
    assert edge.disagreeing == (1, 2)
    for rank in range(3):
        logical = edge.read(View(ranks=(rank,)))
        assert logical.data.tolist() == [rank, rank]
        assert [part.rank for part in logical.parts] == [rank]


def test_a_declared_partial_is_added_up() -> None:
    refs = {rank: tensor_ref(torch.tensor([1.0, 2.0])) for rank in range(2)}
    declared = parse_layout("h +tp").of("output")
    edge = join(refs, path="", shape=(2,), dims_of=no_dims, declared=declared).edge
    assert edge.read(View(ranks=(0, 1))).data.tolist() == [2.0, 4.0]


def test_tokens_in_a_declared_order_are_put_back() -> None:
    whole = torch.arange(16.0).reshape(1, 8, 2)
    chunks = whole.chunk(4, 1)
    refs = {0: tensor_ref(torch.cat([chunks[0], chunks[3]], 1)), 1: tensor_ref(torch.cat(chunks[1:3], 1))}
    declared = parse_layout("b s[cp:zigzag] h").of("output")
    edge = join(refs, path="", shape=(1, 8, 2), dims_of=no_dims, declared=declared).edge
    assert torch.equal(edge.read(View(ranks=(0, 1))).data, whole)
    assert edge.stream is None
    assert [part.box[1] for part in edge.parts] == [(0, 2), (6, 8), (2, 6)]


def test_ranks_with_different_dtypes_are_an_error() -> None:
    refs = {0: tensor_ref(torch.zeros(2)), 1: tensor_ref(torch.zeros(2).bfloat16())}
    with pytest.raises(LayoutError, match="rank 0 is float32, rank 1 is bfloat16"):
        join(refs, path="", shape=(2,), dims_of=no_dims)


def test_a_bare_tensor_stands_for_the_first_of_a_tuple() -> None:
    hidden, weights = tensor_ref(torch.zeros(2)), tensor_ref(torch.zeros(3))
    side = join_side(cand={0: {"": hidden}}, ref={"0": hidden, "1": weights}, dims_of=no_dims)
    assert list(side.edges) == ["0"]
    assert (side.problems, side.unpaired) == ({}, (("1",), ()))


def test_paths_that_are_no_tensor_on_one_side_are_left_out() -> None:
    tensor = tensor_ref(torch.zeros(2))
    mask = tensor_ref(torch.zeros(2, dtype=torch.bool))
    side = join_side(
        cand={0: {"x": tensor, "mask": None, "additive": mask, "probabilities": None}},
        ref={"x": tensor, "mask": mask, "additive": tensor, "probabilities/0": tensor},
        dims_of=no_dims,
    )
    assert list(side.edges) == ["x"]
    assert side.problems == {}
    assert side.unpaired == ((), ())


def test_the_only_tensors_of_both_sides_are_one_edge() -> None:
    tensor = tensor_ref(torch.zeros(2))
    edges = join_side(cand={0: {"": tensor}}, ref={"0": tensor, "1": None}, dims_of=no_dims).edges
    assert list(edges) == ["0"]
    assert edges["0"].edge.path == "0"


def test_what_does_not_fit_is_a_problem_of_its_path() -> None:
    side = join_side(
        cand={0: {"x": tensor_ref(torch.zeros(3))}}, ref={"x": tensor_ref(torch.zeros(4))}, dims_of=no_dims
    )
    assert side.edges == {}
    assert side.problems == {"x": "rank 0 [3] against the reference's [4]"}


@pytest.mark.parametrize(("ours", "theirs"), [((2, 6), (1, 6)), ((1, 6), (2, 6))])
def test_one_side_may_have_once_what_the_other_has_for_each_sequence(
    ours: tuple[int, ...], theirs: tuple[int, ...]
) -> None:
    def dims(shape: Sequence[int], path: str) -> tuple[str, ...]:
        return dims_of(shape, batch=2, tokens=6, path=path)

    sides = {
        "cand": {0: {"positions": tensor_ref(torch.zeros(ours, dtype=torch.int64))}},
        "ref": {"positions": tensor_ref(torch.zeros(theirs, dtype=torch.int64))},
        "dims_of": dims,
    }
    assert join_side(**sides, expands_batch=True).edges["positions"].edge.shape == ours  # type: ignore[arg-type]
    assert list(join_side(**sides).problems) == ["positions"]  # type: ignore[arg-type]


def test_tokens_are_no_batch_of_which_there_may_be_one() -> None:
    """Experts get as many tokens as chose them, on one side one and on the other three."""
    tokens = {"x": tensor_ref(torch.zeros(3, 8))}
    side = join_side(
        cand={0: tokens}, ref={"x": tensor_ref(torch.zeros(1, 8))}, dims_of=no_dims, expands_batch=True
    )
    assert list(side.problems) == ["x"]


def test_tensors_of_other_names_are_paired_by_position() -> None:
    hidden, residual, index = torch.ones(2, 4), torch.zeros(2, 4), torch.arange(2)
    side = join_side(
        cand={
            rank: {"h": tensor_ref(hidden[:, part]), "i": tensor_ref(index), "r": tensor_ref(residual)}
            for rank, part in enumerate((slice(0, 2), slice(2, 4)))
        },
        ref={"hidden": tensor_ref(hidden), "residual": tensor_ref(residual), "index": tensor_ref(index)},
        dims_of=no_dims,
    )
    values = {path: joined.edge.read(View(ranks=(0,))).data for path, joined in side.edges.items()}
    assert list(values) == ["hidden", "residual", "index"]
    assert torch.equal(values["hidden"], hidden)
    assert torch.equal(values["residual"], residual)
    assert torch.equal(values["index"], index)
    assert side.unpaired == ((), ())


@pytest.mark.parametrize(
    ("ours", "unpaired"),
    [
        ({"h": (2, 4), "r": (2, 3)}, (("hidden", "residual"), ("h", "r"))),
        ({"h": (2, 4)}, (("hidden", "residual"), ("h",))),
        ({"hidden": (2, 4)}, (("residual",), ())),
        ({"hidden": (2, 4), "residual": (2, 4), "scale": (1,)}, ((), ("scale",))),
    ],
    ids=["other shapes", "another count", "one missing", "one more"],
)
def test_floating_tensors_without_a_counterpart_are_listed(
    ours: dict[str, tuple[int, ...]], unpaired: tuple[tuple[str, ...], tuple[str, ...]]
) -> None:
    hidden = tensor_ref(torch.zeros(2, 4))
    side = join_side(
        cand={0: {path: tensor_ref(torch.zeros(shape)) for path, shape in ours.items()}},
        ref={"hidden": hidden, "residual": hidden},
        dims_of=no_dims,
    )
    assert side.unpaired == unpaired
    assert set(side.edges) == {"hidden", "residual"} & set(ours)


@pytest.mark.parametrize(
    ("values", "odd"),
    [
        ((0, 1), None),
        ((0, 1, 0), 1),
        ((1, 0, 0), 0),
        ((0, 0, 1, 1), None),
        ((0, 1, 2), None),
        ((0, 0, 1, 2), None),
    ],
    ids=str,
)
def test_the_odd_one_of_the_replicas(values: tuple[int, ...], odd: int | None) -> None:
    refs = {rank: tensor_ref(torch.tensor([value])) for rank, value in enumerate(values)}
    assert join(refs, path="", shape=(1,), dims_of=no_dims).edge.odd_rank == odd


def test_ranks_that_agree_share_a_view() -> None:
    same = join({r: tensor_ref(torch.zeros(2)) for r in range(4)}, path="", shape=(2,), dims_of=no_dims)
    values = (0.0, 1.0, 0.0, 1.0)
    other = join(
        {r: tensor_ref(torch.tensor([v])) for r, v in enumerate(values)}, path="", shape=(1,), dims_of=no_dims
    )
    assert find_views(range(4), [same]) == (View(ranks=(0, 1, 2, 3)),)
    assert find_views(range(4), [same, other]) == (View(ranks=(0, 2)), View(ranks=(1, 3)))


def test_every_edge_counts_for_views() -> None:
    def edge(*values: float) -> JoinedEdge:
        refs = {r: tensor_ref(torch.tensor([v])) for r, v in enumerate(values)}
        return join(refs, path="", shape=(1,), dims_of=no_dims)

    assert len(find_views(range(3), [edge(0, 1, 1), edge(0, 0, 1)])) == 3
