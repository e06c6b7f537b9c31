"""Run the stages of day 0 until one does not pass."""

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from validator.day0.page import write_page
from validator.day0.records import Day0, StageResult
from validator.day0.stages import STAGES, Context, Stage
from validator.day0.state import State
from validator.errors import ValidatorError
from validator.progress import Progress
from validator.testing.records import Ending
from validator.testing.runnable import require_runnable
from validator.testing.settings import configured, read_settings

__all__ = ["run_day0"]


def run_day0(
    source: str,
    *,
    folder: Path,
    options: dict[str, Any] | None = None,
    card_counts: str | None = None,
    long: bool = False,
    fresh: bool = False,
    progress: Progress | None = None,
    stages: Sequence[Stage] = STAGES,
) -> Day0:
    """Ask all that must hold of a port, correctness before speed, and stop at the first stage that fails.

    Stages that passed are remembered in `folder` as long as the target, the modules that it imports, the
    settings, the machine and the versions stay the same. Every stage runs with the same settings: what is
    given here, else what `[tool.validator]` says.

    Args:
        source: a Python file or a checkpoint folder.
        folder: for reports, the page `summary.html`, and what is remembered.
        options: of the candidate: `nproc`, `device`, `dtype`, `tp`, `recipe`; None is not given.
        card_counts: numbers of ranks to compare, such as `"1,2"`; default the settings' own.
        long: run the long versions of suites, also where the settings do not say so.
        fresh: forget what is remembered.
        progress: told what is done.
        stages: what is asked, in order.

    Raises:
        ValidatorError: there is no such target, an option is not legal, this machine lacks what it asks for,
            or the folder can't be written.
    """
    here = Path.cwd()
    settings = read_settings(
        configured(here),
        {**(options or {}), "target": source, "card_counts": card_counts, "long": long or None},
        name=lambda name: f"--{name.replace('_', '-')}",
        folder=here,
    )
    require_runnable(settings)
    state = State(folder, settings=settings, fresh=fresh)
    context = Context(source=source, folder=folder, settings=settings, progress=progress)
    results: list[StageResult] = []
    for number, stage in enumerate(stages):
        if progress is not None:
            progress(f"day 0: {stage.name}", number, len(stages))
        result = state.get(stage.name)
        if result is None:
            started, ran = time.perf_counter(), datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
            try:
                result = stage.run(context, stage)
            except ValidatorError as error:
                result = stage.ended(
                    Ending.COULD_NOT_RUN, str(error), advice="mend this, and run the command again"
                )
            result = replace(result, duration_s=time.perf_counter() - started, ran=ran)
            state.keep(result)
        results.append(result)
        if not result.passed:
            break
    answer = Day0(
        source=source,
        stages=tuple(results),
        left=tuple(stage.name for stage in stages[len(results) :]),
        page=str(folder / "summary.html"),
    )
    write_page(answer, folder / "summary.html")
    return answer
