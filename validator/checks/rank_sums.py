"""Sums over ranks: what each rank gave, and what rounding the terms before they are summed may cost.

Shape legend: * = the edge's shape, its last dim the channels.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from validator.align.traces import PartialSum, Trace, TraceCall, View
from validator.checks.judge import Assessment, Band, Bench, judge_edge
from validator.checks.module_code import Code, CodeEdge
from validator.checks.requantised import oracle_weight
from validator.checks.term_code import term_code
from validator.numerics.bands import partials_sigma, product_noise
from validator.numerics.formats import format_of
from validator.numerics.recipes import Recipe
from validator.sharding.plan import Box

__all__ = ["Term", "given_terms", "judge_terms", "ranks_terms", "reduction_sigma", "summed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """What one rank gave to a sum, judged against its own slice of the oracle.

    Attributes:
        rank: which.
        code: the product behind the term.
        edge: the term.
        bias: `[channels]` float64 what it holds beside the product, or a zero.
        assessment: what the rules say of it.
        band: what rounding explains.
    """

    rank: int
    code: Code
    edge: CodeEdge
    bias: Tensor
    assessment: Assessment
    band: Band


def reduction_sigma(code: Code, edge: CodeEdge, recipe: Recipe) -> Tensor:
    """Return the noise of partial results that were rounded before they were summed across ranks."""
    zero = torch.zeros((), dtype=torch.float64)
    if edge.into is not None or not code.call.partials:
        return zero
    dtype = edge.cand.data.dtype if recipe.reduce == "storage" else getattr(torch, recipe.reduce)
    fmt = format_of(dtype)
    # The sum's own rounding is the result's, unless a bias is added to it or another sum follows.
    is_chained = any(partial.order for partial in code.call.partials)
    has_bias = getattr(code.module, "bias", None) is not None
    variance = torch.zeros(edge.exact.shape, dtype=torch.float64)
    known: set[Box | None] = set()
    for partial in code.call.partials:
        # Groups that hold copies of one sum are one; those of sums that are summed again are not.
        if partial.box in known and not is_chained:
            continue
        known.add(partial.box)
        region = variance if partial.box is None else variance[_slices(partial.box)]
        terms = _partial_values(partial, tuple(region.shape))
        if terms is None:
            continue
        roundings = len(terms) - 1 - (not has_bias and not is_chained)
        region += partials_sigma(terms, fmt, roundings=roundings, is_ordered=False).square()
        # What each rank added up was rounded on every rank, and again where the sums were put together.
        for of_module in partial.made_of:
            inner = [term.to(torch.float64) for term in of_module.values()]
            region += partials_sigma(inner, fmt, roundings=len(inner) - 1, is_ordered=False).square()
    return variance.sqrt()


def judge_terms(
    code: Code,
    edge: CodeEdge,
    *,
    recipe: Recipe,
    trace: Trace,
    view: View,
    judged: Tensor | None,
    bench: Bench,
) -> Iterator[tuple[Term, ...]]:
    """Judge what each rank of a row-parallel linear layer gave to the sum.

    A rank's term is its slice of the input times its columns of the weight. One rank may add the bias to
    its term; that no more than one did shows in the sum.

    Args:
        code: of the layer's call; anything but an `nn.Linear` has no terms that are known.
        edge: its output.
        recipe: what may be rounded inside of each rank's product.
        trace: the candidate's run.
        view: whose ranks are judged.
        judged: `[*]` boolean, or None for all.
        bench: what is common to the run.

    Yields:
        For each rank its term, or, where nothing explains it, the term without a bias and with it.
    """
    call, module = code.call, code.module
    if type(module) is not nn.Linear or not call.partials or edge.path or len(call.inputs) != 1:
        return
    (source,) = call.inputs.values()
    given = source.read(view).data
    weight = _parameter(trace, view, call, "weight", module.weight)
    biases = [torch.zeros((), dtype=torch.float64)]
    if module.bias is not None:
        biases.append(_parameter(trace, view, call, "bias", module.bias))
    first = {rank: partial for partial in call.partials if partial.order == 0 for rank in partial.input_boxes}
    for rank, partial in first.items():
        box, cand = partial.input_boxes.get(rank), partial.tensors.get(rank)
        if rank not in view.ranks or box is None or cand is None:
            continue
        region = _slices(box)
        part, rows = given[region], weight[:, region[-1]].T
        if cand.shape != (*part.shape[:-1], edge.cand.data.shape[-1]):
            continue
        tried = []
        for bias in biases:
            term = term_code(code, edge, rank=rank, given=part, weight=rows, bias=bias, cand=cand)
            (of_term,) = term.edges
            noise = product_noise(
                part.to(torch.float64), rows, of_term.exact - bias, recipe, format_of(given.dtype)
            )
            band = Band(sigma=noise.sigma, bound=noise.bound, has_tails=format_of(cand.dtype).precision >= 24)
            assessment = judge_edge(
                exact=of_term.exact,
                cand=cand,
                band=band,
                control=None,
                judged=None if judged is None else judged.expand(edge.cand.data.shape)[region[:-1]],
                dims=edge.cand.dims,
                bench=bench,
            )
            tried.append(
                Term(rank=rank, code=term, edge=of_term, bias=bias, assessment=assessment, band=band)
            )
        explained = next((term for term in tried if term.assessment.arm is None), None)
        yield tuple(tried) if explained is None else (explained,)


def ranks_terms(code: Code, edge: CodeEdge, *, trace: Trace, view: View) -> Mapping[int, Tensor]:
    """Return what each rank should give to the sum over ranks behind an output, `[*]` float64 by rank.

    Of a linear layer it is what the rank's slice of the input makes, whether or not the candidate summed;
    of any other module what the ranks really gave to its first sum. Empty where neither is known.

    Args:
        code: of the call.
        edge: one of its edges.
        trace: the candidate's run.
        view: whose copy of the input is read.
    """
    call, module = code.call, code.module
    if edge.into is not None or edge.path:
        return {}
    if type(module) is nn.Linear and len(call.inputs) == 1:
        (source,) = call.inputs.values()
        columns: dict[tuple[int, int], int] = {}
        for part in source.parts:
            columns.setdefault(part.box[-1], part.rank)
        if len(columns) < 2:
            return {}
        x = source.read(view).data.to(torch.float64)
        weight = _parameter(trace, view, call, "weight", module.weight)
        return {rank: x[..., slice(*box)] @ weight[:, slice(*box)].T for box, rank in columns.items()}
    return given_terms(code, edge)


def given_terms(code: Code, edge: CodeEdge) -> Mapping[int, Tensor]:
    """Return what ranks gave to the first sum behind an output, in all its groups: `[*]` float64 by rank."""
    if edge.into is not None or edge.path:
        return {}
    shape = edge.exact.shape
    given = {
        rank: partial.tensors[rank].to(torch.float64)
        for partial in code.call.partials
        if partial.order == 0
        for rank in partial.tensors
    }
    # Experts see tokens without their sequences.
    return {
        rank: term.reshape(shape)
        for rank, term in given.items()
        if term.shape[-1:] == shape[-1:] and term.numel() == shape.numel()
    }


def summed(module: nn.Module, terms: Sequence[Term]) -> Tensor:
    """Return the sum over ranks of what they gave, in float64, with the layer's bias, unless a rank added it.

    Args:
        module: the layer.
        terms: of all ranks.
    """
    total: Tensor = sum(
        (term.edge.cand.data.to(torch.float64) for term in terms), torch.zeros((), dtype=torch.float64)
    )
    bias: Tensor | None = getattr(module, "bias", None)
    if bias is None or any(bool(term.bias.any()) for term in terms):
        return total
    return total + bias.detach().to(torch.float64)


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(*interval) for interval in box)


def _parameter(trace: Trace, view: View, call: TraceCall, name: str, parameter: Tensor) -> Tensor:
    """Return a parameter of the oracle."""
    name = f"{call.module}.{name}" if call.module else name
    edge = trace.parameters.get(name)
    dtype = parameter.dtype if edge is None else getattr(torch, edge.dtype)
    return oracle_weight(parameter, name, trace, view, dtype)


def _partial_values(partial: PartialSum, shape: tuple[int, ...]) -> Sequence[Tensor] | None:
    """Return every rank's term of a sum in float64, or None where the shapes are not the result's."""
    terms = [partial.tensors[rank].to(torch.float64) for rank in sorted(partial.tensors)]
    return terms if terms and all(tuple(term.shape) == shape for term in terms) else None
