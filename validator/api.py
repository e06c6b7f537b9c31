"""What users call: capture a run, and check one against the reference."""

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from validator.align.builder import build_trace
from validator.capturing.manifest import Manifest, ProofStatus
from validator.capturing.reader import Capture, open_capture
from validator.capturing.records import RankCapture, TensorRef
from validator.capturing.session import capture, capture_run
from validator.checks.endtoend import end_to_end
from validator.checks.engine import policy_of, real_positions, roll_up, run_checks
from validator.checks.propagation import FEWEST_RUNS
from validator.comparing.comparison import compare_captures
from validator.errors import CaptureError, MismatchError, UsageError
from validator.faults import parse
from validator.numerics.recipes import RECIPES, Recipe
from validator.report.pairs import ComparisonResult
from validator.report.result import Result
from validator.runs import SideRun, capture_side, copied, feed
from validator.target import load_target

__all__ = ["capture", "capture_target", "check", "check_target", "compare", "open_capture"]

Progress = Callable[[str, int, int], None]


def check_target(
    source: str,
    *,
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
    plant: str | None = None,
    progress: Progress | None = None,
) -> Result:
    """Do the whole job on a target: run the reference and the candidate, and judge every edge.

    Args:
        source: a Python file or a checkpoint folder.
        nproc: ranks to launch the candidate on.
        device: passed to `candidate`.
        dtype: passed to `candidate`.
        tp: passed to `candidate`.
        recipe: name of a recipe of `validator.numerics.recipes`; default the target's own, else `fused` and
            `eager` are allowed.
        include: globs of the candidate's modules to look at.
        exclude: globs of the candidate's modules to leave out.
        capture: a stored capture of the candidate to judge in place of running it.
        keep: folder to keep both captures in, as `reference.h5` and `candidate`.
        timeout_s: seconds that the candidate's run may take.
        plant: a fault to plant in the candidate before it runs, as `validator.faults.parse` reads it.
        progress: told the stage, and how much of how much is done.

    Raises:
        ValidatorError: the two sides can't be compared.
    """
    tell = progress or (lambda stage, done, total: None)
    if capture is not None:
        _refuse_with_capture(
            nproc=nproc, device=device, dtype=dtype, tp=tp, include=include, exclude=exclude, plant=plant
        )
        target = load_target(source)
        open_capture(capture)
    else:
        target = load_target(source, device=device, dtype=dtype, tp=tp)
        target.require("candidate")
    declared = _recipe(recipe) or target.recipe
    if plant is not None:
        parse(plant)
    with tempfile.TemporaryDirectory(prefix="validator-") as scratch:
        folder = Path(scratch) if keep is None else _made(keep)
        tell("reference", 0, 1)
        reference = target.reference()
        inputs = target.inputs()
        ref_run = SideRun(source=source, side="reference", output=folder / "reference.h5", proof=False)
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
            plant=plant,
        )
        if capture is None:
            tell("candidate", 0, 1)
            capture_side(run, target)
            tell("candidate", 1, 1)
        return _judged(
            reference=reference,
            ref=open_capture(ref_run.output),
            cand=open_capture(capture or run.output),
            run=lambda model: feed(target, inputs, model),
            recipe=declared,
            names=target.names,
            layout=target.layout,
            mesh=target.mesh,
            about={
                "reference": {"source": source},
                "candidate": {"source": str(capture or source)},
                **({"command": run.command()} if capture is None else {}),
            },
            progress=tell,
        )


