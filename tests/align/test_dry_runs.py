"""Runs that a pipeline's schedule makes to learn shapes."""

import torch

from tests.align.build import Recorder
from validator.align.dry_runs import leave_out_dry_runs
from validator.capturing.records import RankCapture

X = torch.arange(8.0).reshape(4, 2)


def run(*parts: torch.Tensor, rank: int = 0) -> RankCapture:
    recorder = Recorder(rank)
    for part in parts:
        with recorder.call("", {"x": part}):
            recorder.leaf("up", part, part)
            recorder.reduce(part, part, (0,))
    return recorder.capture()


def test_a_first_call_on_top_of_the_whole_batch_is_left_out_with_all_below_it() -> None:
    cand = [run(torch.empty(2, 2), X[:2], X[2:], rank=rank) for rank in range(2)]
    for found in leave_out_dry_runs(cand, ref=run(X), batch=4):
        assert [call.id for call in found.calls] == [2, 3, 4, 5]
        assert [collective.call for collective in found.collectives] == [2, 4]


def test_a_model_on_one_rank_that_runs_twice_makes_no_dry_run() -> None:
    cand = run(X + 1, X)
    assert leave_out_dry_runs([cand], ref=run(X), batch=4) == (cand,)


def test_calls_that_make_up_the_batch_all_stay() -> None:
    cand = tuple(run(X[:2], X[2:], rank=rank) for rank in range(2))
    assert leave_out_dry_runs(cand, ref=run(X), batch=4) == cand


def test_nothing_is_left_out_where_the_reference_is_called_several_times() -> None:
    cand = tuple(run(X[:2], X[:2], X[2:], rank=rank) for rank in range(2))
    assert leave_out_dry_runs(cand, ref=run(X, X), batch=4) == cand
