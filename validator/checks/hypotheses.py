"""Which hypothesis about the fault of an edge to report.

Shape legend: * = the edge's shape.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from validator.align.traces import Trace, TraceCall, View
from validator.checks.attended import attended_by
from validator.checks.findings import Arm, Signature
from validator.checks.judge import Assessment, Band, Bench
from validator.checks.layouts import integer_layout, layout_signature
from validator.checks.module_code import Code, CodeEdge
from validator.checks.places import places
from validator.checks.products import PRODUCTS
from validator.checks.rank_sums import given_terms, ranks_terms
from validator.checks.signatures import (
    Subject,
    edge_signature,
    fit_constant,
    integer_offset,
    keys_signature,
    miscounted_addend,
    region_of,
    residual_ulp,
    signature_words,
    truncation,
)
from validator.numerics.contractions import FACTORS
from validator.numerics.formats import format_of
from validator.numerics.recipes import EAGER
from validator.numerics.ulp import ulp

__all__ = ["hypothesis"]

NEAR = 0.25
"""A model of narrow factors that leaves up to this share of the squared error is what happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """An edge that diverges, with all that hypotheses are made of.

    Attributes:
        code: that made the edge.
        edge: the edge.
        band: what rounding explains.
        spacing: `[*]` float64, the ulp at each value of the oracle.
        subject: the edge as the searches for its signature see it.
    """

    code: Code
    edge: CodeEdge
    band: Band
    spacing: Tensor
    subject: Subject


