"""Be one rank: build the candidate, run each variant of a job, and capture it."""

import contextlib
from typing import Any

from torch import nn

from validator.capturing.hosts import exchange
from validator.capturing.session import capture_run
from validator.determinism.batches import NotBatchedError
from validator.determinism.controls import JUDGED, planted, site_of
from validator.determinism.feeding import feed_variant
from validator.determinism.jobs import Job
from validator.determinism.uninitialised import FillUninitialised
from validator.determinism.variants import Variant
from validator.target import Target

__all__ = ["run_on_rank"]


def run_on_rank(rank: int, world_size: int, job: Job) -> None:
    """Run all variants of a job on one of its ranks.

    Raises:
        ValidatorError: the candidate fails; the variants that follow are left.
    """
    target = job.load()
    inputs = target.inputs()
    model: nn.Module | None = None
    site = job.site
    for variant in job.variants:
        with contextlib.nullcontext() if variant.fill is None else FillUninitialised(variant.fill):
            if model is None or variant.is_rebuilt:
                model = None
                model = _built(target, job, rank)
            if site is None and not variant.is_filled:
                site = _site(target, inputs, model, job, rank)
            try:
                _capture(target, inputs, model, variant, job, site=site, rank=rank)
            except NotBatchedError as error:  # the same on every rank
                if rank == 0:
                    job.note_why_not(variant, str(error))


def _built(target: Target, job: Job, rank: int) -> nn.Module:
    """Build the candidate, and note when every rank has."""
    model = target.candidate()
    exchange(None)  # no rank may run, and fail, before
    if rank == 0:
        job.note_built()
    return model


def _site(target: Target, inputs: dict[str, Any], model: nn.Module, job: Job, rank: int) -> str | None:
    """Choose the module for controls, and note it; None where there is none.

    Stages of a pipeline have modules of their own. The last rank that has one decides, since the control for
    cards spoils all ranks but the first.
    """
    first = next((variant for variant in job.variants if not variant.is_filled), job.variants[0])
    found = exchange(site_of(model, lambda: feed_variant(target, inputs, model, first, "candidate")))
    site: str | None = next((name for name in reversed(found) if name is not None), None)
    if rank == 0 and site is not None:
        job.note_site(site)
    return site


def _capture(
    target: Target,
    inputs: dict[str, Any],
    model: nn.Module,
    variant: Variant,
    job: Job,
    *,
    site: str | None,
    rank: int,
) -> None:
    if variant.control is not None and site is None:
        raise NotBatchedError(
            "no module of the candidate has a matrix and returns values for each token, so that there is "
            "nowhere to plant a control"
        )
    plant = (
        contextlib.nullcontext()
        if variant.control is None or site is None
        else planted(model, site, variant.control, rank=rank, sequences=len(variant.rows or (0,)))
    )
    with plant:
        capture_run(
            lambda: feed_variant(target, inputs, model, variant, "candidate"),
            model,
            job.folder / variant.name,
            proof=False,
            include=variant.include or (None if variant.control not in JUDGED or site is None else (site,)),
            operators=variant.operators or None,
            planted=None if variant.control is None else f"control: {variant.control} at {site}",
            inputs=inputs,
        )
