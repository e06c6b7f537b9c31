"""What one rank gives to a sum over ranks, as a program: its slice of the input times its part of the weight.

Shape legend: * = any dims; K = this rank's slice of the contraction; N = channels.
"""

import torch
from torch import nn

from validator.align.traces import Trace, View
from validator.checks.module_code import Code
from validator.checks.rank_sums import Term
from validator.numerics.formats import format_of
from validator.numerics.rounding import round_nearest
from validator.reproducing.program import Program

__all__ = ["term_program"]


def term_program(code: Code, term: Term, *, trace: Trace, view: View) -> Program:
    """Return the program of a rank's term of a linear layer.

    Args:
        code: of the layer's call.
        term: what the rank gave.
        trace: the candidate's run.
        view: whose copy of the input is read.
    """
    call, module = code.call, code.module
    assert isinstance(module, nn.Linear)
    (source,) = call.inputs.values()
    box = next(p.input_boxes[term.rank] for p in call.partials if p.order == 0 and term.rank in p.input_boxes)
    assert box is not None
    region = tuple(slice(*interval) for interval in box)
    given = source.read(view).data[region].contiguous()
    name = f"{call.module}.weight" if call.module else "weight"
    edge = trace.parameters.get(name)
    dtype = module.weight.dtype if edge is None else getattr(torch, edge.dtype)
    weight = round_nearest(module.weight.detach().to(torch.float64), format_of(dtype)).to(dtype)
    inputs = {"x": given, "weight": weight[:, region[-1]].contiguous()}
    lines = ['x = given["x"]', 'weight = given["weight"]', "term = x @ weight.T"]
    if bool(term.bias.any()):
        inputs["bias"] = term.bias.to(dtype)
        lines += ['bias = given["bias"]', "term = term + bias"]
    return Program(lines=tuple(lines), inputs=inputs, result="term")
