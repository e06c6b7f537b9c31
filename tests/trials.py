"""One trial of the detector: a candidate, healthy or with a planted fault, judged by the public `check`."""

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import validator
from tests.models import KERNELS, Setup, checkpoint, inputs, load_candidate, load_reference, run
from tests.planted import FAULTS, LAYERS, Expectation
from tests.ranks import RankPool
from tests.variations import VARIATIONS
from validator.capturing.session import capture_run
from validator.numerics.recipes import Recipe
from validator.report.result import Result
from validator.runs import copied

__all__ = ["Trial", "judge", "logits", "trial_of"]

_FAULTS = {fault.fault: fault for fault in FAULTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What is judged.

    Attributes:
        setup: the pair of models.
        fault: `Expectation.fault` of what is planted in the candidate, or None for a healthy one.
        layer: the layer that it is planted in.
        variation: name of the healthy variation that the candidate is, or None.
    """

    setup: Setup
    fault: str | None = None
    variation: str | None = None
    layer: int = LAYERS[0]

    @property
    def label(self) -> str:
        """A name that no other trial has."""
        planted = "" if self.fault is None else f"{self.fault}-layer{self.layer}-"
        varied = "" if self.variation is None else f"{self.variation}-"
        return planted + varied + self.setup.label

    def candidate(self, path: Path) -> Any:
        """Load the candidate and spoil it; with tensor parallelism to be called on every rank."""
        model = load_candidate(self.setup, path)
        if self.fault is not None:
            _FAULTS[self.fault].planned(self.layer).plant(model)
        if self.variation is not None:
            VARIATIONS[self.variation].apply(model)
        return model

    @property
    def recipe(self) -> Recipe | str | None:
        """What is declared of the candidate's arithmetic."""
        return None if self.variation is None else VARIATIONS[self.variation].recipe


def trial_of(
    fault: Expectation,
    *,
    layer: int | None = None,
    family: str | None = None,
    dtype: str | None = None,
    cand_kernel: str | None = None,
    seed: int = 0,
) -> Trial:
    """Return a trial of a fault, by default in its first layer, family and format."""
    family = family or fault.families[0]
    setup = Setup(
        family=family,
        dtype=dtype or fault.dtypes[0],
        cand_kernel=cand_kernel or KERNELS[family][0],
        ref_experts=fault.experts,
        cand_experts=fault.experts,
        tp=fault.tp,
        seed=seed,
        stimulus=fault.stimulus,
        biases=fault.biases,
        decode=fault.decode,
    )
    return Trial(setup=setup, fault=fault.fault, layer=fault.layers[0] if layer is None else layer)


def judge(trial: Trial, folder: Path, pool: Callable[[int], RankPool]) -> Result:
    """Run a trial.

    Args:
        trial: what to judge.
        folder: for checkpoints, kept, and captures, removed.
        pool: gives the ranks of a world size.
    """
    setup = trial.setup
    path = checkpoint(setup, folder)
    reference, given = load_reference(setup, path), inputs(setup)
    if setup.decode and setup.tp == 1:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            captured = Path(scratch) / "candidate.h5"
            candidate = trial.candidate(path)
            capture_run(lambda: run(setup, candidate), candidate, captured)
            return validator.check(reference=reference, candidate=captured, recipe=trial.recipe)
    if setup.tp == 1:
        return validator.check(
            reference=reference, candidate=trial.candidate(path), inputs=given, recipe=trial.recipe
        )
    captured = folder / "candidate"
    try:
        pool(setup.tp).run(_capture, trial, path, captured)
        return validator.check(reference=reference, candidate=captured, inputs=given, recipe=trial.recipe)
    finally:
        shutil.rmtree(captured, ignore_errors=True)


def logits(trial: Trial, folder: Path, pool: Callable[[int], RankPool]) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits at real positions, `[positions, vocabulary]` float32 each.

    Returns:
        Those of the reference, of the candidate, and of the reference's code in the candidate's dtype.
    """
    setup = trial.setup
    path = checkpoint(setup, folder)
    given = inputs(setup)
    real = given["attention_mask"].to(torch.bool)
    plain = replace(setup, cand_kernel=setup.ref_kernel, cand_experts=setup.ref_experts, tp=1)
    with torch.no_grad():
        ref = run(setup, load_reference(setup, path))
        control = run(plain, load_candidate(plain, path))
    if setup.tp == 1:
        cand = _candidate_logits(0, 1, trial, path)
    else:
        cand = pool(setup.tp).run(_candidate_logits, trial, path)[0]
    return ref.float()[real], cand.float()[real], control.float()[real]


def _candidate_logits(rank: int, world_size: int, trial: Trial, path: Path) -> Tensor:
    with torch.no_grad():
        return run(trial.setup, trial.candidate(path))


def _capture(rank: int, world_size: int, trial: Trial, path: Path, output: Path) -> None:
    model, given = trial.candidate(path), inputs(trial.setup)
    capture_run(lambda: model(**copied(given)), model, output, inputs=given, overwrite=True)
