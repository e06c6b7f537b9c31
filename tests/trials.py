"""One trial of the detector: a candidate, healthy or with a planted fault, judged by the public `check`."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import validator
from tests.models import KERNELS, Setup, checkpoint, inputs, load_candidate, load_reference
from tests.planted import FAULTS, LAYERS, Expectation
from tests.ranks import RankPool
from validator.capturing.session import capture_run
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
    """

    setup: Setup
    fault: str | None = None
    layer: int = LAYERS[0]

    @property
    def label(self) -> str:
        """A name that no other trial has."""
        planted = "" if self.fault is None else f"{self.fault}-layer{self.layer}-"
        return planted + self.setup.label

    def candidate(self, path: Path) -> Any:
        """Load the candidate and spoil it; with tensor parallelism to be called on every rank."""
        model = load_candidate(self.setup, path)
        if self.fault is not None:
            _FAULTS[self.fault].planned(self.layer).plant(model)
        return model


def trial_of(
    fault: Expectation,
    *,
    layer: int = LAYERS[0],
    family: str | None = None,
    dtype: str = "bfloat16",
    cand_kernel: str | None = None,
    seed: int = 0,
) -> Trial:
    """Return a trial of a fault, by default on its first family and that family's first kernel."""
    family = family or fault.families[0]
    setup = Setup(
        family=family,
        dtype=dtype,
        cand_kernel=cand_kernel or KERNELS[family][0],
        tp=fault.tp,
        seed=seed,
        stimulus=fault.stimulus,
        biases=fault.biases,
    )
    return Trial(setup=setup, fault=fault.fault, layer=layer)


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
    if setup.tp == 1:
        return validator.check(reference=reference, candidate=trial.candidate(path), inputs=given)
    captured = folder / "candidate"
    try:
        pool(setup.tp).run(_capture, trial, path, captured)
        return validator.check(reference=reference, candidate=captured, inputs=given)
    finally:
        shutil.rmtree(captured, ignore_errors=True)


def logits(trial: Trial, folder: Path, pool: Callable[[int], RankPool]) -> tuple[Tensor, Tensor]:
    """Return the logits of reference and candidate at real positions: `[positions, vocabulary]` float32."""
    setup = trial.setup
    path = checkpoint(setup, folder)
    given = inputs(setup)
    real = given["attention_mask"].to(torch.bool)
    with torch.no_grad():
        ref = load_reference(setup, path)(**copied(given)).logits
    if setup.tp == 1:
        cand = _candidate_logits(0, 1, trial, path)
    else:
        cand = pool(setup.tp).run(_candidate_logits, trial, path)[0]
    return ref.float()[real], cand.float()[real]


def _candidate_logits(rank: int, world_size: int, trial: Trial, path: Path) -> Tensor:
    with torch.no_grad():
        found: Tensor = trial.candidate(path)(**inputs(trial.setup)).logits
    return found


def _capture(rank: int, world_size: int, trial: Trial, path: Path, output: Path) -> None:
    model, given = trial.candidate(path), inputs(trial.setup)
    capture_run(lambda: model(**copied(given)), model, output, inputs=given, overwrite=True)
