"""Sums over ranks: what each rank gave, and what rounding the terms before they are summed may cost.

Shape legend: * = the edge's shape, its last dim the channels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from validator.align.traces import LogicalTensor, PartialSum, Trace, TraceCall, View
from validator.checks.judge import Assessment, Band, Bench, judge_edge
from validator.checks.module_code import Code, CodeEdge
from validator.numerics.bands import partials_sigma, product_noise
from validator.numerics.formats import format_of
from validator.numerics.recipes import Recipe
from validator.numerics.rounding import round_nearest

__all__ = ["Term", "judge_terms", "reduction_sigma"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """What one rank gave to a sum, judged against its own slice of the oracle."""

    rank: int
    edge: CodeEdge
    assessment: Assessment
    band: Band


def reduction_sigma(code: Code, edge: CodeEdge, recipe: Recipe) -> Tensor:
    """Return the noise of partial results that were rounded before they were summed across ranks."""
    zero = torch.zeros((), dtype=torch.float64)
    if edge.into is not None or not code.call.partials:
        return zero
    terms = _partial_values(code.call.partials[0], tuple(edge.exact.shape))
    if terms is None:
        return zero
    dtype = edge.cand.data.dtype if recipe.reduce == "storage" else getattr(torch, recipe.reduce)
    fmt = format_of(dtype)
    # The sum's own rounding is the result's, unless a bias is added to it.
    has_bias = getattr(code.module, "bias", None) is not None
    return partials_sigma(terms, fmt, roundings=len(terms) - 1 - (not has_bias), is_ordered=False)


def judge_terms(
    code: Code,
    edge: CodeEdge,
    *,
    recipe: Recipe,
    trace: Trace,
    view: View,
    judged: Tensor | None,
    bench: Bench,
) -> Iterator[Term]:
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
    """
    call, module = code.call, code.module
    if type(module) is not nn.Linear or not call.partials or edge.path or len(call.inputs) != 1:
        return
    partial = call.partials[0]
    (source,) = call.inputs.values()
    given = source.read(view).data
    x = given.to(torch.float64)
    weight = _parameter(trace, call, "weight", module.weight)
    biases = [torch.zeros((), dtype=torch.float64)]
    if module.bias is not None:
        biases.append(_parameter(trace, call, "bias", module.bias))
    for rank in view.ranks:
        box, cand = partial.input_boxes.get(rank), partial.tensors.get(rank)
        if box is None or cand is None or cand.shape != edge.cand.data.shape:
            continue
        columns = slice(*box[-1])
        part, rows = x[..., columns], weight[:, columns].T
        product = part @ rows
        is_wide = format_of(cand.dtype).precision >= 24
        noise = product_noise(part, rows, product, recipe, format_of(given.dtype))
        band = Band(sigma=noise.sigma, bound=noise.bound, has_tails=is_wide)
        tried = [
            Term(
                rank=rank,
                band=band,
                edge=_term_edge(rank, edge, product + bias, cand),
                assessment=judge_edge(
                    exact=product + bias,
                    cand=cand,
                    band=band,
                    control=None,
                    judged=judged,
                    dims=edge.cand.dims,
                    bench=bench,
                ),
            )
            for bias in biases
        ]
        yield next((term for term in tried if term.assessment.arm is None), tried[0])


def _term_edge(rank: int, edge: CodeEdge, exact: Tensor, cand: Tensor) -> CodeEdge:
    return CodeEdge(
        key=(None, f"partial/{rank}"),
        into=None,
        path=edge.path,
        order=edge.order,
        exact=exact,
        depth=1,
        sigma=None,
        bound=None,
        cand=LogicalTensor(data=cand, parts=(), dims=edge.cand.dims),
    )


def _parameter(trace: Trace, call: TraceCall, name: str, parameter: Tensor) -> Tensor:
    """Return a parameter of the reference, rounded to the candidate's storage format."""
    edge = trace.parameters.get(f"{call.module}.{name}" if call.module else name)
    dtype = parameter.dtype if edge is None else getattr(torch, edge.dtype)
    return round_nearest(parameter.detach().to(torch.float64), format_of(dtype))


def _partial_values(partial: PartialSum, shape: tuple[int, ...]) -> Sequence[Tensor] | None:
    """Return every rank's term of a sum in float64, or None where the shapes are not the result's."""
    terms = [partial.tensors[rank].to(torch.float64) for rank in sorted(partial.tensors)]
    return terms if terms and all(tuple(term.shape) == shape for term in terms) else None
