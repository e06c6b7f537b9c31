"""What a candidate can't do is told with its reason, and the rest is judged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.determinism.ports import write_port
from validator.determinism.records import Answer
from validator.determinism.runs import Launcher, NotBuiltError
from validator.determinism.study import Study
from validator.errors import TargetError, UsageError


def is_healthy(answer: Answer) -> bool:
    return (answer.problems, answer.skipped, answer.blind) == ((), None, None)


def test_a_candidate_of_one_batch_size_is_judged_at_every_position_of_it(tmp_path: Path) -> None:
    study = Study(write_port(tmp_path, "fixed-batch"))
    assert all(is_healthy(answer) for answer in (study.run_to_run(), study.memory(), study.batching()))
    answer = study.batching()
    assert answer.figures["bits at another position in it"] == "the same"
    assert answer.figures["bits alone than in a batch of 3"] == "not applicable"
    (note,) = answer.notes
    assert note.startswith("not applicable: a sequence alone than in a batch of 3: the candidate fails")
    assert "compiled for a batch of 3, not of 1" in note


def test_a_candidate_of_one_length_is_judged_but_in_chunks(tmp_path: Path) -> None:
    study = Study(write_port(tmp_path, "fixed-length"))
    assert all(is_healthy(answer) for answer in (study.run_to_run(), study.memory(), study.batching()))
    answer = study.chunking()
    assert answer.compared == 0
    assert answer.skipped is not None
    assert "a chunk of 6 tokens" in answer.skipped
    assert "compiled for 12 tokens, not for 6" in answer.skipped


def test_a_level_of_which_no_run_can_be_made_is_not_applicable(tmp_path: Path) -> None:
    study = Study(write_port(tmp_path, "fixed-shape"))
    assert all(is_healthy(answer) for answer in (study.run_to_run(), study.memory()))
    for answer in (study.batching(), study.chunking()):
        assert (answer.compared, answer.problems) == (0, ())
        assert answer.skipped is not None
        assert "compiled for [1, 12]" in answer.skipped


@pytest.mark.slow
def test_a_candidate_of_one_batch_size_on_two_cards_is_judged_at_every_position(
    tmp_path: Path, launcher: Launcher
) -> None:
    study = Study(write_port(tmp_path, "fixed-batch"), nproc=2, launcher=launcher)
    assert study.batching().figures["bits at another position in it"] == "the same"
    assert is_healthy(study.memory())


def test_a_candidate_that_fails_on_the_inputs_that_it_took_before_has_a_problem(tmp_path: Path) -> None:
    (problem,) = Study(write_port(tmp_path, "spent")).run_to_run().problems
    assert "fails the next time on the same inputs" in str(problem)
    assert "the cache is full" in str(problem)


def test_a_candidate_that_can_be_built_once_is_judged_as_far_as_one_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORT_BUILT", "0")
    study = Study(write_port(tmp_path, "built-once"))
    again = study.run_to_run()
    assert is_healthy(again)
    (note,) = again.notes
    assert "can't be built again here: candidate() of" in note
    assert "there is an engine already" in note
    assert all(is_healthy(answer) for answer in (study.batching(), study.chunking()))
    skipped = study.memory().skipped
    assert skipped is not None
    assert "there is an engine already" in skipped


def test_a_number_of_cards_that_the_candidate_is_not_built_on_is_not_applicable(
    tmp_path: Path, launcher: Launcher
) -> None:
    study = Study(write_port(tmp_path, "one-card"), launcher=launcher)
    assert is_healthy(study.run_to_run())
    for answer in (study.run_to_run(2), study.card_counts(2)):
        assert answer.compared == 0
        assert answer.skipped is not None
        assert answer.skipped.startswith("no candidate on 2 cards: ")
        assert "1 heads can't be cut for 2 ranks" in answer.skipped


def test_cards_that_this_machine_lacks_are_not_applicable(tmp_path: Path, launcher: Launcher) -> None:
    def start(function: Callable[..., None], job: Any, nproc: int) -> None:
        if nproc > 1:
            raise UsageError(f"--nproc {nproc} needs {nproc} such devices; this machine has 1")
        launcher(function, job, nproc)

    study = Study(write_port(tmp_path), launcher=start)
    assert study.card_counts(2).skipped == (
        "no candidate on 2 cards: --nproc 2 needs 2 such devices; this machine has 1"
    )
    with pytest.raises(NotBuiltError, match="this machine has 1"):
        Study(write_port(tmp_path), nproc=2, launcher=start).run_to_run()


def test_a_candidate_that_is_built_on_two_cards_and_fails_there_is_an_error_of_every_level(
    tmp_path: Path, launcher: Launcher
) -> None:
    study = Study(write_port(tmp_path, "fails-on-two-cards"), launcher=launcher)
    for level in (study.run_to_run, study.card_counts):
        with pytest.raises(TargetError, match="no such kernel"):
            level(2)


def test_ranks_that_each_run_the_whole_model_say_nothing_of_card_counts(
    tmp_path: Path, launcher: Launcher
) -> None:
    answer = Study(write_port(tmp_path, "unsharded"), launcher=launcher).card_counts(2)
    assert (answer.compared, answer.problems) == (0, ())
    assert answer.skipped is not None
    assert "each of 2 ranks runs the whole model by itself" in answer.skipped


def test_a_rank_of_these_that_is_wrong_is_a_problem_all_the_same(tmp_path: Path, launcher: Launcher) -> None:
    (problem,) = Study(write_port(tmp_path, "unsharded-and-off"), launcher=launcher).card_counts(2).problems
    assert problem.module == "layers.1.down"
