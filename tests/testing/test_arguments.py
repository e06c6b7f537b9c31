"""Options of the fixture's methods are read like settings; `test_validation` has their messages."""

from pathlib import Path

import pytest

from validator.baselines.recording import RunOptions
from validator.errors import UsageError
from validator.target_check import check_target
from validator.testing.arguments import read_arguments


def test_a_number_may_be_a_text_and_a_glob_stand_alone_and_none_says_nothing() -> None:
    given = {"nproc": "2", "include": "up", "exclude": None, "timeout_s": 5, "profiles": True}
    assert read_arguments("check", check_target, given, besides=("inputs",)) == {
        "nproc": 2,
        "include": ("up",),
        "timeout_s": 5.0,
        "profiles": True,
    }


def test_options_are_those_of_the_record_that_they_fill(tmp_path: Path) -> None:
    assert read_arguments("baseline", RunOptions, {"tp": "2", "nproc": None}) == {"tp": 2}
    with pytest.raises(UsageError, match=r"baseline\(\) has no option 'keep'\. There are nproc, "):
        read_arguments("baseline", RunOptions, {"keep": tmp_path})


def test_what_is_no_option_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"check\(\) has no option 'inputs'"):
        read_arguments("check", check_target, {"inputs": {}}, besides=("inputs",))
