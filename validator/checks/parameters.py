"""The parameter check: the candidate's parameters and buffers against the reference's, rounded once."""

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from validator.align.traces import Edge, LogicalTensor, Part, Trace, View
from validator.checks.findings import Arm, Check, Evidence, Finding, Judgement, Signature, Unchecked, Verdict
from validator.checks.judge import judge_equal
from validator.checks.layouts import parameter_layout
from validator.checks.places import judged_region, places, single_rank
from validator.checks.requantised import requantised, told
from validator.checks.signatures import parameter_signature
from validator.checks.stored_rows import differing_rows, rounded_to
from validator.checks.summary import summarise
from validator.errors import CaptureError, ValidatorError
from validator.numerics.formats import format_of
from validator.numerics.ulp import ulp

__all__ = ["check_parameters"]

COMPUTED_ULP = 16.0
"""How far a buffer that each side computes for itself may differ, in float32 ulp, before it is stored.

A rotary frequency is `base^-(2i/d)`: the exponent's rounding is amplified by `ln(base)`, 14 for a base
of 1e6, and `pow` itself is good to an ulp or two on every device.
"""


def check_parameters(
    *, reference: nn.Module, trace: Trace, view: View, written: Container[str] = ()
) -> tuple[list[Judgement], list[Finding], list[Unchecked]]:
    """Compare every parameter and buffer of one view, bit by bit, with the reference's rounded to its format.

    Args:
        reference: the trusted model.
        trace: the candidate's run in the reference's names.
        view: whose copies of replicated tensors to take.
        written: names of buffers that the code writes as it runs (running statistics, caches): what they hold
            was computed, and is judged where it is used.

    Buffers that are not in the checkpoint are computed by each side, and may differ by `COMPUTED_ULP`. Of
    parameters whose values are not stored, the hashes of their rows are compared.

    Returns:
        Judgements, findings and what could not be compared, in the order of the reference's parameters.
        Nothing vouches for what could not be compared unless a check judged its module.
    """
    judgements: list[Judgement] = []
    findings: list[Finding] = []
    unchecked: list[Unchecked] = []
    stored = set(reference.state_dict(keep_vars=True))
    tensors: dict[str, Tensor] = {}
    tensors |= dict(reference.named_parameters(remove_duplicate=False))
    tensors |= dict(reference.named_buffers(remove_duplicate=False))
    compared = {id(tensor) for name, tensor in tensors.items() if name in trace.parameters}
    for position, (name, tensor) in enumerate(_in_module_order(reference, tensors).items()):
        edge = trace.parameters.get(name)
        module, _, leaf = name.rpartition(".")
        result: _Comparison | str | None
        if name in written:
            result = None
        elif edge is not None:
            result = _compare(name, tensors, edge, trace, view, is_computed=name not in stored)
        elif name not in trace.unmatched_parameters[0]:
            result = f"the candidate's {leaf} could not be put together"
        elif name not in stored or id(tensor) in compared:  # a tied one is compared under another name
            result = None
        else:
            result = _absent(name, tensor, trace)
        if result is None:
            continue
        if isinstance(result, str):
            unchecked.append(Unchecked(module=module, why=result))
            continue
        judgement = Judgement(
            module=module,
            candidate_module=trace.candidate_parameters.get(name, name).rpartition(".")[0],
            check=Check.PARAMETER,
            path=leaf,
            verdict=result.verdict if result.is_off else Verdict.ALIGNED,
            order=position - len(tensors),
            evidence=result.evidence,
            rank=result.rank,
            arm=Arm.EXACT if result.is_off else None,
            dtype="" if edge is None else edge.dtype,
        )
        judgements.append(judgement)
        if result.is_off:
            findings.append(_finding(judgement, result))
    return judgements, findings, unchecked


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    """What was said of one parameter; `summary` where the usual sentence does not fit."""

    is_off: bool
    evidence: Evidence
    rank: int | None = None
    where: Mapping[str, Any] = field(default_factory=dict)
    signature: Signature | None = None
    summary: str | None = None
    verdict: Verdict = Verdict.DIVERGENT


def _compare(
    name: str, tensors: dict[str, Tensor], edge: Edge, trace: Trace, view: View, *, is_computed: bool
) -> _Comparison | str:
    """Compare the values, or what stands in for them; return why that can't be done."""
    leaf = name.rpartition(".")[2]
    reference = tensors[name].detach()
    if tuple(reference.shape) != edge.shape:
        return f"{leaf} is {list(edge.shape)}, the reference's {list(reference.shape)}"
    try:
        logical = edge.read(view)
    except CaptureError as error:
        if is_computed or edge.row_hashes is None:
            return f"{leaf} is not compared: {error}"
        return _compare_rows(name, tensors[name], edge, edge.row_hashes(view), trace, view)
    except ValidatorError as error:
        return f"{leaf} is not compared: {error}"
    exact = rounded_to(reference, logical.data.dtype)
    judged = judged_region(logical, None, view, trace.world_size)
    assessment = judge_equal(exact=exact, cand=logical.data, judged=judged, dims=logical.dims)
    if assessment.arm is None or (is_computed and _is_close(reference, logical.data)):
        return _Comparison(is_off=False, evidence=assessment.evidence)
    own = requantised(tensors[name], edge, view)
    if own is not None and own.fmt == trace.requantised:
        return _Comparison(is_off=False, evidence=assessment.evidence)
    if own is not None and own.is_whole:
        return _Comparison(
            is_off=True,
            evidence=assessment.evidence,
            summary=told(name.rpartition(".")[0], leaf, own, trace.requantised),
            verdict=Verdict.UNDECLARED_PRECISION,
        )
    return _Comparison(
        is_off=True,
        evidence=assessment.evidence,
        rank=single_rank(logical, assessment.outside, view, trace.world_size),
        where=places(assessment.outside, logical),
        signature=parameter_signature(
            reference=exact.to(torch.float64),
            candidate=logical.data.to(torch.float64),
            others=lambda: _others(tensors, name, logical.data),
            rows=logical.dims[0] if logical.dims else "channel",
        )
        or parameter_layout(reference=exact.to(torch.float64), candidate=logical, world_size=trace.world_size)
        or _fused_layout(name, tensors, trace, view),
    )