def capture_target(
    source: str,
    side: str,
    output: Path,
    *,
    nproc: int = 1,
    device: str | None = None,
    dtype: str | None = None,
    tp: int | None = None,
    include: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
    overwrite: bool = False,
    proof: bool = True,
    timeout_s: float | None = None,
    recipe: str | None = None,
    noise: int | None = None,
    plant: str | None = None,
) -> Path:
    """Run one side of a target, capture it, and return where.

    Args:
        source: a Python file or a checkpoint folder.
        side: `"reference"` or `"candidate"`.
        output: a folder, or a name that ends in `.h5` for a run of one rank.
        nproc: as for `check_target`, like the next six.
        device: of the candidate.
        dtype: of the candidate; with `noise`, which the reference's noise is that of.
        tp: of the candidate.
        include: globs.
        exclude: globs.
        timeout_s: seconds that the run may take.
        overwrite: replace a capture of that name once the new one is complete.
        proof: run without hooks too, and compare.
        recipe: what the device may round, a name as of `check`; default the target's own, else both are
            allowed. Recorded; with `noise`, what the noise is of.
        noise: store with the reference what rounding carries to each tensor of a candidate, measured by so
            many stochastic runs (8 to 16), so that `compare` can judge.
        plant: a fault to plant in the candidate first, as `validator.faults.parse` reads it.

    Raises:
        ValidatorError: the side can't be run or captured.
    """
    if side == "reference" and (nproc, device, tp) != (1, None, None):
        raise UsageError(
            "the reference runs as it is, in one process: leave out --nproc, --device and --tp, "
            f"or capture {source}:candidate"
        )
    if side == "reference" and dtype is not None and noise is None:
        raise UsageError(
            f"the reference runs as it is: leave out --dtype, or capture {source}:candidate. With --noise it "
            "says which candidate's noise to measure"
        )
    if side == "reference" and plant is not None:
        raise UsageError(
            f"--plant {plant} would spoil the reference, which is trusted: write {source}:candidate"
        )
    if noise is not None:
        _check_noise(source, side, noise)
    declared = _recipe(recipe)
    run = SideRun(
        source=source,
        side=side,
        output=output,
        nproc=nproc,
        device=device,
        dtype=dtype,
        tp=tp,
        include=include,
        exclude=exclude,
        overwrite=overwrite,
        proof=proof,
        noise=noise,
        timeout_s=timeout_s,
        plant=plant,
    )
    target = run.load()
    declared = declared or target.recipe
    capture_side(replace(run, recipe=None if declared is None else declared.name), target)
    return output


def check(
    *,
    reference: nn.Module,
    candidate: nn.Module | str | os.PathLike[str],
    inputs: Mapping[str, Any] | None = None,
    recipe: Recipe | str | None = None,
    names: Mapping[str, str] | None = None,
    layout: Mapping[str, str] | None = None,
    mesh: Mapping[str, int] | None = None,
) -> Result:
    """Judge a candidate, a model or a stored capture, against a reference model.

    Args:
        reference: the trusted model. It is put in eval mode.
        candidate: a model in this process, or the path of a capture.
        inputs: keyword arguments of both models. Default: those that the capture holds.
        recipe: what the device may round; None allows `fused` and `eager`.
        names: candidate fqn pattern to reference fqn pattern.
        layout: candidate fqn pattern to a line such as `"output=b s h[tp]"`; see `validator.sharding.layout`.
        mesh: sizes of the axes that the candidate's ranks stand on, such as `{"dp": 2, "tp": 2}`.

    Raises:
        ValidatorError: the two sides can't be compared.
    """
    declared = _recipe(recipe) if isinstance(recipe, str) else recipe
    reference = reference.eval()
    with tempfile.TemporaryDirectory(prefix="validator-") as scratch:
        if isinstance(candidate, nn.Module):
            if inputs is None:
                raise UsageError(
                    "check() of two models needs inputs=: the keyword arguments to feed both with"
                )
            path, given, model = Path(scratch) / "candidate.h5", dict(inputs), candidate.eval()
            capture_run(lambda: model(**copied(given)), model, path, inputs=given)
            cand = open_capture(path)
        else:
            cand = open_capture(candidate)
        feeds = [dict(inputs)] if inputs is not None else _recorded_inputs(cand)

        def run(model: nn.Module) -> list[Any]:
            return [model(**copied(one)) for one in feeds]

        ref_path = Path(scratch) / "reference.h5"
        capture_run(lambda: run(reference), reference, ref_path, proof=False)
        return _judged(
            reference=reference,
            ref=open_capture(ref_path),
            cand=cand,
            run=run,
            recipe=declared,
            names=names or {},
            layout=layout or {},
            mesh=mesh,
            about={"candidate": {"source": str(cand.path)}} if not isinstance(candidate, nn.Module) else {},
            progress=lambda stage, done, total: None,
        )


def compare(*, ref: str | os.PathLike[str], cand: str | os.PathLike[str]) -> ComparisonResult:
    """Compare two captures tensor by tensor, without a model.

    Args:
        ref: path of the reference's capture.
        cand: path of the candidate's, sharded or not.

    Returns:
        Figures of every tensor that both have. `aligned` where every element is the reference's, rounded
        once at most, else `inconclusive`: only a model can tell what rounding explains, see `check`. Where
        the reference's capture holds noise, each tensor is judged by it: `aligned` or `divergent`, and
        `inconclusive` where something that differs has none.

    Raises:
        ValidatorError: the two can't be compared.
    """
    return ComparisonResult(compare_captures(ref=open_capture(ref), cand=open_capture(cand)))


