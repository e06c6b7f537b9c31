"""The whole job on a target: run the reference and the candidate, and judge every edge."""

import pickle
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from validator.capturing.reader import open_capture
from validator.errors import UsageError
from validator.faults import parse
from validator.judging import judged
from validator.judging_thin import RUNS, dtype_of, is_thin, require_single_calls
from validator.numerics.recipes import recipe_named
from validator.progress import Progress
from validator.report.result import Result
from validator.reproducing.writing import require_writable
from validator.runs import SideRun, capture_side, feed
from validator.target import load_target

__all__ = ["check_target"]


def check_target(
    source: str,
    *,
    inputs: Mapping[str, Any] | None = None,
    nproc: int = 1,
    device: str | None = None,
    dtype: str | None = None,
    tp: int | None = None,
    recipe: str | None = None,
    include: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
    capture: Path | None = None,
    keep: Path | None = None,
    timeout_s: float | None = None,
    level: str = "full",
    plant: str | None = None,
    repro: Path | None = None,
    profiles: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Do the whole job on a target: run the reference and the candidate, and judge every edge.

    Args:
        source: a Python file or a checkpoint folder.
        inputs: keyword arguments of both models, tensors and plain values, in place of the target's own.
        nproc: ranks to launch the candidate on.
        device: passed to `candidate`.
        dtype: passed to `candidate`.
        tp: passed to `candidate`.
        recipe: name of a recipe of `validator.numerics.recipes`; default the target's own, else `fused` and
            `eager` are allowed.
        include: globs of the candidate's modules to look at.
        exclude: globs of the candidate's modules to leave out.
        capture: a stored capture of the candidate to judge in place of running it.
        keep: folder to keep both captures in, as `reference.h5` and `candidate`, and the values of each edge
            that was judged, as `judged.h5`.
        timeout_s: seconds that the candidate's run may take.
        level: how much of each tensor of the candidate is kept to be judged: `full`, `sample` or `stats`.
        plant: a fault to plant in the candidate before it runs, as `validator.faults.parse` reads it.
        repro: folder for a reproducer of the first finding that has one.
        profiles: whether to keep what each edge looks like, for `Result.write_html`.
        progress: told the stage, and how much of how much is done.

    Raises:
        ValidatorError: the two sides can't be compared.
    """
    tell = progress or (lambda stage, done, total: None)
    if repro is not None:
        require_writable(repro)
    if capture is not None:
        _refuse_with_capture(
            nproc=nproc, device=device, dtype=dtype, tp=tp, include=include, exclude=exclude, plant=plant
        )
        _refuse_with_capture(level=None if level == "full" else level, timeout=timeout_s)
        target = load_target(source)
        is_sampled = is_thin(open_capture(capture).manifest)
    else:
        target = load_target(source, device=device, dtype=dtype, tp=tp)
        target.require("candidate")
        is_sampled = level != "full"
    declared = recipe_named(recipe) or target.recipe
    if plant is not None:
        parse(plant)
    with tempfile.TemporaryDirectory(prefix="validator-") as scratch:
        folder = Path(scratch) if keep is None else _made(keep)
        tell("reference", 0, 1)
        given = None if inputs is None else _stored(inputs, Path(scratch) / "inputs.pt")
        if given is not None:
            target = target.fed_from(given)
        reference = target.reference()
        feeds = target.inputs()
        ref_run = SideRun(source=source, side="reference", output=folder / "reference.h5", proof=False)
        if not is_sampled:
            capture_side(ref_run, target, reference)
        tell("reference", 1, 1)
        run = SideRun(
            source=source,
            side="candidate",
            output=folder / "candidate",
            nproc=nproc,
            device=device,
            dtype=dtype,
            tp=tp,
            include=include,
            exclude=exclude,
            recipe=None if declared is None else declared.name,
            timeout_s=timeout_s,
            level=level,
            plant=plant,
            inputs=given,
        )
        if capture is None:
            tell("candidate", 0, 1)
            capture_side(run, target)
            tell("candidate", 1, 1)
        cand = open_capture(capture or run.output)
        if is_sampled:
            require_single_calls(cand)
            # What rounding carries through the reference depends on the candidate's dtype.
            like = str(dtype_of(cand)).removeprefix("torch.")
            tell("noise", 0, 1)
            capture_side(replace(ref_run, noise=RUNS, dtype=like, recipe=run.recipe), target, reference)
            tell("noise", 1, 1)
        about: dict[str, Any] = {
            "reference": {"source": source},
            "candidate": {"source": str(capture or source)},
        }
        if capture is None and given is None:
            made = {"kept": keep, "reproducer": repro}
            about |= {"command": run.command(recipe=recipe)}
            about |= {name: str(place) for name, place in made.items() if place is not None}
        return judged(
            reference=reference,
            ref=open_capture(ref_run.output),
            cand=cand,
            run=lambda model: feed(target, feeds, model),
            recipe=declared,
            names=target.names,
            layout=target.layout,
            mesh=target.mesh,
            about=about,
            progress=tell,
            repro=repro,
            profiles=profiles,
            values=None if keep is None else folder / "judged.h5",
        )


def _refuse_with_capture(**options: Any) -> None:
    given = [f"--{name}" for name, value in options.items() if value not in (None, 1, ())]
    if given:
        raise UsageError(
            f"{', '.join(given)} can't be used with --capture: it says how to run the candidate, "
            "which ran already"
        )


def _stored(inputs: Mapping[str, Any], path: Path) -> Path:
    """Write inputs where ranks can read them; reading them runs no code."""
    try:
        torch.save(dict(inputs), path)
        torch.load(path, weights_only=True)
    except (pickle.PickleError, AttributeError, TypeError):
        kinds = ", ".join(f"{name} {type(value).__name__}" for name, value in inputs.items())
        raise UsageError(
            f"inputs= holds what can't be sent to the ranks: {kinds}. Give tensors and plain values"
        ) from None
    return path


def _made(folder: Path) -> Path:
    taken = [name for name in ("reference.h5", "candidate", "judged.h5") if (folder / name).exists()]
    if taken:
        raise UsageError(f"--keep {folder} holds {taken[0]} already; name a new folder, or remove it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--keep {folder} can't be made: {error.strerror}; name a new folder") from None
    return folder
