"""The parameter check: the candidate's parameters and buffers against the reference's, rounded once."""

import math

import torch
from torch import Tensor, nn

from validator.align.traces import Trace, View
from validator.checks.findings import Arm, Check, Finding, Judgement, Unchecked, Verdict
from validator.checks.judge import judge_equal
from validator.checks.places import judged_region, places, single_rank
from validator.checks.signatures import parameter_signature
from validator.checks.summary import summarise
from validator.errors import ValidatorError
from validator.numerics.formats import format_of
from validator.numerics.rounding import round_nearest
from validator.numerics.ulp import ulp

__all__ = ["check_parameters"]

COMPUTED_ULP = 16.0
"""How far a buffer that each side computes for itself may differ, in float32 ulp.

A rotary frequency is `base^-(2i/d)`: the exponent's rounding is amplified by `ln(base)`, 14 for a base
of 1e6, and `pow` itself is good to an ulp or two on every device.
"""


def check_parameters(
    *, reference: nn.Module, trace: Trace, view: View
) -> tuple[list[Judgement], list[Finding], list[Unchecked]]:
    """Compare every parameter and buffer of one view, bit by bit, with the reference's rounded to its format.

    Buffers that are not in the checkpoint are computed by each side, and may differ by `COMPUTED_ULP`.

    Returns:
        Judgements, findings and what could not be compared, in the order of the reference's parameters.
    """
    judgements: list[Judgement] = []
    findings: list[Finding] = []
    unchecked: list[Unchecked] = []
    stored = set(reference.state_dict(keep_vars=True))
    tensors: dict[str, Tensor] = {}
    tensors |= dict(reference.named_parameters(remove_duplicate=False))
    tensors |= dict(reference.named_buffers(remove_duplicate=False))
    for position, (name, tensor) in enumerate(_in_module_order(reference, tensors).items()):
        edge = trace.parameters.get(name)
        module, _, leaf = name.rpartition(".")
        if edge is None:
            if name not in trace.unmatched_parameters[0]:
                unchecked.append(
                    Unchecked(module=module, why=f"the candidate's {leaf} could not be put together")
                )
            continue
        try:
            logical = edge.read(view)
        except ValidatorError as error:
            unchecked.append(Unchecked(module=module, why=f"{leaf} is not compared: {error}"))
            continue
        exact = _rounded(tensor.detach(), logical.data)
        judged = judged_region(logical, None, view, trace.world_size)
        if exact.shape != logical.data.shape:
            unchecked.append(
                Unchecked(
                    module=module,
                    why=f"{leaf} is {list(logical.data.shape)}, the reference's {list(exact.shape)}",
                )
            )
            continue
        assessment = judge_equal(exact=exact, cand=logical.data, judged=judged, dims=logical.dims)
        is_computed = name not in stored
        is_off = assessment.arm is not None and not (is_computed and _is_close(exact, logical.data))
        rank = single_rank(logical, assessment.outside, view, trace.world_size) if is_off else None
        candidate_name = trace.candidate_parameters.get(name, name)
        candidate_module = candidate_name.rpartition(".")[0]
        order = position - len(tensors)
        judgements.append(
            Judgement(
                module=module,
                candidate_module=candidate_module,
                check=Check.PARAMETER,
                path=leaf,
                verdict=Verdict.DIVERGENT if is_off else Verdict.ALIGNED,
                order=order,
                evidence=assessment.evidence,
                rank=rank,
                arm=assessment.arm if is_off else None,
                dtype=edge.dtype,
            )
        )
        if not is_off:
            continue
        signature = parameter_signature(
            reference=exact.to(torch.float64),
            candidate=logical.data.to(torch.float64),
            others=lambda name=name, like=logical.data: _others(tensors, name, like),  # type: ignore[misc]
        )
        where = places(assessment.outside, logical)
        findings.append(
            Finding(
                module=module,
                candidate_module=candidate_module,
                check=Check.PARAMETER,
                path=leaf,
                verdict=Verdict.DIVERGENT,
                arm=Arm.EXACT,
                rank=rank,
                where=where,
                signature=signature,
                evidence=assessment.evidence,
                order=order,
                summary=summarise(
                    module=module,
                    check=Check.PARAMETER,
                    into=None,
                    path=leaf,
                    rank=rank,
                    arm=Arm.EXACT,
                    recipe=None,
                    evidence=assessment.evidence,
                    signature=signature,
                    where=where,
                ),
            )
        )
    return judgements, findings, unchecked


def _in_module_order(reference: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Order names as the modules stand in the model, each module's parameters before its buffers."""
    place = {fqn: i for i, (fqn, _) in enumerate(reference.named_modules(remove_duplicate=False))}
    return dict(sorted(tensors.items(), key=lambda item: place.get(item[0].rpartition(".")[0], len(place))))


def _rounded(reference: Tensor, like: Tensor) -> Tensor:
    if reference.is_floating_point() and like.is_floating_point():
        return round_nearest(reference.to(torch.float64), format_of(like.dtype))
    return reference


def _is_close(exact: Tensor, cand: Tensor) -> bool:
    if not cand.is_floating_point():
        return False
    error = (cand.to(torch.float64) - exact).abs()
    return bool((error <= COMPUTED_ULP * ulp(exact, format_of(cand.dtype)).nan_to_num(nan=math.inf)).all())


def _others(tensors: dict[str, Tensor], name: str, like: Tensor) -> dict[str, Tensor]:
    return {
        other: _rounded(tensor.detach(), like).to(torch.float64)
        for other, tensor in tensors.items()
        if other != name and tensor.shape == like.shape
    }