def hypothesis(
    code: Code,
    edge: CodeEdge,
    assessment: Assessment,
    band: Band,
    *,
    judged: Tensor | None,
    bench: Bench,
    trace: Trace,
    view: View,
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
        trace: the candidate's run.
        view: whose copies are judged.
        reductions: how many sums over ranks stand before the edge.
    """
    if assessment.arm is None:
        return None
    if not edge.cand.data.is_floating_point():
        return _of_integers(edge, _region(edge, judged))
    gain = assessment.evidence.gain or 0.0
    if assessment.constant is not None:
        constant = assessment.constant
        parameters = {"op": constant.op, "value": constant.value, "factor": 1 + gain}
        tokens = places(assessment.outside, edge.cand).get("tokens")
        # Of an edge that all of shows it on, no element is named.
        within = {"within": f"tokens {tokens[0]}:{tokens[-1] + 1}"} if tokens else {}
        return Signature(kind="constant", parameters=parameters | within)
    case = _case(code, edge, band, judged=judged, bench=bench, trace=trace, view=view, reductions=reductions)
    if assessment.arm is Arm.GAIN:
        return truncation(case.subject) or _gain(case, assessment, gain)
    searches: tuple[Callable[[], Signature | None], ...] = (
        partial(_keys, case, trace, view),
        partial(edge_signature, case.subject),
        partial(layout_signature, case.subject),
        partial(_addend, case, trace, view),
        partial(_wrong_term, case),
        partial(_narrow_factors, case),
        partial(_altered_constant, case),
        partial(region_of, case.subject),
    )
    return next((found for search in searches if (found := search()) is not None), None)


def _case(
    code: Code,
    edge: CodeEdge,
    band: Band,
    *,
    judged: Tensor | None,
    bench: Bench,
    trace: Trace,
    view: View,
    reductions: int,
) -> _Case:
    cand = edge.cand.data.to(torch.float64)
    fmt = format_of(edge.cand.data.dtype)
    spacing = ulp(edge.exact, fmt).nan_to_num(nan=1.0)
    bias = getattr(code.module, "bias", None) if edge.into is None else None
    subject = Subject(
        exact=edge.exact,
        cand=cand,
        allowed=spacing / 2 + band.bound + bench.multiplier(band) * band.sigma,
        fmt=fmt,
        judged=_region(edge, judged),
        dims=edge.cand.dims,
        bias=bias.detach().to(torch.float64) if isinstance(bias, Tensor) else None,
        world_size=trace.world_size,
        ranks=view.ranks,
        reductions=reductions,
        terms=partial(ranks_terms, code, edge, trace=trace, view=view),
        parts=edge.cand.parts,
        head_size=getattr(code.module, "head_dim", None),
        routing=_routing(
            code.call, trace, view, rows=cand.numel() // max(cand.shape[-1], 1) if cand.dim() else 1
        ),
    )
    return _Case(code=code, edge=edge, band=band, spacing=spacing, subject=subject)


def _region(edge: CodeEdge, judged: Tensor | None) -> Tensor:
    shape = edge.cand.data.shape
    return torch.ones(shape, dtype=torch.bool) if judged is None else judged.expand(shape)


def _of_integers(edge: CodeEdge, region: Tensor) -> Signature | None:
    for search in (integer_offset, integer_layout):
        found = search(
            exact=edge.exact,
            cand=edge.cand.data,
            judged=region,
            dims=edge.cand.dims,
            parts=edge.cand.parts,
        )
        if found is not None:
            return found
    return None


def _gain(case: _Case, assessment: Assessment, gain: float) -> Signature | None:
    """Return the factor of an edge, or of the one slice, that only its gain speaks against.

    It is inside the band already, so that any small correction would "explain" it.
    """
    guilty = torch.zeros(case.edge.exact.shape, dtype=torch.bool)
    guilty[assessment.outside.unbind(-1)] = True
    if bool((guilty == case.subject.judged).all()):
        return Signature(kind="factor", parameters={"factor": 1 + gain})
    for dim, meaning in enumerate(case.edge.cand.dims):
        indices = torch.unique(assessment.outside[:, dim])
        if meaning in ("head", "channel") and len(indices) == 1:
            within = f"{meaning} {int(indices[0])}"
            return Signature(kind="factor", parameters={"factor": 1 + gain, "within": within})
    return None


def _addend(case: _Case, trace: Trace, view: View) -> Signature | None:
    """Say which input, or which child's output, is in an output too often or not at all."""
    code, edge = case.code, case.edge
    if edge.into is not None or not code.has_children:
        return None
    call = code.call
    children = [c for c in trace.calls.values() if c.parent == (call.module, call.n)]
    edges = [
        *((f"the input {path or 'of the module'}", given) for path, given in call.inputs.items()),
        *((f"what {child.module} returned", made) for child in children for made in child.outputs.values()),
    ]
    shape, dtype = edge.cand.data.shape, str(edge.cand.data.dtype).removeprefix("torch.")
    addends = {
        name: given.read(view).data.to(torch.float64)
        for name, given in edges
        if given.shape == tuple(shape) and given.dtype == dtype
    }
    return miscounted_addend(case.subject, addends)


def _keys(case: _Case, trace: Trace, view: View) -> Signature | None:
    """Say which keys the attention in a module's code read otherwise than it should."""
    attended = attended_by(case.code, trace, view)
    return None if attended is None else keys_signature(case.subject, attended)


def _wrong_term(case: _Case) -> Signature | None:
    """Say what is wrong with what one rank gave to a sum over ranks, where the others' terms are right."""
    given = given_terms(case.code, case.edge)
    if len(given) < 2:
        return None
    subject = case.subject
    total = torch.stack(list(given.values())).sum(0)
    if not bool(((total - subject.cand).abs() <= len(given) * subject.allowed)[subject.usable].all()):
        return None
    for rank, term in given.items():
        of_rank = replace(subject, exact=subject.exact - (total - term), cand=term, bias=None, reductions=0)
        found = edge_signature(replace(of_rank, terms=dict, allowed=len(given) * subject.allowed))
        if found is not None:
            parameters = {"rank": rank, "looks_like": signature_words(found)}
            return Signature(kind="wrong_term", parameters=parameters, residual_ulp=found.residual_ulp)
    return None


def _narrow_factors(case: _Case) -> Signature | None:
    """Say whether the factors of float32 products were rounded to a narrower format, such as TF32."""
    code, edge, subject = case.code, case.edge, case.subject
    is_wide = edge.cand.data.dtype is torch.float32
    if code.replays is None or not is_wide or not any(step.op in PRODUCTS for step in code.steps):
        return None
    usable, spacing = subject.usable, case.spacing
    before = residual_ulp((subject.cand - edge.exact)[usable], spacing[usable])
    left: dict[str, float] = {}
    for name in FACTORS:
        if name == "float32":
            continue
        model = code.replays.control(replace(EAGER, factors=name)).get(edge.key)
        if model is not None:
            left[name] = residual_ulp((subject.cand - model)[usable], spacing[usable])
    nearest = min(left, key=lambda name: left[name], default=None)
    if nearest is None or not left[nearest] ** 2 <= NEAR * before**2:
        return None
    return Signature(kind="narrow_factors", parameters={"format": nearest}, residual_ulp=left[nearest])


def _altered_constant(case: _Case) -> Signature | None:
    """Look for a constant of the code that, altered, makes the edge agree."""
    code, edge, subject, spacing = case.code, case.edge, case.subject, case.spacing
    if code.replays is None:
        return None
    cand, usable = subject.cand, subject.usable
    weight = (1 / (spacing.square() / 12 + torch.as_tensor(case.band.sigma).square())).expand(cand.shape)
    for constant in code.constants:
        fitted = fit_constant(code.replays, constant, edge.key, cand=cand, weight=weight, usable=usable)
        if fitted is None or fitted.factor == 1.0:
            continue
        error = (cand - fitted.values)[usable].abs()
        if bool((error > subject.allowed[usable] + spacing[usable] / 2).any()):
            continue
        parameters = {"op": constant.op, "value": constant.value, "factor": fitted.factor}
        return Signature(
            kind="constant", parameters=parameters, residual_ulp=residual_ulp(error, spacing[usable])
        )
    return None


def _routing(call: TraceCall, trace: Trace, view: View, *, rows: int) -> Tensor | None:
    """Return `[rows, k]` the experts of each token, where a call is told them or chooses them."""
    routers = [other for other in trace.calls.values() if other.parent == (call.module, call.n)]
    told = [*call.inputs.values(), *(edge for router in routers for edge in router.outputs.values())]
    for edge in told:
        is_index = edge.dtype in ("int64", "int32") and len(edge.shape) == 2 and edge.shape[0] == rows
        if is_index and rows > 1:
            return edge.read(view).data
    return None
