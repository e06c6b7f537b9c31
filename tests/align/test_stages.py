"""Modules that several pipeline stages run."""

import torch

from tests.align.build import Recorder
from validator.align.stages import join_stages
from validator.capturing.records import RankCapture

HIDDEN = [torch.full((2, 3), float(i)) for i in range(5)]
POSITIONS = torch.arange(3)


def run(rank: int, layers: range, count: int = 2) -> RankCapture:
    """Record a rank with some of the layers of embed, layers, norm and head."""
    recorder = Recorder(rank)
    start, stop = HIDDEN[layers.start], HIDDEN[layers.stop]
    is_first, is_last = layers.start == 0, layers.stop == count
    with recorder.call("", {"x": POSITIONS if is_first else start}) as root:
        with recorder.call("body", {"x": POSITIONS if is_first else start}) as body:
            if is_first:
                recorder.leaf("body.embed", POSITIONS, start)
            recorder.leaf("body.rotary", {"x": start, "positions": POSITIONS}, HIDDEN[4])
            for layer in layers:
                recorder.leaf(f"body.layers.{layer}", HIDDEN[layer], HIDDEN[layer + 1])
            body[""] = stop
        if is_last:
            recorder.leaf("head", stop, stop)
        root[""] = stop
    return recorder.capture()


def joined(*cand: RankCapture, count: int = 2) -> list[dict[str, tuple[list[str], list[str]]]]:
    """Return the paths of inputs and outputs that are left of each rank's calls."""
    ref = run(0, range(count), count)
    found = join_stages(cand=cand, ref=ref, modules={name: name for name in ref.modules})
    return [{call.module: (list(call.inputs), list(call.outputs)) for call in c.calls} for c in found]


def test_the_first_stage_gives_the_inputs_and_the_last_the_outputs() -> None:
    first, last = joined(run(0, range(1)), run(1, range(1, 2)))
    assert (first[""], last[""]) == ((["x"], []), ([], [""]))
    assert (first["body"], last["body"]) == ((["x"], []), ([], [""]))


def test_a_stage_in_between_gives_neither() -> None:
    middle = joined(run(0, range(1), 3), run(1, range(1, 2), 3), run(2, range(2, 3), 3), count=3)[1]
    assert middle[""] == middle["body"] == ([], [])


def test_of_a_helper_that_every_stage_has_later_stages_give_positions_and_outputs() -> None:
    first, last = joined(run(0, range(1)), run(1, range(1, 2)))
    assert first["body.rotary"] == (["x", "positions"], [""])
    assert last["body.rotary"] == (["positions"], [""])


def test_layers_and_ranks_of_one_stage_keep_all() -> None:
    first, again, last = joined(run(0, range(1)), run(1, range(1)), run(2, range(1, 2)))
    assert first == again
    assert last["body.layers.1"] == last["head"] == (["input"], [""])


def test_ranks_that_run_all_layers_are_no_stages() -> None:
    whole = run(0, range(2))
    assert join_stages(cand=[whole], ref=whole, modules={name: name for name in whole.modules}) == (whole,)


def test_an_identity_that_stands_in_for_another_stages_module_is_left_out() -> None:
    def with_head(rank: int, layers: range, type_name: str) -> RankCapture:
        recorder = Recorder(rank)
        with recorder.call("", {"x": HIDDEN[layers.start]}) as root:
            for layer in layers:
                recorder.leaf(f"layers.{layer}", HIDDEN[layer], HIDDEN[layer + 1])
            recorder.leaf("head", HIDDEN[layers.stop], HIDDEN[layers.stop], type_name)
            root[""] = HIDDEN[layers.stop]
        return recorder.capture()

    linear, identity = (f"torch.nn.modules.linear.{name}" for name in ("Linear", "Identity"))
    ref = with_head(0, range(2), linear)
    cand = [with_head(0, range(1), identity), with_head(1, range(1, 2), linear)]
    found = join_stages(cand=cand, ref=ref, modules={name: name for name in ref.modules})
    assert [[call.module for call in c.calls] for c in found] == [["", "layers.0"], ["", "layers.1", "head"]]
    # Where every rank has one, it is what the candidate has instead.
    alike = [with_head(rank, range(2), identity) for rank in (0, 1)]
    assert join_stages(cand=alike, ref=ref, modules={n: n for n in ref.modules}) == tuple(alike)
