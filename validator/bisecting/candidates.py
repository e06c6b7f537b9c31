"""Where a search gets the candidate's tensors from: a run a step, or a capture that is there already."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from validator.bisecting.identity import capture_identity
from validator.bisecting.storing import State
from validator.capturing.manifest import Manifest
from validator.capturing.narrowing import narrowed, stored_bytes
from validator.capturing.outline import glob_of, outline
from validator.capturing.place import Place, is_being_written
from validator.capturing.reader import Capture, open_capture
from validator.capturing.records import RankCapture
from validator.runs import SideRun, capture_side
from validator.target import Target

__all__ = ["Candidates", "Captured", "RunCandidates", "StoredCandidates"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """What a step has of the candidate.

    Attributes:
        ranks: every rank's part.
        manifest: of the capture that it is from.
        runs: how many runs it took.
        size_bytes: of its tensors.
    """

    ranks: tuple[RankCapture, ...]
    manifest: Manifest
    runs: int

    @property
    def size_bytes(self) -> int:
        """Of the tensors in it; equal ones of a rank are stored once."""
        return stored_bytes(self.ranks)

    @property
    def fired(self) -> frozenset[str]:
        """Fqns, in the candidate's names, of all modules that ran on any rank, recorded or not."""
        return frozenset(fqn for c in self.ranks for fqn, info in c.modules.items() if info.calls)

    @property
    def modules(self) -> int:
        """How many modules were recorded."""
        return len({call.module for capture in self.ranks for call in capture.calls})


class Candidates(Protocol):
    """Gives the steps of a search what they need of the candidate."""

    def boundaries(self) -> Captured:
        """Return all modules that lie in no repeated layer, and these layers without their insides.

        They can be asked for again without another run.
        """

    def inside(
        self,
        modules: Sequence[str],
        name: str,
        *,
        with_operators: bool = False,
        with_blocks: bool = True,
        around: Sequence[str] = (),
    ) -> Captured:
        """Return some modules with all that lies inside of them; what was returned before may be gone then.

        Args:
            modules: fqns in the candidate's names.
            name: of the step, as a file's name.
            with_operators: with the operators that run in these modules, but not in those inside.
            with_blocks: with what lies inside of repeated layers, where the modules hold any.
            around: modules that are needed besides, without what lies inside of them.

        Raises:
            ValidatorError: the candidate can't be run or captured.
        """

    def holds(self, module: str) -> bool:
        """Say whether the inside of a module, in the candidate's names, can be had."""

    def has_operators(self, module: str) -> bool:
        """Say whether another look at a module, in the candidate's names, would show its operators."""


class RunCandidates:
    """Runs the candidate once a step.

    Args:
        run: how; where the capture goes is decided here.
        target: the target, loaded.
        folder: where captures go.
        state: of the search, where captures stay there: those that are there are not made again. None where
            they don't.
    """

    def __init__(self, run: SideRun, target: Target, folder: Path, state: State | None = None) -> None:
        self._run = run
        self._target = target
        self._folder = folder
        self._state = state
        self._last: Path | None = None
        self._names: frozenset[str] | None = None

    def boundaries(self) -> Captured:
        """Capture the outline: the candidate's own process finds its layers."""
        return self._captured("boundaries", replace(self._run, is_outline=True))

    def inside(
        self,
        modules: Sequence[str],
        name: str,
        *,
        with_operators: bool = False,
        with_blocks: bool = True,
        around: Sequence[str] = (),
    ) -> Captured:
        """Capture some modules and all inside of them."""
        globs = [glob_of(fqn) for fqn in around]
        for fqn in modules:
            globs += [glob_of(fqn)]
            below = f"{fqn}." if fqn else ""
            is_around = any(name != fqn and name.startswith(below) for name in self._fired)
            globs += [f"{glob_of(below)}*"] if is_around else []
        operators = tuple(glob_of(fqn) for fqn in modules) if with_operators else ()
        run = replace(self._run, include=tuple(globs), operators=operators, is_outline=not with_blocks)
        path = self._folder / name
        if self._last is not None and self._last != path and self._state is None:
            shutil.rmtree(self._last, ignore_errors=True)
        self._last = path
        return self._captured(name, run)

    @property
    def _fired(self) -> frozenset[str]:
        if self._names is None:
            self._names = self.boundaries().fired
        return self._names

    def holds(self, module: str) -> bool:
        """Say yes: it can be captured."""
        return True

    def has_operators(self, module: str) -> bool:
        """Say whether the module ran: then they can be captured."""
        return module in self._fired

    def _captured(self, name: str, run: SideRun) -> Captured:
        path = self._folder / name
        if not path.exists():
            left = Place(path).partial  # of a search that was killed
            if left.exists() and not is_being_written(left):
                shutil.rmtree(left)
            capture_side(replace(run, output=path), self._target)
        found = open_capture(path)
        if self._state is not None:
            self._state.require_same(f"capture {name}", capture_identity(found))
        return Captured(ranks=tuple(found.all_ranks()), manifest=found.manifest, runs=1)


class StoredCandidates:
    """Takes what a step needs from one capture.

    Args:
        capture: of the candidate.
    """

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._ranks = tuple(capture.all_ranks())

    def boundaries(self) -> Captured:
        """Return the outline's part of the capture."""
        classes = {fqn: info.type for capture in self._ranks for fqn, info in capture.modules.items()}
        shape = outline(classes)
        wanted = {*shape.frame, *shape.blocks}
        return self._narrowed(wanted.__contains__)

    def inside(
        self,
        modules: Sequence[str],
        name: str,
        *,
        with_operators: bool = False,
        with_blocks: bool = True,
        around: Sequence[str] = (),
    ) -> Captured:
        """Return some modules' part of the capture, with the operators that it holds."""
        starts = tuple(f"{fqn}." if fqn else "" for fqn in modules)
        wanted = {*modules, *around}
        return self._narrowed(lambda fqn: fqn in wanted or fqn.startswith(starts))

    def holds(self, module: str) -> bool:
        """Say whether anything below the module was recorded, or there is nothing below it."""
        start = f"{module}." if module else ""
        fired = {fqn for c in self._ranks for fqn, info in c.modules.items() if info.calls}
        recorded = {call.module for c in self._ranks for call in c.calls}
        below = {fqn for fqn in fired if fqn.startswith(start) and fqn != module}
        return bool(below & recorded) or (not below and module in recorded)

    def has_operators(self, module: str) -> bool:
        """Say no: those that the capture holds were shown with the module."""
        return False

    def _narrowed(self, keeps: Callable[[str], bool]) -> Captured:
        ranks = tuple(narrowed(capture, keeps) for capture in self._ranks)
        return Captured(ranks=ranks, manifest=self._capture.manifest, runs=0)
