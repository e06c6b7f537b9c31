"""The layers in the caches of a pipeline's stages have the numbers that they have in the whole model."""

import torch

from validator.long_context.driving import Drive, LayerReading, Reading
from validator.long_context.schedules import Schedule
from validator.long_context.stages import placed

WHOLE = 4


def layer(held: int | None) -> LayerReading:
    return LayerReading(
        kind="DynamicLayer",
        seen=held,
        held=held,
        capacity=None,
        block=1,
        size_bytes=0,
        row_bytes=None,
        row_values=None,
        changed=None,
    )


def drive(*held: int | None) -> Drive:
    return Drive(
        schedule=Schedule(chunks=(8,), decoded=0),
        tokens=torch.empty(0),
        logits=torch.empty(0),
        readings=(Reading(fed=8, layers=tuple(map(layer, held)), memory=None),),
        hoarded=({}, {}),
        cache=None,
    )


def shown(*drives: Drive, layers: int = WHOLE) -> list[list[int]]:
    """Return the numbers of the layers of each rank."""
    found = placed(drives, layers=layers)
    return [[i for i, each in enumerate(one.readings[0].layers) if each is not None] for one in found]


def test_ranks_with_all_layers_are_left_as_they_are() -> None:
    drives = (drive(8, 8, 8, 8), drive(8, 8, 8, 8))
    assert placed(drives, layers=WHOLE) == drives


def test_stages_that_count_from_zero_stand_one_behind_the_other() -> None:
    assert shown(drive(8, 8, 8), drive(8)) == [[0, 1, 2], [3]]
    # Two ranks a stage, and a cache that was made for all layers.
    pairs = (drive(8, 8), drive(8, 8), drive(8, 8, 0, 0), drive(8, 8, 0, 0))
    assert shown(*pairs) == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_stages_that_keep_the_numbers_of_the_model_leave_out_those_of_others() -> None:
    assert shown(drive(8, 8), drive(0, 0, 8, 8)) == [[0, 1], [2, 3]]
    assert shown(drive(8, 8, 0, 0), drive(0, 0, 8, None)) == [[0, 1], [2, 3]]


def test_a_layer_that_is_empty_on_every_rank_is_kept_for_it_is_wrong() -> None:
    assert shown(drive(8, 0, 8, 8)) == [[0, 1, 2, 3]]
    assert shown(drive(8, 0, 8, 8), drive(8, 0, 8, 8)) == [[0, 1, 2, 3]] * 2


def test_caches_whose_layers_are_not_known_are_left_as_they_are() -> None:
    assert shown(drive(8, 8), drive(8, 8, 8)) == [[0, 1], [0, 1, 2]]
    assert shown(drive(8, 8), drive(8, 8), layers=0) == [[0, 1]] * 2
