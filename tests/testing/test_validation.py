"""What the fixture does, without a pytest around it."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.small_port import write_port
from validator.errors import LaunchError, TargetError, UsageError
from validator.testing.failures import PortFailure
from validator.testing.records import Ending, Record
from validator.testing.settings import Settings
from validator.testing.validation import Validation

FAULTY = """
class Faulty(Net):
    def forward(self, input_ids):
        return self.head(torch.relu(self.up(self.embed(input_ids))) * 1.02)


def candidate():
    return Faulty().to(torch.bfloat16)
"""


def validation(folder: Path, nodeid: str = "tests/test_port.py::test_layers", **settings: Any) -> Validation:
    return Validation(
        settings=Settings(**settings), folder=folder, record=Record(asked=""), nodeid=nodeid, shared={}
    )


def record(of: Validation) -> Record:
    return of._record


def test_a_healthy_port_passes_and_is_remembered(tmp_path: Path) -> None:
    port = validation(tmp_path, target=str(write_port(tmp_path)), reports=tmp_path / "reports")
    assert port.check().exit_code == 0
    assert port.check(inputs={"input_ids": torch.arange(8).view(1, 8)}).exit_code == 0
    first, second = record(port).checks
    assert (first.verdict, first.module) == ("aligned", None)
    assert first.report is not None
    assert re.fullmatch(r"tests-test-port-test-layers-[0-9a-f]{8}\.json", Path(first.report).name)
    assert second.report == first.report.replace(".json", "-2.json")
    assert '"verdict": "aligned"' in Path(first.report).read_text()


def test_a_faulty_port_fails_with_the_finding_on_one_screen(tmp_path: Path) -> None:
    port = validation(tmp_path, target=str(write_port(tmp_path, FAULTY)))
    with pytest.raises(PortFailure) as raised:
        port.check()
    failure = raised.value.failure
    assert failure.ending is Ending.FAILED
    assert failure.module == ""
    assert failure.message.startswith("divergent: first at (the model itself), into head")
    lines = str(raised.value).splitlines()
    assert lines[0] == failure.message
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 80


def test_too_little_to_call_it_aligned_is_undecided(tmp_path: Path) -> None:
    port = validation(tmp_path, target=str(write_port(tmp_path)))
    with pytest.raises(PortFailure) as raised:
        port.check(include=("embed",))
    assert raised.value.failure.ending is Ending.INCONCLUSIVE
    assert "\n  why " in str(raised.value)


def test_inputs_of_a_test_take_the_place_of_the_targets_own(tmp_path: Path) -> None:
    changes = "def inputs():\n    raise RuntimeError('not asked for')\n"
    port = validation(tmp_path, target=str(write_port(tmp_path, changes)), nproc=2)
    result = port.check(inputs={"input_ids": torch.arange(6).view(2, 3)}, recipe="fused")
    assert result.outcome.run["candidate"]["inputs"]["input_ids"]["shape"] == [2, 3]
    assert "command" not in result.outcome.run


def test_inputs_that_can_not_be_sent_to_ranks_are_named(tmp_path: Path) -> None:
    port = validation(tmp_path, target=str(write_port(tmp_path)))
    with pytest.raises(UsageError, match=r"can't be sent to the ranks: input_ids Tensor, cache Record\."):
        port.check(inputs={"input_ids": torch.zeros(1, 2, dtype=torch.long), "cache": Record(asked="")})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nprocs": 2}, r"check\(\) has no option 'nprocs'\. Do you mean nproc\? There are nproc, device, "),
        ({"source": "port.py"}, r"check\(\) has no option 'source'"),
        ({"nproc": "two"}, r"nproc of check\(\) is 'two'; it must be a whole number, 1 or more"),
        ({"dtype": torch.bfloat16}, r"dtype of check\(\) is torch.bfloat16; it must be a text"),
        ({"timeout_s": "5"}, r"timeout_s of check\(\) is '5'; it must be a number of seconds above 0"),
        ({"include": 3}, r"include of check\(\) is 3; it must be globs"),
        ({"level": 3}, r"level of check\(\) is 3; it must be a text"),
        ({"inputs": [1]}, r"inputs of check\(\) is list; it must be a dict"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_option_that_is_not_one_or_not_legal_is_named(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        validation(tmp_path, target=str(write_port(tmp_path))).check(**options)


def test_options_of_a_baseline_are_those_of_its_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"baseline\(\) has no option 'dtypes'\. Do you mean dtype\?"):
        validation(tmp_path, target="port.py").baseline("small", dtypes="bfloat16")


def test_without_a_target_the_message_says_how_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no target is named.*--validator-target.*validator init"):
        validation(tmp_path).check()


def test_a_missing_target_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="no such target"):
        validation(tmp_path, target=str(tmp_path / "nothing.py")).check()


def test_two_modules_are_judged_like_a_port(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ref = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    cand = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    cand.load_state_dict(ref.state_dict())
    inputs = {"input": torch.randn(16, 64)}
    port = validation(tmp_path)
    port.assert_aligned(ref=ref, cand=cand, inputs=inputs)
    with torch.no_grad():
        cand[1].weight[3, 5] *= 1.5
    with pytest.raises(PortFailure, match=r"divergent: first at 1\.weight"):
        port.assert_aligned(ref=ref, cand=cand, inputs=inputs)


def test_two_tensors_are_judged_by_the_rounding_of_the_candidates_format(tmp_path: Path) -> None:
    ref = torch.linspace(1, 2, 100, dtype=torch.float64)
    port = validation(tmp_path)
    port.assert_aligned(ref=ref, cand=ref.to(torch.bfloat16))
    with pytest.raises(PortFailure, match="1 of 100 elements"):
        port.assert_aligned(ref=ref, cand=(ref + (torch.arange(100) == 7) * 0.01).to(torch.bfloat16))
    assert record(port).compared == 3  # the failure counts as well


@pytest.mark.parametrize(
    ("ref", "cand", "options", "message"),
    [
        (torch.ones(1), nn.Identity(), {}, "ref is Tensor and cand is Identity"),
        (torch.ones(1), torch.ones(1), {"recipe": "fused"}, "takes no inputs= and no recipe="),
    ],
    ids=["kinds", "recipe"],
)
def test_what_can_not_be_compared_is_refused(
    tmp_path: Path, ref: Any, cand: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        validation(tmp_path).assert_aligned(ref=ref, cand=cand, **options)


def test_a_failure_shows_whom_it_blames_and_its_evidence(tmp_path: Path) -> None:
    port = validation(tmp_path)
    port.require(True, "holds")
    with pytest.raises(PortFailure) as raised:
        port.require(
            False,
            "The cache grows by 12 bytes a token.",
            module="model.layers.1",
            rank=1,
            evidence={"slope": torch.tensor(12.0), "steps": 100},
        )
    assert str(raised.value) == (
        "The cache grows by 12 bytes a token.\n"
        "  module  model.layers.1\n"
        "  rank    1\n"
        "  slope   12\n"
        "  steps   100"
    )


def test_figures_become_plain_values(tmp_path: Path) -> None:
    port = validation(tmp_path)
    for value in (torch.tensor(0.5), torch.tensor(3), True, "text", 7):
        port.figure("x", value, limit=torch.tensor(2.0))
    values = [figure.value for figure in record(port).figures]
    assert values == [0.5, 3.0, "True", "text", 7]
    assert {type(value) for value in values} == {float, str, int}
    assert {type(figure.limit) for figure in record(port).figures} == {float}


def test_what_several_tests_share_is_made_once_and_fails_for_all(tmp_path: Path) -> None:
    made = []

    def make(number: int) -> int:
        made.append(number)
        if number < 0:
            raise TargetError("no such target")
        return number * 2

    port = validation(tmp_path)
    assert [port.shared(make, 2), port.shared(make, 2), port.shared(make, 3)] == [4, 4, 6]
    for _ in range(2):
        with pytest.raises(TargetError):
            port.shared(make, -1)
    assert made == [2, 3, -1]


def rank_and_pid(rank: int, world_size: int, text: str) -> tuple[int, int, str, int]:
    return rank, world_size, text, os.getpid()


def failing(rank: int, world_size: int) -> None:
    raise ValueError(f"no cards left on {rank}")


def test_a_single_rank_is_this_process(tmp_path: Path) -> None:
    assert validation(tmp_path).on_ranks(rank_and_pid, "a") == [(0, 1, "a", os.getpid())]


def test_ranks_return_what_they_found_in_their_order(tmp_path: Path) -> None:
    found = validation(tmp_path, nproc=2).on_ranks(rank_and_pid, "a")
    assert [answer[:3] for answer in found] == [(0, 2, "a"), (1, 2, "a")]
    assert len({os.getpid(), *(answer[3] for answer in found)}) == 3


def test_a_rank_that_fails_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="raised ValueError: no cards left on"):
        validation(tmp_path).on_ranks(failing, nproc=2)


def test_a_function_that_ranks_can_not_import_is_refused_at_once(tmp_path: Path) -> None:
    def inner(rank: int, world_size: int) -> None: ...

    with pytest.raises(UsageError, match="can't be sent to other processes"):
        validation(tmp_path).on_ranks(inner, nproc=2)
    rank_of_nowhere = type(failing)(failing.__code__, {})
    rank_of_nowhere.__module__ = "test_of_nowhere"
    with pytest.raises(UsageError, match="test_of_nowhere is not on their path"):
        validation(tmp_path).on_ranks(rank_of_nowhere, nproc=2)


def test_reports_of_parametrised_tests_have_names_of_their_own(tmp_path: Path) -> None:
    target = str(write_port(tmp_path))
    names = set()
    nodeids = ("t.py::test_a[x/../y]", "t.py::test_a[x-y]", f"t.py::test_{'long' * 60}")
    # The same words, of another file.
    for nodeid in (*nodeids, "a/b.py::test_c", "a-b.py::test_c", "a_b.py::test_c"):
        port = validation(tmp_path, nodeid, target=target, reports=tmp_path / "reports")
        names.add(port._write(_Result()))
    assert len(names) == 6
    assert all(Path(name).parent == tmp_path / "reports" for name in names)
    assert all(len(Path(name).name) < 120 for name in names)


def test_a_report_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "reports").touch()
    port = validation(tmp_path, reports=tmp_path / "reports")
    with pytest.raises(UsageError, match="can't be written"):
        port._write(_Result())


@pytest.mark.parametrize("faulty", [True, False], ids=["faulty", "healthy"])
def test_a_report_that_can_not_be_written_hides_no_divergence(tmp_path: Path, faulty: bool) -> None:
    (tmp_path / "reports").touch()
    target = str(write_port(tmp_path, FAULTY if faulty else ""))
    port = validation(tmp_path, target=target, reports=tmp_path / "reports")
    if not faulty:
        with pytest.raises(UsageError, match=r"the report .* can't be written"):
            port.check()
    else:
        with pytest.raises(PortFailure) as raised:
            port.check()
        assert raised.value.failure.ending is Ending.FAILED
        headline, beside = raised.value.failure.message.splitlines()
        assert headline.startswith("divergent: first at ")
        assert beside.startswith("report not written: the report '")
        assert str(raised.value).startswith(headline)
        assert "\nreport not written: the report" in str(raised.value)
    (checked,) = record(port).checks
    assert (checked.verdict, checked.report) == ("divergent" if faulty else "aligned", None)


class _Result:
    """Stands in for a result."""

    def to_json(self) -> dict[str, Any]:
        return {"schema": 1}
