"""What users call: capture a run, and check one against the reference."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from validator.capturing.compiled import require_uncompiled
from validator.capturing.reader import Capture, open_capture
from validator.capturing.records import TensorRef
from validator.capturing.session import capture, capture_run
from validator.comparing.comparison import compare_captures
from validator.errors import CaptureError, UsageError
from validator.judging import judged
from validator.judging_thin import dtype_of, is_thin, noise_source, require_single_calls
from validator.numerics.recipes import Recipe, recipe_named
from validator.prefilling import has_steps
from validator.report.pairs import ComparisonResult
from validator.report.result import Result
from validator.runs import copied
from validator.target_bisect import bisect_target
from validator.target_capture import capture_target
from validator.target_check import check_target

__all__ = ["bisect_target", "capture", "capture_target", "check", "check_target", "compare", "open_capture"]


def check(
    *,
    reference: nn.Module,
    candidate: nn.Module | str | os.PathLike[str],
    inputs: Mapping[str, Any] | None = None,
    recipe: Recipe | str | None = None,
    names: Mapping[str, str] | None = None,
    layout: Mapping[str, str] | None = None,
    mesh: Mapping[str, int] | None = None,
    profiles: bool = False,
) -> Result:
    """Judge a candidate, a model or a stored capture, against a reference model.

    Args:
        reference: the trusted model. It is put in eval mode.
        candidate: a model in this process, or the path of a capture.
        inputs: keyword arguments of both models. Default: those that the capture holds. Of a capture whose
            calls continue one another (a prefill and decode steps), those of one prefill of all its tokens.
        recipe: what the device may round; None allows `fused` and `eager`.
        names: candidate fqn pattern to reference fqn pattern.
        layout: candidate fqn pattern to a line such as `"output=b s h[tp]"`; see `validator.sharding.layout`.
        mesh: sizes of the axes that the candidate's ranks stand on, such as `{"dp": 2, "tp": 2}`.
        profiles: whether to keep what each edge looks like, for `Result.write_html`.

    Raises:
        ValidatorError: the two sides can't be compared.
    """
    declared = recipe_named(recipe) if isinstance(recipe, str) else recipe
    require_uncompiled(reference, "the reference")
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
        is_stepped = inputs is None and has_steps([cand.rank(rank) for rank in cand.ranks])
        feeds = [] if is_stepped else [dict(inputs)] if inputs is not None else _recorded_inputs(cand)

        def run(model: nn.Module) -> list[Any]:
            return [model(**copied(one)) for one in feeds]

        ref_path = Path(scratch) / "reference.h5"
        noise = None
        if is_thin(cand.manifest):
            require_single_calls(cand)
            noise = noise_source(
                model=reference, run=lambda: run(reference), recipe=declared, dtype=dtype_of(cand)
            )
        if not is_stepped:  # the caches of steps are not in a capture: the reference does them all at once
            capture_run(lambda: run(reference), reference, ref_path, proof=False, noise=noise)
        return judged(
            reference=reference,
            ref=None if is_stepped else open_capture(ref_path),
            cand=cand,
            run=run,
            recipe=declared,
            names=names or {},
            layout=layout or {},
            mesh=mesh,
            about={"candidate": {"source": str(cand.path)}} if not isinstance(candidate, nn.Module) else {},
            progress=lambda stage, done, total: None,
            profiles=profiles,
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
    thin = [
        path
        for call in calls
        for path, value in call.inputs.items()
        if isinstance(value, TensorRef) and value.meta.one_in != 1
    ]
    if thin:
        raise CaptureError(
            f"{cand.path} holds only a part of the model's input {thin[0]!r} (level "
            f"{cand.manifest.level.value}), so the reference can't be fed from it: give inputs="
        )
    return [
        {path: value.read() if isinstance(value, TensorRef) else value for path, value in call.inputs.items()}
        for call in calls
    ]