def _fused_layout(name: str, tensors: dict[str, Tensor], trace: Trace, view: View) -> Signature | None:
    """Look for the layout of a parameter that the candidate holds fused with others.

    Rows in another order than they are taken for are those of several of the reference's parameters.
    """
    own = trace.candidate_parameters.get(name)
    parts = [part for part, theirs in trace.candidate_parameters.items() if theirs == own and part in tensors]
    if own is None or len(parts) < 2 or not tensors[name].dim():
        return None
    try:
        held = [trace.parameters[part].read(view).data for part in parts]
    except ValidatorError:
        return None
    references = [rounded_to(tensors[part].detach(), held[0].dtype).to(torch.float64) for part in parts]
    if any(
        a.shape != b.shape or a.shape[1:] != held[0].shape[1:] for a, b in zip(references, held, strict=True)
    ):
        return None
    first = trace.parameters[parts[0]]
    # The ranks' boxes of the first part say how many there are.
    fused = LogicalTensor(data=torch.cat(held), parts=first.parts, dims=first.dims)
    return parameter_layout(reference=torch.cat(references), candidate=fused, world_size=trace.world_size)


def _compare_rows(
    name: str, reference: Tensor, edge: Edge, hashes: Sequence[str], trace: Trace, view: View
) -> _Comparison | str:
    """Compare the hashes of rows whose values are not stored; return why that can't be done."""
    try:
        differing = differing_rows(reference, edge.dtype, hashes)
    except CaptureError as error:
        return f"{name.rpartition('.')[2]} is not compared: {error}"
    holders = {row: {part.rank for part in edge.parts if _has_row(part, row)} for row in differing}
    if len(view.ranks) < trace.world_size:
        differing = [row for row in differing if holders[row] & set(view.ranks)]
    evidence = Evidence(shape=edge.shape, dims=edge.dims)
    if not differing:
        return _Comparison(is_off=False, evidence=evidence)
    ranks = set[int]().union(*(holders[row] for row in differing))
    rank = ranks.pop() if len(ranks) == 1 and trace.world_size > 1 else None
    module, _, leaf = name.rpartition(".")
    on_rank = "" if rank is None else f" on rank {rank}"
    shown = ", ".join(map(str, differing[:6]))
    shown += f" and {len(differing) - 6} more" if len(differing) > 6 else ""
    return _Comparison(
        is_off=True,
        evidence=evidence,
        rank=rank,
        summary=(
            f"{module or 'the model'}: parameter {leaf}{on_rank} differs in {len(differing)} of "
            f"{len(hashes)} rows ({shown}); their values are not stored, only their hashes"
        ),
    )


def _absent(name: str, tensor: Tensor, trace: Trace) -> _Comparison | str | None:
    """Say what it means that the candidate has no parameter of this name.

    Where it may have another in its place (a fused one, say), what its module computes is judged if it ran.
    """
    module, _, leaf = name.rpartition(".")
    if name in trace.missing_parameters and isinstance(tensor, nn.Parameter):
        return _Comparison(
            is_off=True,
            evidence=Evidence(shape=tuple(tensor.shape)),
            summary=f"{module or 'the model'}: parameter {leaf}: the candidate has no such parameter",
        )
    if module in trace.unmatched_reference or module in trace.left_out:
        return None
    if any(fired == module for fired, _ in trace.calls):
        return None
    return f"{leaf} is not compared: the candidate has none under this name, and the module did not run"


def _finding(judgement: Judgement, result: _Comparison) -> Finding:
    return judgement.found(
        where=result.where,
        signature=result.signature,
        summary=result.summary
        or summarise(
            module=judgement.module,
            check=Check.PARAMETER,
            into=None,
            path=judgement.path,
            rank=result.rank,
            arm=Arm.EXACT,
            recipe=None,
            evidence=result.evidence,
            signature=result.signature,
            where=result.where,
        ),
    )


def _has_row(part: Part, row: int) -> bool:
    return not part.box or part.box[0][0] <= row < part.box[0][1]


def _in_module_order(reference: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Order names as the modules stand in the model, each module's parameters before its buffers."""
    place = {fqn: i for i, (fqn, _) in enumerate(reference.named_modules(remove_duplicate=False))}
    return dict(sorted(tensors.items(), key=lambda item: place.get(item[0].rpartition(".")[0], len(place))))


def _is_close(reference: Tensor, cand: Tensor) -> bool:
    """Tell whether both may be roundings, to the candidate's format, of one value computed in float32."""
    if not (cand.is_floating_point() and reference.is_floating_point()):
        return False
    exact = reference.to(torch.float64)
    allowed = COMPUTED_ULP * ulp(exact, format_of(torch.float32)) + ulp(exact, format_of(cand.dtype)) / 2
    error = (cand.to(torch.float64) - exact).abs()
    return bool((error <= allowed.nan_to_num(nan=math.inf)).all())


def _others(tensors: dict[str, Tensor], name: str, like: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield one at a time, since all of them may be most of the model."""
    for other, tensor in tensors.items():
        if other != name and tensor.shape == like.shape:
            yield other, rounded_to(tensor.detach(), like.dtype).to(torch.float64)
