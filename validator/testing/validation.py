"""What a test of a port is given: it compares, keeps figures, and fails with a finding, not a traceback.

Nothing heavy is imported before a method needs it, so that suites are collected at once.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import pytest

from validator.errors import UsageError, ValidatorError
from validator.testing.arguments import read_arguments
from validator.testing.failures import PortFailure
from validator.testing.lines import wrapped
from validator.testing.records import Checked, Ending, Failure, Figure, Record, plain
from validator.testing.settings import NO_TARGET, Settings

if TYPE_CHECKING:
    from torch import Tensor, nn

    from validator.baselines.recording import RunOptions
    from validator.numerics.recipes import Recipe
    from validator.report.result import Result

__all__ = ["Validation"]

Made = TypeVar("Made")
_LONGEST_NAME = 100
_INCONCLUSIVE = 3
# The results of `shared`, and what they raised.
Shared = dict[tuple[Any, ...], tuple[Any, Exception | None]]


class Validation:
    """The fixture `validation`.

    Attributes:
        settings: what this test runs with.
        folder: a folder of this test's own.
    """

    def __init__(
        self, *, settings: Settings, folder: Path, record: Record, nodeid: str, shared: Shared
    ) -> None:
        self.settings = settings
        self.folder = folder
        self._record = record
        self._nodeid = nodeid
        self._shared = shared

    def check(
        self,
        target: str | Path | None = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> "Result":
        """Do the whole job on a target, and fail the test unless every edge is aligned.

        Args:
            target: a Python file or a checkpoint folder; default the configured one.
            inputs: keyword arguments to feed both models with, in place of the target's own.
            options: those of `validator.api.check_target`, in place of the configured ones: `nproc`,
                `device`, `dtype`, `tp`, `recipe`, `include`, `exclude`, `plant`, `level`, `timeout_s`, ...

        Returns:
            The result, where it is aligned.

        Raises:
            ValidatorError: the two sides can't be compared; the test then shows the message alone.
        """
        from validator.api import check_target
        from validator.pretrained import without_loading_bars

        source = self._source(target)
        if inputs is not None and not isinstance(inputs, Mapping):
            raise UsageError(f"inputs of check() is {type(inputs).__name__}; it must be a dict")
        own = read_arguments("check", check_target, options, besides=("inputs",))
        with without_loading_bars():
            result = check_target(source, inputs=inputs, **{**self.settings.options, **own})
        return self._judged(result, source)

    def baseline(
        self,
        name: str,
        target: str | Path | None = None,
        *,
        side: str = "reference",
        demands_bits: bool = False,
        by_edge: bool = False,
        **options: Any,
    ) -> None:
        """Hold a target's candidate to a baseline, and fail the test unless it is what the baseline was.

        With `--validator-update-baselines` a baseline that is missing, or that this run is not, is recorded:
        the test then fails with what changed, and passes the next time. Nothing else writes one.

        Args:
            name: of the baseline, in the configured folder.
            target: a Python file or a checkpoint folder; default the configured one.
            side: what is recorded: `"reference"`, or `"candidate"` for both sides.
            demands_bits: whether the bits must be those of the recorded candidate.
            by_edge: whether each module is judged by itself besides, with the target's reference.
            options: those of `validator.baselines.recording.RunOptions`, in place of the configured ones.

        Raises:
            ValidatorError: there is no such baseline, or the two can't be compared.
        """
        from validator.baselines.checking import check_run
        from validator.baselines.recording import RunOptions
        from validator.pretrained import without_loading_bars

        source = self._source(target)
        own = read_arguments("baseline", RunOptions, options)
        run = RunOptions(**{**self.settings.options, **own})
        folder = self.settings.baselines
        with without_loading_bars():
            try:
                result = check_run(
                    name, source, folder=folder, options=run, demands_bits=demands_bits, by_edge=by_edge
                )
            except ValidatorError as error:
                if not self.settings.update_baselines:
                    raise
                self._record_baseline(name, source, side, run, str(error))
        if self.settings.update_baselines and (result.exit_code or result.differing):
            with without_loading_bars():
                self._record_baseline(name, source, side, run, result.summary)
        first = result.first
        self.figure(f"baseline {name}", str(result.verdict))
        if result.exit_code == _INCONCLUSIVE:
            self.inconclusive(result.summary)
        module, rank = (None, None) if first is None else (first.module, first.rank)
        self.require(result.exit_code == 0, result.summary, module=module, rank=rank)

    def _record_baseline(self, name: str, source: str, side: str, run: "RunOptions", why: str) -> NoReturn:
        """Record a run, and fail the test with what the baseline has otherwise now."""
        from validator.baselines.recording import record_run

        made = record_run(
            name,
            source,
            side,
            folder=self.settings.baselines,
            options=run,
            update=True,
            command="pytest --validator-update-baselines",
        )
        self.figure(f"baseline {name}", "recorded" if made.exit_code == 0 else "refused")
        if made.exit_code:
            self.fail(made.summary)
        rows = [f"  {label}  {text}" for label, text in made.rows()]
        self.fail("\n".join([f"{made.summary}, because: {why}", *rows, "  next  review it, then run again"]))

    def assert_aligned(
        self,
        *,
        ref: "Tensor | nn.Module",
        cand: "Tensor | nn.Module",
        inputs: Mapping[str, Any] | None = None,
        recipe: "Recipe | str | None" = None,
        max_ulp: float = 0.5,
    ) -> None:
        """Fail the test unless rounding explains how two tensors, or two modules, differ.

        Args:
            ref: a module, or a tensor `[*]` of any floating format; the wider, the better.
            cand: of the same kind; a tensor has the same shape.
            inputs: for modules: the keyword arguments to call both with.
            recipe: for modules: what the device may round; default `fused` and `eager`.
            max_ulp: for tensors: how far an element may be from the reference, in ulp of the candidate's
                format. The default is what rounding the reference once to that format makes.

        Raises:
            ValidatorError: the two can't be compared.
        """
        from torch import Tensor, nn

        if isinstance(ref, nn.Module) and isinstance(cand, nn.Module):
            from validator.api import check

            result = check(reference=ref, candidate=cand, inputs=inputs, recipe=recipe)
            self._judged(result, type(cand).__name__)
            return
        if not (isinstance(ref, Tensor) and isinstance(cand, Tensor)):
            raise UsageError(
                f"assert_aligned() compares two tensors or two modules; ref is {type(ref).__name__} and cand "
                f"is {type(cand).__name__}"
            )
        if inputs is not None or recipe is not None:
            raise UsageError("assert_aligned() of two tensors takes no inputs= and no recipe=: give max_ulp=")
        from validator.testing.tensors import difference_text

        self._record.compared += 1
        text = difference_text(ref=ref, cand=cand, max_ulp=max_ulp)
        if text is not None:
            self.fail(text)

    def figure(
        self,
        name: str,
        value: float | int | str,
        *,
        unit: str = "",
        limit: float | int | str | None = None,
        error: float | None = None,
        samples: Sequence[float] = (),
    ) -> None:
        """Keep a figure of this test for the terminal, the JUnit file and the summary; it is no comparison.

        Args:
            name: told apart from the test's other figures.
            value: a number, or a word.
            unit: of the value; with a time or bytes in it, it is one of speed or memory.
            limit: what it was held to.
            error: its standard error; a baseline of figures judges a change by it.
            samples: the measurements that it sums up; a baseline tells by them what chance explains.
        """
        held = None if limit is None else plain(limit)
        self._record.figures.append(
            Figure(
                name=name,
                value=plain(value),
                unit=unit,
                limit=held,
                error=None if error is None else float(error),
                samples=tuple(float(sample) for sample in samples),
            )
        )

    def require(
        self,
        condition: bool,
        message: str,
        *,
        module: str | None = None,
        rank: int | None = None,
        evidence: Mapping[str, Any] | None = None,
    ) -> None:
        """Fail the test with a message unless the condition holds."""
        self._record.compared += 1
        if not condition:
            self.fail(message, module=module, rank=rank, evidence=evidence)

    def fail(
        self,
        message: str,
        *,
        module: str | None = None,
        rank: int | None = None,
        evidence: Mapping[str, Any] | None = None,
    ) -> NoReturn:
        """Fail the test with a text and no traceback.

        Args:
            message: what does not hold of the port, in a sentence or a few lines.
            module: the module to blame, in the reference's names.
            rank: the rank to blame.
            evidence: figures behind it, by name.
        """
        self._end(Ending.FAILED, message, module, rank, evidence)

    def inconclusive(
        self, message: str, *, module: str | None = None, evidence: Mapping[str, Any] | None = None
    ) -> NoReturn:
        """Fail the test because too little was looked at to say that it holds: a control did not fail."""
        self._end(Ending.INCONCLUSIVE, message, module, None, evidence)

    def not_applicable(self, why: str) -> NoReturn:
        """Skip the test: it does not apply to this port, or something that it needs is missing."""
        pytest.skip(why)

    def on_ranks(
        self,
        function: Callable[..., Any],
        *args: Any,
        nproc: int | None = None,
        timeout_s: float | None = None,
    ) -> list[Any]:
        """Call `function(rank, world_size, *args)` on ranks and return what it returned, rank by rank.

        Args:
            function: of a module that new processes can import.
            args: picklable, as is what it returns.
            nproc: number of ranks; default the configured one. A single one is this process, without a
                process group; more are new processes, each with its process group ready.
            timeout_s: seconds that the ranks may take, or None for no limit.

        Raises:
            ValidatorError: a rank failed; the message says which, and why.
        """
        from validator.testing.ranks import on_ranks

        return on_ranks(
            function,
            args,
            nproc=nproc or self.settings.nproc,
            device=self.settings.device,
            folder=self.folder,
            timeout_s=timeout_s,
        )

    def shared(self, make: Callable[..., Made], *args: Any) -> Made:
        """Return `make(*args)`, made once for all tests of this process that ask for it with these settings.

        What costs much and answers several questions is made so. What it raises is raised again.

        Args:
            make: a function of a module, told apart by its name.
            args: hashable; told apart by their values.
        """
        key = (make.__module__, make.__qualname__, args, self.settings)
        if key not in self._shared:
            from validator.pretrained import without_loading_bars

            try:
                with without_loading_bars():
                    self._shared[key] = (make(*args), None)
            except Exception as error:
                self._shared[key] = (None, error)
        made, failed = self._shared[key]
        if failed is not None:
            raise failed
        result: Made = made
        return result

    @property
    def source(self) -> str:
        """The configured target.

        Raises:
            UsageError: none is named.
        """
        return self._source(None)

    def judged(self, result: "Result") -> "Result":
        """Keep a result of the configured target, and fail the test unless it is aligned."""
        return self._judged(result, self._source(None))

    def _source(self, target: str | Path | None) -> str:
        if target is not None:
            return str(target)
        if self.settings.target is None:
            raise UsageError(NO_TARGET)
        return self.settings.target

    def _judged(self, result: "Result", source: str) -> "Result":
        """Keep a result, write its report, and fail the test unless it is aligned.

        A report that can't be written hides no verdict but the aligned one.
        """
        from validator.testing.finding_text import failure_text

        report, unwritten = None, None
        try:
            report = self._write(result)
        except UsageError as error:
            unwritten = error
        first = result.first_divergence or next(iter(result.findings), None)
        checked = Checked(
            verdict=str(result.verdict),
            headline=str(result).partition("\n\n")[0].replace("\n ", ""),
            target=source,
            module=None if first is None else first.module,
            rank=None if first is None else first.rank,
            report=report,
        )
        self._record.compared += 1
        self._record.checks.append(checked)
        if result.exit_code == 0:
            if unwritten is not None:
                raise unwritten
            return result
        beside = "" if unwritten is None else f"\nreport not written: {unwritten}"
        failure = Failure(
            ending=Ending.FAILED if result.exit_code == 1 else Ending.INCONCLUSIVE,
            message=checked.headline + beside,
            module=checked.module,
            rank=checked.rank,
        )
        shown = "\n".join(line for part in beside.split("\n") for line in wrapped(part)) if beside else ""
        raise PortFailure(failure, failure_text(result.outcome) + shown)

    def _write(self, result: "Result") -> str | None:
        if self.settings.reports is None:
            return None
        number = len(self._record.checks) + 1
        path = self.settings.reports / f"{_slug(self._nodeid)}{'' if number == 1 else f'-{number}'}.json"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(result.to_json(), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"the report {str(path)!r} can't be written: {error.strerror}") from None
        return str(path)

    def _end(
        self,
        ending: Ending,
        message: str,
        module: str | None,
        rank: int | None,
        evidence: Mapping[str, Any] | None,
    ) -> NoReturn:
        self._record.compared += 1
        figures = {name: plain(value) for name, value in (evidence or {}).items()}
        raise PortFailure(Failure(ending=ending, message=message, module=module, rank=rank, evidence=figures))


def _slug(nodeid: str) -> str:
    """Return a file's name that is a test's alone: its path and name, shortened and told apart by a hash."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", nodeid.replace(".py::", "::")).strip("-")
    return f"{words[:_LONGEST_NAME]}-{hashlib.blake2b(nodeid.encode(), digest_size=4).hexdigest()}"
