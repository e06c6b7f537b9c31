"""Both sides of a step of the search: what was captured of the candidate, and the same of the reference.

A candidate's run of several steps (a prefill and decode steps) is held against one prefill a generation, as
`validator check` does.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from validator.align.builder import build_trace
from validator.align.names import map_modules
from validator.align.patterns import Patterns
from validator.align.steps import NotOnePrefillError
from validator.align.traces import Trace, TraceCall
from validator.bisecting.candidates import Captured
from validator.bisecting.survey import Survey, survey
from validator.capturing.outline import glob_of
from validator.capturing.reader import Capture, open_capture
from validator.capturing.records import RankCapture
from validator.errors import TargetError
from validator.judging_thin import RUNS, noise_source
from validator.numerics.recipes import Recipe
from validator.prefilling import Prefilled, has_steps, prefilled
from validator.quantised.captures import with_values
from validator.runs import SideRun, capture_side, feed
from validator.target import Target, floating_dtype

__all__ = ["Pairing", "Sides"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Both sides of a step.

    Attributes:
        ref: the reference's capture of the modules in question, and of the model's own call.
        trace: the candidate's run of these modules in the reference's names.
        captured: what that was made of.
        run: feeds a model, as the reference was fed.
        why_no_noise: why the reference's capture lacks the noise that was asked for, or nothing.
    """

    ref: Capture
    trace: Trace
    captured: Captured
    run: Callable[[nn.Module], Any]
    why_no_noise: str = ""


