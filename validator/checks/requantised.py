"""Weights that the device quantised anew as it loaded them: the reference's, rounded to codes of their own.

Such a weight is another one than the checkpoint's, by at most half a step of its own codes. Where it is just
that, what the module computes is judged with the weight that the candidate has.

Shape legend: * = the weight's shape.
"""

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from validator.align.traces import Edge, LogicalTensor, Trace, View
from validator.checks.shadow import widened
from validator.errors import ValidatorError
from validator.numerics.formats import FORMATS, format_of
from validator.numerics.rounding import round_nearest
from validator.quantised.reading import reading_other_scales, reading_steps

__all__ = ["Requantised", "is_taken", "oracle_weight", "requantised", "told", "with_own_scales"]

ROUNDED = 2 * FORMATS["bfloat16"].unit_roundoff
"""Of each weight: as far may two roundings to bfloat16 move it before it is rounded to a code, that of the
dequantised value and that of its quotient with the new scale."""

MOST = 0.5
"""More than this share of the weights differs where all were quantised anew; a fault of single groups moves
fewer, and a weight that it moves by less than half a step is no less wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requantised:
    """A weight that was quantised anew.

    Attributes:
        fmt: the format of its codes, as `Recipe.requantised` calls it.
        share: of the weights that differ from the reference's.
        loss: root mean square of the difference, relative to that of the reference.
    """

    fmt: str
    share: float
    loss: float

    @property
    def is_whole(self) -> bool:
        """Whether so many weights differ that all were quantised anew."""
        return self.share > MOST


def requantised(reference: Tensor, edge: Edge, view: View) -> Requantised | None:
    """Say how the candidate's weight was quantised anew, or None where that does not explain it.

    Args:
        reference: `[*]`, as its checkpoint has it.
        edge: the candidate's.
        view: whose copies of it are taken.
    """
    if not edge.is_quantised:
        return None
    try:
        with reading_steps() as steps:
            half = edge.read(view).data.to(torch.float64)
            steps.is_half = False
            held = edge.read(view).data.to(torch.float64)
    except ValidatorError:
        return None
    formats = set(steps.formats)
    wanted = widened(reference)
    if len(formats) != 1 or half.shape != wanted.shape:
        return None
    error = (held - wanted).abs_()
    if not bool((error <= half + ROUNDED * wanted.abs()).all()):
        return None
    norm = float(torch.linalg.vector_norm(wanted))
    return Requantised(
        fmt=formats.pop(),
        share=float((error > 0).double().mean()),
        loss=float(torch.linalg.vector_norm(error)) / norm if norm else 0.0,
    )


def with_own_scales(reference: nn.Module, trace: Trace) -> Trace:
    """Read each weight whose codes two scales fit by the one that brings it nearer to the reference.

    A loader that quantises anew may leave the checkpoint's scale where it was, under another name than that
    of its own. Whether the candidate computes with the one that is taken here is for other checks to say.

    Args:
        reference: the trusted model.
        trace: the candidate's run.
    """
    tensors: dict[str, Tensor] = dict(reference.named_parameters(remove_duplicate=False))
    own = {
        name: _with_own_scales(tensors[name], edge, trace.views[0])
        for name, edge in trace.parameters.items()
        if edge.has_two_scales and name in tensors and edge.shape == tuple(tensors[name].shape)
    }
    return replace(trace, parameters={**trace.parameters, **own}) if own else trace


def oracle_weight(reference: Tensor, name: str, trace: Trace, view: View, dtype: torch.dtype) -> Tensor:
    """Return `[*]` float64: the weight that the oracle computes with, in the format that the candidate has.

    It is the reference's, rounded once, unless the candidate quantised it anew.

    Args:
        reference: the parameter.
        name: of it.
        trace: the candidate's run.
        view: whose copies are taken.
        dtype: in which the candidate has it.
    """
    rounded = round_nearest(widened(reference), format_of(dtype))
    edge = trace.parameters.get(name)
    if edge is None or not edge.is_quantised or edge.shape != tuple(reference.shape):
        return rounded
    try:
        held = edge.read(view).data.to(torch.float64)
    except ValidatorError:
        return rounded
    if torch.equal(held, rounded):
        return rounded
    own = requantised(reference, edge, view)
    return rounded if own is None or not is_taken(own, trace) else held


def is_taken(own: Requantised, trace: Trace) -> bool:
    """Tell whether what the candidate computes is judged with its own weight."""
    return own.fmt == trace.requantised or own.is_whole


def told(module: str, leaf: str, own: Requantised, declared: str | None) -> str:
    """Return the sentence of a finding on a weight that was quantised anew, undeclared."""
    meant = "" if declared is None else f", where the recipe declares {declared!r}"
    return (
        f"{module or 'the model'}: parameter {leaf} was quantised anew to {own.fmt}{meant}: "
        f"{own.share:.0%} of its values differ, each by what rounding to the nearest of its own codes "
        f"explains (root mean square {own.loss:.1e} of the reference's). If the device does that at load, "
        f"declare it: Recipe(requantised={own.fmt!r}, ...)"
    )


def _with_own_scales(reference: Tensor, edge: Edge, view: View) -> Edge:
    other = replace(edge, read=partial(_read_by_other_scales, edge), stream=None)
    wanted = widened(reference)
    try:
        distances = [
            float(torch.linalg.vector_norm(held.read(view).data.to(torch.float64) - wanted))
            for held in (edge, other)
        ]
    except ValidatorError:
        return edge
    first, second = (math.inf if math.isnan(distance) else distance for distance in distances)
    return edge if first <= second else other


def _read_by_other_scales(edge: Edge, view: View) -> LogicalTensor:
    with reading_other_scales():
        return edge.read(view)
