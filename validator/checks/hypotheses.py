"""Which hypothesis about the fault of an edge to report.

Shape legend: * = the edge's shape.
"""

import torch
from torch import Tensor

from validator.checks.findings import Arm, Signature
from validator.checks.judge import Assessment, Band, Bench
from validator.checks.module_code import Code, CodeEdge
from validator.checks.signatures import edge_signature, fit_constant, residual_ulp
from validator.numerics.formats import format_of
from validator.numerics.ulp import ulp

__all__ = ["hypothesis"]


def hypothesis(
    code: Code,
    edge: CodeEdge,
    assessment: Assessment,
    band: Band,
    *,
    judged: Tensor | None,
    bench: Bench,
    world_size: int,
    reductions: int,
) -> Signature | None:
    """Say what would make a divergent edge agree.

    Args:
        code: that made the edge.
        edge: the edge.
        assessment: why it diverges.
        band: what rounding explains.
        judged: `[*]` boolean, or None for all.
        bench: what is common to the run.
        world_size: number of ranks.
        reductions: how many sums over ranks stand before the edge.
    """
    cand = edge.cand.data.to(torch.float64)
    if not edge.cand.data.is_floating_point() or assessment.arm in (None, Arm.CLASS):
        return None
    spacing = ulp(edge.exact, format_of(edge.cand.data.dtype)).nan_to_num(nan=1.0)
    allowed = spacing / 2 + band.bound + bench.multiplier(band) * band.sigma
    region = torch.ones(cand.shape, dtype=torch.bool) if judged is None else judged.expand(cand.shape).clone()
    gain = assessment.evidence.gain or 0.0
    if assessment.constant is not None:
        constant = assessment.constant
        parameters = {"op": constant.op, "value": constant.value, "factor": 1 + gain}
        return Signature(kind="constant", parameters=parameters)
    if assessment.arm is Arm.GAIN:
        # It is inside the band already, so that any small correction would "explain" it.
        is_everywhere = len(assessment.outside) == int(region.sum())
        return Signature(kind="factor", parameters={"factor": 1 + gain}) if is_everywhere else None
    bias = getattr(code.module, "bias", None) if edge.into is None else None
    found = edge_signature(
        exact=edge.exact,
        cand=cand,
        allowed=allowed,
        fmt=format_of(edge.cand.data.dtype),
        judged=region,
        bias=bias.detach().to(torch.float64) if isinstance(bias, Tensor) else None,
        world_size=world_size,
        reductions=reductions,
    )
    return found or _altered_constant(code, edge, band, spacing=spacing, allowed=allowed, region=region)


def _altered_constant(
    code: Code, edge: CodeEdge, band: Band, *, spacing: Tensor, allowed: Tensor, region: Tensor
) -> Signature | None:
    """Look for a constant of the code that, altered, makes the edge agree."""
    if code.replays is None:
        return None
    cand = edge.cand.data.to(torch.float64)
    usable = region & edge.exact.isfinite() & cand.isfinite()
    weight = (1 / (spacing.square() / 12 + torch.as_tensor(band.sigma).square())).expand(cand.shape)
    for constant in code.constants:
        fitted = fit_constant(code.replays, constant, edge.key, cand=cand, weight=weight, usable=usable)
        if fitted is None or fitted.factor == 1.0:
            continue
        error = (cand - fitted.values)[usable].abs()
        if bool((error > allowed[usable] + spacing[usable] / 2).any()):
            continue
        parameters = {"op": constant.op, "value": constant.value, "factor": fitted.factor}
        return Signature(
            kind="constant", parameters=parameters, residual_ulp=residual_ulp(error, spacing[usable])
        )
    return None
