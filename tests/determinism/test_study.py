"""Each level of determinism: what a healthy port answers, and which module and cause a faulty one's names."""

from pathlib import Path

import pytest

from tests.determinism.bare_ports import write_bare_port
from tests.determinism.ports import write_port
from validator.content import find_model
from validator.determinism.records import Answer
from validator.determinism.runs import Launcher
from validator.determinism.study import Study


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study(write_port(tmp_path_factory.mktemp("healthy")))


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


@pytest.mark.parametrize("fault", ["unwritten", "unwritten-left-over"])
def test_a_read_of_fresh_memory_is_named_with_its_reader(tmp_path: Path, fault: str) -> None:
    (problem,) = Study(write_port(tmp_path, fault)).memory().problems
    assert problem.module == "layers.0.attention.o"
    assert problem.cause == "aten.add.Tensor of what aten.empty_like.default made"


def test_the_maker_of_memory_that_is_read_through_a_view_is_named(tmp_path: Path) -> None:
    (problem,) = Study(write_port(tmp_path, "unwritten-view")).memory().problems
    assert problem.cause == "aten.add.Tensor of what aten.empty.memory_format made"


def test_a_port_that_fails_once_memory_is_filled_reads_some_of_it(tmp_path: Path) -> None:
    (problem,) = Study(write_port(tmp_path, "unwritten-index")).memory().problems
    assert "index out of range" in str(problem)
    assert "nothing was written to" in str(problem)


@pytest.mark.parametrize("fault", ["any-order", "any-order-and-nan"])
def test_a_port_of_other_bits_in_every_run_is_not_said_to_read_fresh_memory(
    tmp_path: Path, fault: str
) -> None:
    answer = Study(write_port(tmp_path, fault)).memory()
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
    tmp_path: Path, launcher: Launcher
) -> None:
    study = Study(write_port(tmp_path), dtype="float32", launcher=launcher)
    answer = study.card_counts(2)
    assert (answer.problems, answer.skipped, answer.blind) == ((), None, None)
    (note,) = answer.notes
    assert "first in the output of layers.0.attention.o" in note
    assert "all_reduce (sum over ranks 0, 1)" in note
    assert study.run_to_run(2).problems == ()


def test_a_kernel_for_fewer_columns_passes_if_rounding_explains_it(
    tmp_path: Path, launcher: Launcher
) -> None:
    study = Study(write_port(tmp_path, "split-when-narrow"), dtype="float32", launcher=launcher)
    answer = study.card_counts(2)
    assert (answer.problems, answer.skipped, answer.blind) == ((), None, None)
    first, column = answer.notes
    assert "first in the output of layers.0.attention.q" in first
    assert "layers.0.attention.q has no sum over ranks and gives other bits on 2 cards" in column


def test_a_kernel_for_fewer_columns_that_drops_bits_is_a_problem(tmp_path: Path, launcher: Launcher) -> None:
    (problem,) = Study(write_port(tmp_path, "coarse-when-narrow"), launcher=launcher).card_counts(2).problems
    assert problem.module == "layers.0.attention.q"
    assert "rounding does not explain it" in str(problem)


def test_stages_of_a_pipeline_give_the_bits_of_one_card_and_have_controls_although_no_rank_has_all_modules(
    tmp_path: Path, launcher: Launcher
) -> None:
    study = Study(write_port(tmp_path, "stages"), nproc=2, launcher=launcher)
    for answer in (study.run_to_run(), study.memory(), study.card_counts(2)):
        assert (answer.problems, answer.skipped, answer.blind) == ((), None, None)


def test_terms_of_later_ranks_that_lose_bits_are_a_problem_of_two_cards(
    tmp_path: Path, launcher: Launcher
) -> None:
    (problem,) = Study(write_port(tmp_path, "coarse-later-ranks"), launcher=launcher).card_counts(2).problems
    assert problem.module == "layers.1.down"
    assert problem.rank in (None, 1)
    assert "rounding does not explain it" in str(problem)


def test_the_rank_whose_term_is_another_each_time_is_named(tmp_path: Path, launcher: Launcher) -> None:
    study = Study(write_port(tmp_path, "arrival-on-rank-1"), nproc=2, launcher=launcher)
    (problem,) = study.run_to_run().problems
    assert (problem.module, problem.rank) == ("layers.1.down", 1)


@pytest.mark.parametrize("level", ["run_to_run", "memory", "batching", "chunking"])
def test_a_healthy_port_on_two_cards_gives_the_same_bits(on_two: Study, level: str) -> None:
    answer: Answer = getattr(on_two, level)()
    assert (answer.problems, answer.skipped, answer.blind) == ((), None, None)


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory, launcher: Launcher) -> Study:
    return Study(write_port(tmp_path_factory.mktemp("two")), nproc=2, launcher=launcher)


def test_the_rank_that_reads_fresh_memory_is_named_although_its_sum_brings_nan_to_all(
    tmp_path: Path, launcher: Launcher
) -> None:
    study = Study(write_port(tmp_path, "unwritten-on-rank-1"), nproc=2, launcher=launcher)
    (problem,) = study.memory().problems
    assert (problem.module, problem.rank) == ("layers.0.attention.o", 1)
    assert problem.cause == "aten.add.Tensor of what aten.empty_like.default made"


def test_what_ranks_have_in_memory_that_a_broadcast_writes_to_is_no_difference(
    tmp_path: Path, launcher: Launcher
) -> None:
    study = Study(write_port(tmp_path, "broadcast"), nproc=2, launcher=launcher)
    answer = study.run_to_run()
    assert (answer.problems, answer.skipped, answer.blind) == ((), None, None)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tiny-dense", "tiny-moe"])
def test_a_checkpoint_that_is_sharded_by_its_own_plan_is_studied_as_a_port_is(
    launcher: Launcher, model: str
) -> None:
    study = Study(str(find_model(model)), nproc=2, tp=2, dtype="bfloat16", launcher=launcher)
    levels = (study.run_to_run, study.memory, study.batching, study.chunking)
    for answer in (*(level() for level in levels), study.card_counts(2)):
        assert (answer.problems, answer.blind) == ((), None)
    assert study.card_counts(2).skipped is None


@pytest.mark.parametrize("port", ["packed", "packed, each module called twice"])
def test_a_port_without_a_dim_of_sequences_and_with_shared_modules_has_controls_too(
    tmp_path: Path, port: str
) -> None:
    study = Study(write_bare_port(tmp_path, port))
    for answer in (study.run_to_run(), study.memory(), study.batching()):
        assert (answer.problems, answer.skipped, answer.blind) == ((), None, None)


def test_a_port_that_is_one_module_has_controls_too(tmp_path: Path) -> None:
    study = Study(write_bare_port(tmp_path, "one module"))
    for answer in (study.run_to_run(), study.memory(), study.batching()):
        assert (answer.problems, answer.skipped, answer.blind) == ((), None, None)


def test_a_port_without_a_place_for_controls_is_told_so(tmp_path: Path) -> None:
    study = Study(write_bare_port(tmp_path, "table"))
    for answer in (study.run_to_run(), study.memory()):
        assert answer.problems == ()
        assert answer.blind is not None
        assert "no module of the candidate has a matrix" in answer.blind
