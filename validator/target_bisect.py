"""Find the first module of a target's candidate that goes wrong, capturing only what each step needs."""

import tempfile
from collections.abc import Iterable
from pathlib import Path

from torch.nn import ModuleDict, ModuleList

from validator.bisecting.candidates import Candidates, RunCandidates, StoredCandidates
from validator.bisecting.hunt import Hunt
from validator.bisecting.identity import capture_identity, content_of, versions
from validator.bisecting.looks import Looker
from validator.bisecting.referee import Referee
from validator.bisecting.scope import Scope
from validator.bisecting.sides import Pairing
from validator.bisecting.storing import State
from validator.capturing.reader import Capture, open_capture
from validator.errors import UsageError
from validator.faults import parse
from validator.judging_thin import require_full
from validator.numerics.recipes import recipe_named
from validator.progress import Progress
from validator.report.bisection import BisectionResult
from validator.reproducing.writing import require_writable
from validator.runs import SideRun
from validator.target import load_target

__all__ = ["bisect_target"]


def bisect_target(
    source: str,
    *,
    nproc: int = 1,
    device: str | None = None,
    dtype: str | None = None,
    tp: int | None = None,
    recipe: str | None = None,
    module: str | None = None,
    capture: Path | None = None,
    keep: Path | None = None,
    timeout_s: float | None = None,
    plant: str | None = None,
    repro: Path | None = None,
    profiles: bool = False,
    progress: Progress | None = None,
) -> BisectionResult:
    """Find the first layer that goes wrong, then the module in it, then the operator in that.

    Args:
        source: a Python file or a checkpoint folder.
        nproc: ranks to launch the candidate on.
        device: passed to `candidate`.
        dtype: passed to `candidate`.
        tp: passed to `candidate`.
        recipe: name of a recipe, as for `check_target`.
        module: only this module of the reference, and what lies below it.
        capture: a stored capture of the candidate to search in place of running it.
        keep: folder to keep each step in: the same search goes on from there.
        timeout_s: seconds that each of the candidate's runs may take.
        plant: a fault to plant in the candidate before it runs, as `validator.faults.parse` reads it.
        repro: folder for a reproducer of the first finding that has one.
        profiles: whether to keep what each edge looks like, for `BisectionResult.write_html`.
        progress: told the stage, and how much of how much is done.

    Raises:
        ValidatorError: the two sides can't be compared.
    """
    tell = progress or (lambda stage, done, total: None)
    if repro is not None:
        require_writable(repro)
    stored: Capture | None = None
    options = {"nproc": nproc, "device": device, "dtype": dtype, "tp": tp, "plant": plant}
    if capture is not None:
        running = {**options, "timeout": timeout_s}
        given = [f"--{name}" for name, value in running.items() if value not in (None, 1)]
        if given:
            raise UsageError(
                f"{', '.join(given)} can't be used with --capture: it says how to run the candidate, "
                "which ran already"
            )
        target = load_target(source)
        stored = open_capture(capture)
        require_full(stored, "bisect")
    else:
        target = load_target(source, device=device, dtype=dtype, tp=tp)
        target.require("candidate")
    declared = recipe_named(recipe) or target.recipe
    if plant is not None:
        parse(plant)
    name = None if declared is None else declared.name
    identity = {
        "target": str(Path(source).resolve()),
        **content_of(Path(source)),
        **options,
        "recipe": name,
        "module": module,
        "capture": None if capture is None else str(capture.resolve()),
        "capture's content": None if stored is None else capture_identity(stored),
        **{f"version of {package}": number for package, number in versions().items()},
    }
    state = State(keep, identity)
    with tempfile.TemporaryDirectory(prefix="validator-") as scratch:
        folder = Path(scratch) if keep is None else keep
        reference = target.reference()
        if module is not None and module not in dict(reference.named_modules()):
            modules = [
                name
                for name, found in reference.named_modules()
                if not isinstance(found, ModuleList | ModuleDict)
            ]
            raise UsageError(_no_module(module, modules))
        run = SideRun(
            source=source,
            side="candidate",
            output=folder,
            nproc=nproc,
            device=device,
            dtype=dtype,
            tp=tp,
            recipe=name,
            timeout_s=timeout_s,
            plant=plant,
        )
        candidates: Candidates
        if stored is None:
            candidates = RunCandidates(run, target, folder, state if keep is not None else None)
        else:
            candidates = StoredCandidates(stored)
        pairing = Pairing(
            target=target, source=source, reference=reference, recipe=declared, folder=Path(scratch)
        )
        tell("candidate", 0, 1)
        boundaries = candidates.boundaries()
        tell("candidate", 1, 1)
        tell("reference", 0, 1)
        scope = Scope(survey=pairing.surveyed(boundaries), within=module or "")
        tell("reference", 1, 1)
        if module is not None and module not in scope.survey.modules:
            raise UsageError(_no_module(module, scope.survey.modules))
        looker = Looker(
            candidates=candidates,
            pairing=pairing,
            referee=Referee(
                reference=reference,
                survey=scope.survey,
                recipe=declared,
                progress=lambda done, total: tell("judging", done, total),
                profiles=profiles,
            ),
            scope=scope,
            state=state,
            progress=tell,
        )
        found = Hunt(looker=looker, repro=repro).run()
    about = {
        "reference": {"source": source},
        "candidate": {"source": str(capture or source)},
    }
    command = None if capture is not None else run.command(recipe=recipe)
    return BisectionResult.of(found, about, command=command)


def _no_module(module: str, names: Iterable[str]) -> str:
    if any(sign in module for sign in "*?["):
        return f"--module {module!r}: a search is of one module and what is in it; name it without a pattern"
    known = [name for name in names if name]
    more = f" and {len(known) - 4} more" if len(known) > 4 else ""
    return f"--module {module!r} is no module that the reference called; it has {', '.join(known[:4])}{more}"
