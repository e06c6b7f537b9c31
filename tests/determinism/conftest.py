"""Ranks for studies."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.ranks import JobError, RankPool
from validator.determinism.runs import Launcher
from validator.errors import ValidatorError


@pytest.fixture(scope="session")
def launcher(rank_pool: Callable[[int], RankPool]) -> Launcher:
    """Return what starts ranks: of the pool, and a single one in this process."""

    def start(function: Callable[..., None], job: Any, nproc: int) -> None:
        if nproc == 1:
            function(0, 1, job)
            return
        try:
            rank_pool(nproc).run(function, job)
        except JobError as error:  # as `validator.launch` does it
            causes = (cause for cause in error.errors.values() if isinstance(cause, ValidatorError))
            raise next(causes, error) from None

    return start