def _judged(
    *,
    reference: nn.Module,
    ref: Capture,
    cand: Capture,
    run: Callable[[nn.Module], Any],
    recipe: Recipe | None,
    names: Mapping[str, str],
    layout: Mapping[str, str],
    mesh: Mapping[str, int] | None,
    about: Mapping[str, Any],
    progress: Progress,
) -> Result:
    planted = () if cand.manifest.planted is None else (cand.manifest.planted,)
    ours = ref.rank(0)
    real = real_positions(ours)
    trace = build_trace(cand=_ranks(cand), ref=ours, names=names, layout=layout, mesh=mesh)
    if not trace.calls:
        raise MismatchError(
            f"{cand.path} and the reference share modules, but no call of one lines up with a call of the "
            "other; "
            "were both run on the same inputs, in the same way?"
        )
    outcome = run_checks(
        reference=reference,
        trace=trace,
        run=run,
        policy=policy_of(recipe),
        real=real,
        progress=lambda done, total: progress("judging", done, total),
    )
    outcome = replace(
        outcome,
        distribution=end_to_end(ref=ours, trace=trace, real=real),
        notes=(*planted, *outcome.notes),
        run={
            **about,
            **{
                side: {**about.get(side, {}), **_metadata(captured.manifest)}
                for side, captured in (("reference", ref), ("candidate", cand))
            },
        },
    )
    return Result(roll_up(outcome, reasons=_proof_reasons(cand.manifest)))


def _ranks(cand: Capture) -> list[RankCapture]:
    expected = cand.manifest.world_size
    missing = [rank for rank in range(expected) if rank not in cand.ranks]
    if missing:
        raise CaptureError(
            f"{cand.path} holds {len(cand.ranks)} of {expected} ranks; "
            f"rank {', '.join(map(str, missing))} is missing. "
            "Copy the other ranks' files into the folder, or capture all ranks."
        )
    return [cand.rank(rank) for rank in cand.ranks]


def _metadata(manifest: Manifest) -> Mapping[str, Any]:
    proof = manifest.proof
    return {
        **manifest.run,
        "recipe": manifest.recipe,
        "proof": {"status": proof.status, "reason": proof.reason},
    }


def _proof_reasons(manifest: Manifest) -> tuple[str, ...]:
    if manifest.proof.status is ProofStatus.CHANGED:
        return (f"looking changed the candidate's run: {manifest.proof.reason}",)
    return ()


def _recorded_inputs(cand: Capture) -> list[dict[str, Any]]:
    """Return the keyword arguments of the model's own calls in a capture."""
    calls = [call for call in cand.rank(cand.ranks[0]).calls if not call.module]
    if not calls:
        raise CaptureError(
            f"{cand.path} does not hold the model's own call, so its inputs are not known: give inputs="
        )
    nested = [path for call in calls for path in call.inputs if "/" in path]
    if nested:
        raise CaptureError(
            f"{cand.path}: the model's input {nested[0]!r} is nested and can't be rebuilt from the "
            "capture: give inputs="
        )
    return [
        {path: value.read() if isinstance(value, TensorRef) else value for path, value in call.inputs.items()}
        for call in calls
    ]


def _check_noise(source: str, side: str, noise: int) -> None:
    if side != "reference":
        raise UsageError(
            f"--noise {noise} belongs to the reference, which a candidate is compared with: "
            f"write {source}:reference"
        )
    if noise < FEWEST_RUNS:
        raise UsageError(
            f"--noise {noise} is too few stochastic runs to judge by: give {FEWEST_RUNS} or more, such as 12"
        )


def _recipe(name: str | None) -> Recipe | None:
    if name is None:
        return None
    if name not in RECIPES:
        raise UsageError(f"--recipe {name!r} is not known; there are {', '.join(RECIPES)}")
    return RECIPES[name]


def _refuse_with_capture(**options: Any) -> None:
    given = [f"--{name}" for name, value in options.items() if value not in (None, 1, ())]
    if given:
        raise UsageError(
            f"{', '.join(given)} can't be used with --capture: it says how to run the candidate, "
            "which ran already"
        )


def _made(folder: Path) -> Path:
    taken = [name for name in ("reference.h5", "candidate") if (folder / name).exists()]
    if taken:
        raise UsageError(f"--keep {folder} holds {taken[0]} already; name a new folder, or remove it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--keep {folder} can't be made: {error.strerror}") from None
    return folder
