"""What differs between the conditions of two runs."""

import copy
from typing import Any

from validator.baselines.conditions import differences, is_another_machine

RUN: dict[str, Any] = {
    "hardware": [
        {"rank": 0, "host": "a", "cpu": "one", "devices": [{"type": "cuda", "name": "x", "uuid": "1"}]},
        {"rank": 1, "host": "a", "cpu": "one", "devices": [{"type": "cuda", "name": "x", "uuid": "2"}]},
    ],
    "software": {"torch": "2.12.0", "python": "3.11.7"},
    "parallelism": {"world_size": 2},
    "inputs": {"input_ids": {"dtype": "int64", "shape": [1, 4], "checksum": "c", "min": 0}},
    "seeds": {"torch": {"0": 0}},
    "determinism": {"threads": 2},
}


def changed(**parts: Any) -> dict[str, Any]:
    return copy.deepcopy(RUN) | parts


def test_equal_runs_differ_in_nothing() -> None:
    assert differences(RUN, changed()) == ()


def test_a_version_is_named_with_both_values() -> None:
    found = differences(RUN, changed(software={"torch": "2.13.0", "python": "3.11.7"}))
    assert [str(difference) for difference in found] == ["software torch 2.12.0, now 2.13.0"]
    assert not is_another_machine(found)


def test_another_specimen_of_the_same_machine_is_no_other_machine() -> None:
    now = changed()
    now["hardware"] = [
        dict(rank, host="b", devices=[dict(rank["devices"][0], uuid="9")]) for rank in now["hardware"]
    ]
    assert differences(RUN, now) == ()


def test_another_device_is_another_machine() -> None:
    now = changed()
    now["hardware"][1]["devices"][0]["name"] = "y"
    assert is_another_machine(differences(RUN, now))


def test_more_ranks_on_the_same_machine_are_a_difference_of_parallelism_alone() -> None:
    now = changed(parallelism={"world_size": 4})
    now["hardware"] += copy.deepcopy(now["hardware"])
    assert [difference.item for difference in differences(RUN, now)] == ["parallelism"]


def test_inputs_are_told_by_their_checksum() -> None:
    now = changed(inputs={"input_ids": {"dtype": "int64", "shape": [1, 4], "checksum": "d", "min": 3}})
    (found,) = differences(RUN, now)
    assert (found.item, found.name) == ("inputs", "input_ids")


def test_what_one_side_lacks_is_a_difference() -> None:
    (found,) = differences(RUN, changed(software={"torch": "2.12.0"}))
    assert str(found) == "software python 3.11.7, now none"
