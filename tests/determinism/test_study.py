"""Each level of determinism: what a healthy port answers, and which module and cause a faulty one's names."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.determinism.ports import write_port
from tests.ranks import RankPool
from validator.determinism.records import Answer
from validator.determinism.study import Study


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study(write_port(tmp_path_factory.mktemp("healthy")))


@pytest.fixture
def launcher(rank_pool: Callable[[int], RankPool]) -> Callable[..., None]:
    def start(function: Callable[..., None], job: Any, nproc: int) -> None:
        if nproc == 1:
            function(0, 1, job)
        else:
            rank_pool(nproc).run(function, job)

    return start


@pytest.mark.parametrize("level", ["run_to_run", "memory", "batching", "chunking"])
def test_a_healthy_port_gives_the_same_bits_and_the_control_is_seen(healthy: Study, level: str) -> None:
    answer: Answer = getattr(healthy, level)()
    assert (answer.problems, answer.skipped, answer.blind) == ((), None, None)
    assert answer.compared > 0


@pytest.mark.parametrize(
    ("fault", "dtype", "operator"),
    [("any-order", None, "aten.add"), ("arrival", "float32", "aten.index_add")],
    ids=["partial sums in any order", "additions where they arrive"],
)
def test_a_sum_in_another_order_each_time_is_named(
    tmp_path: Path, fault: str, dtype: str | None, operator: str
) -> None:
    (problem,) = Study(write_port(tmp_path, fault), dtype=dtype).run_to_run().problems
    assert problem.module == "layers.1.down"
    assert problem.cause.startswith(operator)
    assert "layers.1.down" in str(problem)
    assert operator in str(problem)


def test_a_kernel_for_small_batches_is_named_with_its_operator_and_passes_if_rounding_explains_it(
    tmp_path: Path,
) -> None:
    answer = Study(write_port(tmp_path, "split-when-alone"), dtype="float32").batching()
    assert answer.problems == ()
    assert answer.blind is None
    (note,) = answer.notes
    assert "alone than in a batch of 3, and rounding explains it" in note
    assert "the output of layers.0.up" in note
    assert "aten.mm" in note
    assert answer.figures["bits alone than in a batch of 3"] == "others, explained by rounding"


def test_a_kernel_for_small_batches_that_drops_bits_is_a_problem(tmp_path: Path) -> None:
    (problem,) = Study(write_port(tmp_path, "coarse-when-alone")).batching().problems
    assert problem.module == "layers.0.up"
    assert "rounding does not explain it" in str(problem)
    assert "aten.mm" in problem.cause


def test_a_sequence_mixed_with_its_neighbour_is_a_problem_of_the_module_that_mixed_it(tmp_path: Path) -> None:
    problems = Study(write_port(tmp_path, "neighbour")).batching().problems
    assert {problem.module for problem in problems} == {"layers.1.attention.v"}
    assert {"alone" in str(p) or "another position" in str(p) for p in problems} == {True}


def test_positions_that_start_again_in_each_chunk_are_a_problem(tmp_path: Path) -> None:
    (problem,) = Study(write_port(tmp_path, "restarted-positions")).chunking().problems
    assert problem.module == "places"
    assert "in chunks of 6, 2, 4" in str(problem)


def test_a_read_of_fresh_memory_is_named_with_its_reader(tmp_path: Path) -> None:
    (problem,) = Study(write_port(tmp_path, "unwritten")).memory().problems
    assert problem.module == "layers.0.attention.o"
    assert problem.cause == "aten.add.Tensor of what aten.empty_like.default made"


def test_a_port_that_fails_once_memory_is_filled_reads_some_of_it(tmp_path: Path) -> None:
    (problem,) = Study(write_port(tmp_path, "unwritten-index")).memory().problems
    assert "index out of range" in str(problem)
    assert "nothing was written to" in str(problem)


def test_a_port_of_other_bits_in_every_run_is_not_said_to_read_fresh_memory(tmp_path: Path) -> None:
    answer = Study(write_port(tmp_path, "any-order")).memory()
    assert answer.problems == ()
    assert answer.blind is not None
    assert "other bits in every run" in answer.blind


def test_memory_that_is_handed_over_to_be_written_to_is_no_problem(tmp_path: Path) -> None:
    answer = Study(write_port(tmp_path, "written-later")).memory()
    assert (answer.problems, answer.blind) == ((), None)


def test_a_target_of_one_sequence_gets_neighbours_that_differ_from_it(tmp_path: Path) -> None:
    answer = Study(write_port(tmp_path, "one-sequence")).batching()
    assert (answer.problems, answer.skipped, answer.blind) == ((), None, None)


def test_a_run_of_the_targets_own_is_not_cut_into_chunks(tmp_path: Path) -> None:
    answer = Study(write_port(tmp_path, "own-run")).chunking()
    assert answer.skipped is not None
    assert "run() of its own" in answer.skipped


def test_on_two_cards_a_healthy_port_differs_in_sums_over_cards_alone(
    tmp_path: Path, launcher: Callable[..., None]
) -> None:
    study = Study(write_port(tmp_path), dtype="float32", launcher=launcher)
    answer = study.card_counts(2)
    assert (answer.problems, answer.blind) == ((), None)
    (note,) = answer.notes
    assert "first in the output of layers.0.attention.o" in note
    assert "all_reduce (sum over ranks 0, 1)" in note
    assert study.run_to_run(2).problems == ()


def test_terms_of_later_ranks_that_lose_bits_are_a_problem_of_two_cards(
    tmp_path: Path, launcher: Callable[..., None]
) -> None:
    (problem,) = Study(write_port(tmp_path, "coarse-later-ranks"), launcher=launcher).card_counts(2).problems
    assert problem.module == "layers.1.down"
    assert problem.rank in (None, 1)
    assert "rounding does not explain it" in str(problem)


def test_the_rank_whose_term_is_another_each_time_is_named(
    tmp_path: Path, launcher: Callable[..., None]
) -> None:
    study = Study(write_port(tmp_path, "arrival-on-rank-1"), nproc=2, launcher=launcher)
    (problem,) = study.run_to_run().problems
    assert (problem.module, problem.rank) == ("layers.1.down", 1)


@pytest.mark.parametrize("level", ["run_to_run", "memory", "batching", "chunking"])
def test_a_healthy_port_on_two_cards_gives_the_same_bits(on_two: Study, level: str) -> None:
    answer: Answer = getattr(on_two, level)()
    assert (answer.problems, answer.skipped, answer.blind) == ((), None, None)


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory, rank_pool: Callable[[int], RankPool]) -> Study:
    def start(function: Callable[..., None], job: Any, nproc: int) -> None:
        rank_pool(nproc).run(function, job)

    return Study(write_port(tmp_path_factory.mktemp("two")), nproc=2, launcher=start)
