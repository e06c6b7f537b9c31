"""The ways of splitting that shapes allow, and which of them the values of a run show."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.align.build import tensor_ref
from validator.errors import LayoutError
from validator.sharding.inference import (
    Arrangement,
    Evidence,
    Habits,
    arrangements,
    choose,
    layout_line,
    role_of,
)
from validator.sharding.placements import place

WHOLE = torch.arange(24.0).reshape(4, 6)
ROLE = "layers.*.k_proj.weight"


def evidence(
    parts: Mapping[int, Tensor], *, ref: Tensor | None = WHOLE, habits: Habits | None = None
) -> Evidence:
    return Evidence(
        tensors={rank: tensor_ref(part) for rank, part in parts.items()},
        ref=None if ref is None else tensor_ref(ref),
        role=ROLE,
        habits=habits or Habits(),
    )


def ways(parts: Mapping[int, Tensor], **options: object) -> list[Arrangement]:
    shapes = {rank: tuple(part.shape) for rank, part in parts.items()}
    return arrangements(shapes, tuple(WHOLE.shape), **options)  # type: ignore[arg-type]


def plan_of(given: Evidence) -> tuple[tuple[int, ...], ...]:
    metas = {rank: tensor.meta for rank, tensor in given.tensors.items()}
    return place(metas, shape=WHOLE.shape, evidence=given).copies


TOP, BOTTOM = WHOLE[:2], WHOLE[2:]
BLOCKED = {0: TOP, 1: TOP, 2: BOTTOM, 3: BOTTOM}
STRIDED = {0: TOP, 1: BOTTOM, 2: TOP, 3: BOTTOM}


def test_shards_of_uneven_sizes_have_one_way() -> None:
    (way,) = ways({0: WHOLE[:1], 1: WHOLE[1:1], 2: WHOLE[1:]})
    assert [part.box[0] for part in way.plan.parts((0, 1, 2))] == [(0, 1), (1, 4)]


@pytest.mark.parametrize(
    ("parts", "copies"),
    [(BLOCKED, ((0, 1), (2, 3))), (STRIDED, ((0, 2), (1, 3)))],
    ids=["beside each other", "half the ranks apart"],
)
def test_copies_that_are_alike_tell_where_they_lie(
    parts: dict[int, Tensor], copies: tuple[tuple[int, ...], ...]
) -> None:
    assert plan_of(evidence(parts, ref=None)) == copies


@pytest.mark.parametrize("flipped", [False, True], ids=["rows first", "columns first"])
def test_values_tell_which_axis_splits_which_dim(flipped: bool) -> None:
    quarters = [half.chunk(2, 1) for half in (TOP, BOTTOM)]
    parts = {2 * i + j: quarters[j][i] if flipped else quarters[i][j] for i in range(2) for j in range(2)}
    noisy = {rank: part + 0.01 * torch.randn(part.shape) for rank, part in parts.items()}
    given = evidence(noisy)
    metas = {rank: tensor.meta for rank, tensor in given.tensors.items()}
    boxes = {part.rank: part.box for part in place(metas, shape=WHOLE.shape, evidence=given).parts(range(4))}
    for rank, box in boxes.items():
        assert torch.equal(WHOLE[slice(*box[0]), slice(*box[1])], parts[rank])


def test_a_copy_of_the_wrong_shard_is_decided_by_the_same_tensor_of_other_layers() -> None:
    wrong = BLOCKED | {1: BOTTOM}
    habits = Habits()
    with pytest.raises(LayoutError, match="may be split in several ways"):
        plan_of(evidence(wrong, habits=habits))
    plan_of(evidence(BLOCKED, habits=habits))
    assert plan_of(evidence(wrong, habits=habits)) == ((0, 1), (2, 3))


def test_copies_elsewhere_decide_where_no_other_layer_does() -> None:
    habits = Habits()
    plan_of(evidence(STRIDED, habits=habits))
    given = evidence(BLOCKED | {1: BOTTOM}, habits=habits)
    other = Evidence(tensors=given.tensors, ref=given.ref, role="layers.*.v_proj.weight", habits=habits)
    assert plan_of(other) == ((0, 2), (1, 3))


def test_what_nothing_tells_apart_asks_for_a_line_and_prints_it() -> None:
    half = torch.zeros(2, 6)
    noise = {rank: half + rank for rank in range(4)}
    with pytest.raises(LayoutError) as caught:
        plan_of(evidence(noise, ref=None))
    assert 'declare "d0[axis1] d1" with mesh = {"axis0": 2, "axis1": 2} or "d0[tp/2] d1"' in str(caught.value)


def test_the_line_that_is_asked_for_says_of_which_side_it_is() -> None:
    noise = {rank: torch.zeros(2, 6) + rank for rank in range(4)}
    with pytest.raises(LayoutError, match=r'or "weight=d0\[tp/2\] d1"'):
        plan_of(replace(evidence(noise, ref=None), side="weight"))


def test_parts_that_are_equal_need_no_decision() -> None:
    zeros = torch.zeros(4, 6)
    parts = dict.fromkeys(range(4), zeros[:2])
    assert choose(ways(parts), evidence(parts, ref=zeros)) is not None


def test_parts_that_are_equal_are_no_evidence_for_other_tensors() -> None:
    habits = Habits()
    zeros = dict.fromkeys(range(4), torch.zeros(2, 6))
    choose(ways(zeros), evidence(zeros, ref=torch.zeros(4, 6), habits=habits))
    assert not habits.roles
    plan_of(evidence(STRIDED, habits=habits))
    assert choose(ways(zeros), evidence(zeros, ref=torch.zeros(4, 6), habits=habits)) == habits.roles[ROLE]


def test_parts_in_a_format_that_torch_does_not_compare_are_told_apart() -> None:
    ref = WHOLE.to(torch.float8_e4m3fn)
    quarters = [half.chunk(2, 1) for half in ref.chunk(2)]
    parts = {2 * i + j: quarters[i][j] for i in range(2) for j in range(2)}
    chosen = choose(ways(parts), evidence(parts, ref=ref))
    assert chosen is not None
    assert chosen.splits == (0, 1)


def test_a_known_mesh_leaves_its_own_ways_alone() -> None:
    assert [way.sizes for way in ways(BLOCKED, mesh=(2, 2))] == [(2, 2), (2, 2)]
    assert ways({rank: WHOLE[rank : rank + 1] for rank in range(4)}, mesh=(2, 2)) == []


def test_halves_side_by_side_are_split_one_by_one_where_the_values_are() -> None:
    gate, up = WHOLE.chunk(2)
    parts = {rank: torch.cat([gate[rank : rank + 1], up[rank : rank + 1]]) for rank in range(2)}
    found = ways(parts, name="experts.gate_up_proj")
    assert [way.fused for way in found] == [None, 0]
    chosen = choose(found, evidence(parts))
    assert chosen is not None
    assert chosen.fused == 0
    assert layout_line(chosen) == '"(gate|up)[tp] d1"'


def test_the_numbers_of_layers_and_experts_are_no_part_of_a_role() -> None:
    assert role_of("model.layers.12.mlp.experts.3.w1.weight") == "model.layers.*.mlp.experts.*.w1.weight"