@dataclass(kw_only=True)
class Pairing:
    """Captures of the reference what a step captured of the candidate.

    Attributes:
        target: the target.
        source: its path.
        reference: its trusted model, built.
        recipe: what is declared of the candidate's arithmetic, or None.
        folder: for captures of the reference.
        is_stepped: whether the candidate's run is one of several steps, held against a prefill.
        notes: what a reader must know of that.
    """

    target: Target
    source: str
    reference: nn.Module
    recipe: Recipe | None
    folder: Path
    is_stepped: bool = False
    notes: tuple[str, ...] = ()
    _inputs: dict[str, Any] = field(init=False)
    _own: Capture | None = field(init=False, default=None)
    _count: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._inputs = self.target.inputs()

    @property
    def around(self) -> tuple[str, ...]:
        """Modules that each capture must hold besides: the model's own calls tell how steps go on."""
        return ("",) if self.is_stepped else ()

    def feed(self, model: nn.Module) -> Any:
        """Run a model as the target says."""
        return feed(self.target, self._inputs, model)

    def surveyed(self, captured: Captured) -> Survey:
        """Find out how the candidate was run, and measure the reference's run.

        Args:
            captured: the candidate's boundaries, the model's own calls among them.
        """
        run: Callable[[nn.Module], Any] = self.feed
        if has_steps(captured.ranks):
            try:
                whole = self._prefilled(captured, ("",))
            except NotOnePrefillError as error:
                self.notes = (f"the steps were judged one by one, each side's own: {error}",)
                whole = None
            if whole is not None:
                self.is_stepped, run = True, whole.run
        return survey(self.reference, lambda: run(self.reference))

    def names(self, sides: Sides, survey: Survey) -> dict[str, str]:
        """Return what the candidate calls the reference's modules, as far as names and its blocks tell.

        Args:
            sides: the boundaries.
            survey: of the reference's run.
        """
        theirs = list(dict.fromkeys(fqn for rank in sides.captured.ranks for fqn in rank.modules))
        ran = sides.captured.fired
        ours = [fqn for fqn, _ in self.reference.named_modules()]
        matched = map_modules(cand=theirs, ref=ours, patterns=Patterns(self.target.names))
        names = {own: fqn for fqn, own in matched.items() if fqn in ran}
        blocks = {call.module: call.candidate_module for call in sides.trace.calls.values()}
        for block in survey.blocks:
            for fqn in survey.inside((block,)) if block in blocks else ():
                own = blocks[block] + fqn.removeprefix(block)
                if fqn not in names and own in ran:
                    names[fqn] = own
        return names | blocks

    def sides(self, captured: Captured, modules: Iterable[str], *, noise: str | None = None) -> Sides:
        """Capture some of the reference's modules, and put what was captured into their names.

        Args:
            captured: of the candidate.
            modules: fqns of the reference.
            noise: dtype of the candidate that the reference's noise is measured for, or None for no noise.

        Raises:
            ValidatorError: the two sides can't be compared.
        """
        wanted = tuple(dict.fromkeys(modules))
        weights = None if self.recipe is None or self.recipe.weights == "storage" else self.recipe.weights
        captured = replace(captured, ranks=with_values(captured.ranks, weights=weights))
        why = ""
        try:
            made = self._captured(captured, wanted, noise)
        except TargetError as error:
            if noise is None:
                raise
            # Its code can't run in simulated arithmetic.
            made, why = self._captured(captured, wanted, None), str(error)
        trace = build_trace(
            cand=made.cand,
            ref=made.ref.rank(0),
            names=self.target.names,
            layout=self.target.layout,
            mesh=self.target.mesh,
        )
        declared = None if self.recipe is None else self.recipe.requantised
        trace = replace(trace, steps=made.steps, requantised=declared)
        if "" not in wanted:
            trace = replace(trace, calls=_below_roots(trace, made.ref.rank(0)))
        return Sides(ref=made.ref, trace=trace, captured=captured, run=made.run, why_no_noise=why)

    def _captured(self, captured: Captured, modules: tuple[str, ...], noise: str | None) -> Prefilled:
        include = ("", *modules)
        if self.is_stepped and (whole := self._prefilled(captured, include, noise)) is not None:
            return whole
        run = SideRun(
            source=self.source,
            side="reference",
            output=self._fresh() / "reference.h5",
            include=tuple(map(glob_of, dict.fromkeys(include))),
            proof=False,
            recipe=None if self.recipe is None else self.recipe.name,
            noise=None if noise is None else RUNS,
            dtype=noise,
        )
        capture_side(run, self.target, self.reference)
        return Prefilled(ref=open_capture(run.output), cand=captured.ranks, run=self.feed, steps={})

    def _prefilled(
        self, captured: Captured, modules: tuple[str, ...], noise: str | None = None
    ) -> Prefilled | None:
        if self._own is None:
            path = self._fresh() / "steps.h5"
            own = SideRun(source=self.source, side="reference", output=path, include=("",), proof=False)
            capture_side(own, self.target, self.reference)
            self._own = open_capture(path)

        def measured(run: Callable[[nn.Module], Any]) -> Any:
            return noise_source(
                model=self.reference,
                run=lambda: run(self.reference),
                recipe=self.recipe,
                dtype=floating_dtype(noise or "float32"),
            )

        return prefilled(
            reference=self.reference,
            ref=self._own.rank(0),
            cand=captured.ranks,
            folder=self._fresh(),
            include=tuple(map(glob_of, dict.fromkeys(modules))),
            noise=None if noise is None else measured,
        )

    def _fresh(self) -> Path:
        """Return a new folder."""
        self._count += 1
        path = self.folder / f"reference-{self._count}"
        path.mkdir()
        return path


def _below_roots(trace: Trace, ref: RankCapture) -> dict[tuple[str, int], TraceCall]:
    """Return the calls without the model's own, which they still name as their outermost.

    By its name padding and the steps of a run are known.
    """
    by_id = {call.id: call for call in ref.calls}
    roots: dict[tuple[str, int], tuple[str, int]] = {}
    for call in ref.calls:
        outer = call
        while outer.parent is not None:
            outer = by_id[outer.parent]
        roots[call.module, call.n] = (outer.module, outer.n)
    calls = {}
    for key, made in trace.calls.items():
        if key[0]:
            root = roots.get(key, key)
            has_parent = made.parent is not None or root == key
            calls[key] = made if has_parent else replace(made, parent=root)
    return calls
