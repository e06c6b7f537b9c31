"""Operators run once more: on copies, so that no run sees what another changed."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.checks.inside.build import Norm, captured
from validator.checks.arithmetic import Arithmetic
from validator.checks.edges import EdgeJudge
from validator.checks.inside import reruns
from validator.checks.inside.reruns import NotRerunError, rerun
from validator.checks.module_code import Code
from validator.checks.operator_log import OperatorLog
from validator.checks.roundings import Rounding

TABLE = torch.arange(12, dtype=torch.float32).reshape(6, 2) * 1.5


def logged(code: Callable[[Tensor, Tensor], Tensor], places: Tensor) -> tuple[OperatorLog, Tensor]:
    """Run code on the table and on integers, and return its log and what it made."""
    log = OperatorLog(lift=lambda tensor: (tensor.to(torch.float64), tensor.dtype))
    arithmetic = Arithmetic(Rounding.none(), log=log)
    table = arithmetic.shadow(TABLE.clone())
    with arithmetic:
        made = code(table, places)
    log.mark("made", made)
    return log, made


def again(log: OperatorLog, folder: Path, times: int) -> list[Tensor]:
    """Run the operators of a log again."""
    slot, end = log.marks["made"]
    made: list[Tensor] = []

    def look(code: Code, judge: EdgeJudge) -> None:
        if code.call.module == "inner":
            for _ in range(times):
                found = rerun(
                    log,
                    code=code,
                    slot=slot,
                    positions=log.behind(slot, end),
                    starts={},
                    cand=torch.zeros(3, 2, dtype=torch.bfloat16),
                    runs=2,
                )
                made.append(found.edges[0].exact)

    captured(Norm, folder).each(look)
    return made


def test_integers_that_the_code_changes_through_a_view_are_the_same_in_every_rerun(tmp_path: Path) -> None:
    places = torch.tensor([0, 1, 2])

    def code(table: Tensor, places: Tensor) -> Tensor:
        places[:2].add_(1)
        return table[places] * 2

    log, _ = logged(code, places)
    after = places.clone()
    for made in again(log, tmp_path, 2):
        assert torch.equal(made, TABLE[torch.tensor([1, 2, 2])].to(torch.float64) * 2)
    assert torch.equal(places, after)


def test_what_an_operator_cannot_compute_is_told_from_a_bug_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = logged(lambda table, places: table[places] * 2, torch.tensor([0, 1, 2]))
    number = next(slot for slot, given in log.given.items() if not given.tensor.is_floating_point())
    given = log.given[number]
    log.given[number] = type(given)(tensor=given.tensor + 100, dtype=None)  # beyond the table
    with pytest.raises(NotRerunError, match="index"):
        again(log, tmp_path, 1)
    log.given[number] = given

    def broken(*args: object) -> None:
        raise AttributeError("a bug")

    monkeypatch.setattr(reruns, "listed", broken)
    with pytest.raises(AttributeError, match="a bug"):
        again(log, tmp_path, 1)
