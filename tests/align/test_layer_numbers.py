"""Layer numbers that each pipeline stage counts from 0."""

from collections.abc import Callable

import pytest
import torch

from tests.align.build import Recorder
from validator.align.layer_numbers import Numbered, number_layers
from validator.capturing.records import RankCapture
from validator.errors import MismatchError

HIDDEN = [torch.full((2, 3), float(i)) for i in range(9)]


def stage(
    rank: int, layers: range, *, numbers_from: int = 0, first: bool = False, last: bool = False
) -> RankCapture:
    """Record one rank. `layers` are the reference's: each takes HIDDEN[i] and returns HIDDEN[i + 1]."""
    recorder = Recorder(rank)
    with recorder.call("", {}):
        if first:
            recorder.leaf("embed", torch.arange(3), HIDDEN[0])
        for number, layer in enumerate(layers, numbers_from):
            with recorder.call(f"layers.{number}", {"x": HIDDEN[layer]}) as out:
                recorder.leaf(f"layers.{number}.mlp", HIDDEN[layer], HIDDEN[layer + 1])
                out[""] = HIDDEN[layer + 1]
            recorder.parameter(f"layers.{number}.mlp.weight", HIDDEN[layer])
        if last:
            recorder.leaf("norm", HIDDEN[layers.stop], HIDDEN[layers.stop])
    return recorder.capture()


def numbered(count: int, *cand: RankCapture, rename: Callable[[str], str | None] = lambda n: n) -> Numbered:
    return number_layers(cand=cand, ref=stage(0, range(count), first=True, last=True), rename=rename)


def layers_of(found: Numbered) -> list[list[str]]:
    return [[n for n in c.modules if n.startswith("layers.") and n.count(".") == 1] for c in found.captures]


def test_uneven_stages_go_on_where_the_one_before_ends() -> None:
    found = numbered(4, stage(0, range(3), first=True), stage(1, range(3, 4), last=True))
    assert layers_of(found) == [["layers.0", "layers.1", "layers.2"], ["layers.3"]]
    last = found.captures[1]
    assert {call.module for call in last.calls} == {"", "layers.3", "layers.3.mlp", "norm"}
    assert [(name, parameter.name) for name, parameter in last.parameters.items()] == [
        ("layers.3.mlp.weight", "layers.3.mlp.weight")
    ]
    assert [found.own("layers.3.mlp", rank) for rank in (0, 1)] == ["layers.3.mlp", "layers.0.mlp"]
    assert found.own("layers.3.mlp.weight", 1) == "layers.0.mlp.weight"


def test_numbers_that_are_the_references_stay() -> None:
    cand = (stage(0, range(2), first=True), stage(1, range(2, 4), numbers_from=2, last=True))
    assert numbered(4, *cand).captures == cand


def test_the_stage_that_embeds_is_the_first_whatever_its_rank() -> None:
    found = numbered(3, stage(0, range(2, 3), last=True), stage(1, range(2), first=True))
    assert layers_of(found) == [["layers.2"], ["layers.0", "layers.1"]]


def test_stages_in_between_follow_what_is_handed_over_and_else_their_ranks() -> None:
    ends = stage(0, range(1), first=True), stage(3, range(3, 4), last=True)
    linked = numbered(4, *ends, stage(1, range(2, 3)), stage(2, range(1, 2)))
    assert layers_of(linked) == [["layers.0"], ["layers.3"], ["layers.2"], ["layers.1"]]
    broken = numbered(4, *ends, stage(1, range(5, 6)), stage(2, range(7, 8)))
    assert layers_of(broken) == [["layers.0"], ["layers.3"], ["layers.1"], ["layers.2"]]


def test_ranks_that_exchange_something_inside_a_layer_are_of_one_stage() -> None:
    def tensor_parallel(rank: int, layer: int, group: tuple[int, int]) -> RankCapture:
        recorder = Recorder(rank)
        with recorder.call("", {}), recorder.call("layers.0", {"x": HIDDEN[layer]}) as out:
            with recorder.call("layers.0.mlp", {}):
                recorder.reduce(HIDDEN[0], HIDDEN[0], group)
            out[""] = HIDDEN[layer + 1]
        return recorder.capture()

    middle = [tensor_parallel(rank, 1, (1, 2)) for rank in (1, 2)]
    found = numbered(3, stage(0, range(1), first=True), *middle, stage(3, range(2, 3), last=True))
    assert layers_of(found) == [["layers.0"], ["layers.1"], ["layers.1"], ["layers.2"]]


def test_layers_that_do_not_add_up_are_an_error_with_all_counts() -> None:
    with pytest.raises(MismatchError, match=r"layers has 4 in .*, and 2 on rank 0, 1 on rank 1 make 3"):
        numbered(4, stage(0, range(2), first=True), stage(1, range(2, 3), last=True))


def test_a_layer_that_every_rank_lacks_is_left_to_the_checks() -> None:
    cand = [stage(rank, range(3), first=True, last=True) for rank in (0, 1)]
    assert numbered(4, *cand[:1]).captures == tuple(cand[:1])
    assert numbered(4, *cand).captures == tuple(cand)


def test_experts_are_no_stages() -> None:
    def experts(rank: int, numbers: range) -> RankCapture:
        recorder = Recorder(rank)
        with recorder.call("", {}):
            for number in numbers:
                recorder.leaf(f"experts.{number}", HIDDEN[0], HIDDEN[number + 1])
        return recorder.capture()

    cand = (experts(0, range(2)), experts(1, range(2)))
    assert number_layers(cand=cand, ref=experts(0, range(4)), rename=lambda n: n).captures == cand
