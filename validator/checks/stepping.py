"""In which step of a run something is wrong first, where several steps are judged as one call.

Shape legend: * = the edge's shape; S = tokens of all steps.
"""

from dataclasses import replace

import torch
from torch import Tensor

from validator.align.traces import LogicalTensor, StepTokens, Trace, TraceCall
from validator.checks.findings import Finding

__all__ = ["earlier_keys", "first_step", "of_later_steps", "steps_of", "told_by_step"]


def steps_of(call: TraceCall, trace: Trace) -> tuple[StepTokens, ...]:
    """Return the steps that a call puts end to end; nothing where the model was called once."""
    module, n = call.root
    return () if module else trace.steps.get(n, ())


def first_step(call: TraceCall, outside: Tensor, cand: LogicalTensor, trace: Trace) -> StepTokens | None:
    """Return the step that computed the first guilty element of an edge, or None where that is unknown.

    Args:
        call: whose edge it is.
        outside: `[n, dims]` indices of the guilty elements.
        cand: the candidate's edge.
        trace: the candidate's run.
    """
    steps = steps_of(call, trace)
    if not steps or not len(outside):
        return None
    tokens, kept = steps[-1].stop, [position for step in steps for position in step.kept]
    for dim, meaning in enumerate(cand.dims):
        size = cand.data.shape[dim]
        if meaning == "token" and size % tokens == 0:
            return _holding(steps, int((outside[:, dim] % tokens).min()))
        if meaning == "" and dim == 1 and size == len(kept):
            return _holding(steps, kept[int(outside[:, dim].min())])
    return None


def of_later_steps(call: TraceCall, cand: LogicalTensor, trace: Trace) -> Tensor | None:
    """Return `[*]` boolean, the elements of an edge that steps after the first computed; None if unknown.

    Args:
        call: whose edge it is.
        cand: the candidate's edge.
        trace: the candidate's run.
    """
    steps = steps_of(call, trace)
    if len(steps) < 2 or "token" not in cand.dims:
        return None
    dim, tokens = cand.dims.index("token"), steps[-1].stop
    size = cand.data.shape[dim]
    if size % tokens:
        return None
    is_later = torch.arange(size) % tokens >= steps[0].stop
    return is_later.reshape([-1 if d == dim else 1 for d in range(len(cand.dims))]).expand(cand.data.shape)


def earlier_keys(call: TraceCall, trace: Trace) -> Tensor | None:
    """Return `[S, S]` boolean, the keys of earlier steps than each query's; None for a single step."""
    steps = steps_of(call, trace)
    if len(steps) < 2:
        return None
    start = torch.tensor([step.start for step in steps for _ in range(step.stop - step.start)])
    return torch.arange(steps[-1].stop) < start[:, None]


def told_by_step(finding: Finding) -> Finding:
    """Return a finding whose `call` is the candidate's, the step in which its first guilty element is.

    Where that is not the first step, the one that finds no cache is right: a quantised, stale or misplaced
    cache makes such findings, and a kernel for single tokens.
    """
    step = finding.step
    if step is None:
        return finding
    is_later = step.number > 1
    hint = ", while step 1, which goes on from no cache, is right" if is_later else ""
    return replace(finding, call=step.call, summary=f"{finding.summary}; first in {step}{hint}")


def _holding(steps: tuple[StepTokens, ...], position: int) -> StepTokens | None:
    return next((step for step in steps if step.start <= position < step.stop), None)
