"""The verdict on a choice (`topk`, `argmax`): by its margin, since near ties go either way in a healthy run.

Shape legend: * = the shape of the choice.
"""

import math

import torch

from validator.align.traces import LogicalTensor
from validator.checks.findings import Arm, Evidence
from validator.checks.judge import Assessment, Band, Bench
from validator.checks.module_code import CodeChoice, CodeEdge, Spread

__all__ = ["judge_choice"]


def judge_choice(choice: CodeChoice, spread: Spread, bench: Bench) -> tuple[CodeEdge, Assessment]:
    """Judge a choice: what the candidate chose must be as good as the best, but for rounding.

    Args:
        choice: the values at both choices.
        spread: of the values at the candidate's choice, by stochastic runs.
        bench: what is common to the run.

    Returns:
        The choice as an edge, and what the rule says of it.
    """
    loss = (choice.best - choice.chosen).abs()
    # Two values are compared, each with its own noise.
    allowed = bench.multiplier(Band(is_measured=True)) * math.sqrt(2) * spread.sigma
    outside = (loss > allowed).nonzero()
    ratio = torch.where(loss > 0, loss / allowed, torch.zeros_like(loss))
    worst = tuple(outside[0].tolist()) if len(outside) else None
    evidence = Evidence(
        max_over_band=float(ratio.max()) if ratio.numel() else 0.0,
        worst_index=worst,
        reference=None if worst is None else float(choice.best[worst]),
        candidate=None if worst is None else float(choice.chosen[worst]),
        outside=len(outside),
        elements=loss.numel(),
        shape=tuple(loss.shape),
    )
    edge = CodeEdge(
        key=choice.key,
        into=None,
        path=choice.op,
        order=choice.order,
        exact=choice.best,
        depth=2,
        sigma=None,
        bound=None,
        cand=LogicalTensor(data=choice.chosen, parts=(), dims=("",) * loss.dim()),
    )
    return edge, Assessment(arm=Arm.MAX if len(outside) else None, evidence=evidence, outside=outside)
