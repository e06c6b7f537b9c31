"""Faults in a module's code that its input can't show, and the input that would.

An aligned run proves nothing about an epsilon that is far below what it is added to. So the float64
code is mutated (epsilon x10, scale x1.01, a soft cap left out, an input channel left out), and what
that moves is held against what the verdict's rules would have let pass (NUMERICS section 5, point 5).

Shape legend: * = the edge's shape; T = tokens of all sequences, K = input channels, O = output channels.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from validator.align.traces import View
from validator.checks.findings import Unobservable
from validator.checks.module_code import Code, CodeEdge, Key, ReplaysOf
from validator.checks.resolution import Resolution
from validator.checks.roundings import Constant
from validator.numerics.gain import MINIMUM_CLUSTERS

__all__ = ["undecided_on_edge", "unobservable_in_code", "unobservable_on_edge"]

FACTOR = 1.01
"""A scale, or an edge, that is off by this factor should show."""

EPSILON_FACTOR = 10.0
SMALL_ADDEND = 1e-2
"""What is added and no larger than this is an epsilon."""

NONLINEAR = 10.0
"""How far off the linearised effect of a tenfold epsilon may be; beyond it no altered run is made."""

LEFT_OUT = 0.5
"""Relative change of a soft cap that moves its result as leaving it out does.

`c tanh(x/c)` is `x - x^3/(3 c^2)` well below the cap, and `d/d log c` of it is `2 x^3/(3 c^2)`.
"""


def unobservable_on_edge(
    module: str, edge: CodeEdge, smallest_gain: float, *, is_short: bool
) -> Unobservable | None:
    """Say that a factor on a whole edge would not have shown, or return None where it would.

    Args:
        module: the module that the edge belongs to.
        edge: judged and aligned.
        smallest_gain: the smallest relative gain that would have shown.
        is_short: whether the gain test had too few independent elements.
    """
    if smallest_gain <= FACTOR - 1:
        return None
    name = _name(edge)
    if not bool(edge.exact.any()):
        why, propose = "it is zero everywhere", "an input on which it isn't"
    elif is_short:
        why = "rounding explains more on each element, and too few are independent for the gain test"
        has_few_rows = edge.exact.shape[:-1].numel() < MINIMUM_CLUSTERS
        propose = f"{MINIMUM_CLUSTERS:g} tokens or more" if has_few_rows else "more, and more varied, tokens"
    else:
        why, propose = "rounding explains more", "more tokens, or wider arithmetic"
    return Unobservable(
        module=module,
        what=f"factor {FACTOR:g} on its {name}",
        why=why,
        propose=propose,
        smallest=smallest_gain,
    )


def undecided_on_edge(module: str, edge: CodeEdge, count: int) -> Unobservable:
    """Say that a fault in some elements would not have shown, since rounding alone may decide them.

    Args:
        module: the module that the edge belongs to.
        edge: judged and aligned.
        count: how many elements.
    """
    return Unobservable(
        module=module,
        what=f"a fault in {count} of {edge.exact.numel()} elements of its {_name(edge)}",
        why="the code before it is not linear within its rounding noise, which alone decides their values",
        propose="an input on which what competes there (scores of attention) is further apart, or smaller",
    )


def unobservable_in_code(code: Code, resolutions: Mapping[Key, Resolution], view: View) -> list[Unobservable]:
    """List the mutations of a module's code that would not have shown.

    Args:
        code: all its edges were judged and are aligned.
        resolutions: of its edges with arithmetic behind them.
        view: whose copies of replicated tensors were judged.
    """
    found: list[Unobservable] = []
    # A constant has no sensitivity behind a single operator; a factor there is one of the whole edge.
    if code.replays is not None and all(edge.depth != 1 for edge in code.edges):
        found += _Constants(code, code.replays, resolutions).unobservable()
    output = resolutions.get((None, ""))
    # By the exact type: a subclass may do something else with its weight.
    if type(code.module) is nn.Linear and output is not None and "input" in code.call.inputs:
        found += _channels(code, output, code.call.inputs["input"].read(view).data)
    return found


def _name(edge: CodeEdge) -> str:
    place = "output" if edge.into is None else "input"
    return f"{place} {edge.path}" if edge.path else place


@dataclass(frozen=True, slots=True)
class _Constants:
    code: Code
    replays: ReplaysOf
    resolutions: Mapping[Key, Resolution]

    def unobservable(self) -> Iterator[Unobservable]:
        keys = {edge.key for edge in self.code.edges if edge.depth > 1}
        made = {constant: self.replays.sensitivity(constant) for constant in self.code.constants}
        is_complete = all(keys <= directions.keys() for directions in (self.resolutions, *made.values()))
        if not keys or not is_complete:
            return  # an edge was not judged, or a replay took another path
        for constant, directions in made.items():
            smallest = self._smallest({key: directions[key] for key in keys})
            found = (
                self._epsilon(constant, smallest)
                if _is_epsilon(constant)
                else self._scale(constant, smallest)
            )
            if found is not None:
                yield found
        for inner, outer in _caps(self.code.constants):
            smallest = self._smallest({key: made[inner][key] + made[outer][key] for key in keys})
            if smallest > LEFT_OUT:
                yield self._said(
                    f"soft cap {outer.value:g} left out",
                    "what it caps stays far below it",
                    f"an input that brings what it caps near {abs(outer.value):g}",
                    smallest,
                )

    def _epsilon(self, constant: Constant, smallest: float) -> Unobservable | None:
        change = EPSILON_FACTOR - 1
        if NONLINEAR * smallest <= change:
            return None
        if smallest <= NONLINEAR * change:
            altered = self.replays.altered(constant, EPSILON_FACTOR)
            moves = {
                key: made - self.resolutions[key].exact
                for key, made in altered.items()
                if key in self.resolutions
            }
            if not moves or self._smallest(moves) <= 1:
                return None
        is_norm = "norm" in type(self.code.module).__name__.lower()
        return self._said(
            f"epsilon {constant.value:g} x{EPSILON_FACTOR:g}",
            "it is far below what it is added to",
            f"tokens whose mean square is about {constant.value:g}"
            if is_norm
            else f"an input that makes what it is added to about {constant.value:g}",
            smallest,
        )

    def _scale(self, constant: Constant, smallest: float) -> Unobservable | None:
        if smallest <= FACTOR - 1:
            return None
        propose = "more tokens, or an input on which it matters more"
        if "attention" in constant.op or "attention" in type(self.code.module).__name__.lower():
            propose = "several keys, and scores whose standard deviation is above 1"
        return self._said(
            f"constant {constant.value:g} ({constant.op}) x{FACTOR:g}",
            "nothing depends on it" if math.isinf(smallest) else "rounding explains more",
            propose,
            smallest,
        )

    def _smallest(self, directions: Mapping[Key, Tensor]) -> float:
        tried = len(self.code.constants)
        return min(self.resolutions[key].change(direction, tried) for key, direction in directions.items())

    def _said(self, what: str, why: str, propose: str, smallest: float) -> Unobservable:
        return Unobservable(
            module=self.code.call.module, what=what, why=why, propose=propose, smallest=smallest
        )


def _is_epsilon(constant: Constant) -> bool:
    return constant.op == "add" and abs(constant.value) <= SMALL_ADDEND


def _caps(constants: Sequence[Constant]) -> Iterator[tuple[Constant, Constant]]:
    """Yield the pairs of a division by a number and a later multiplication by it."""
    for outer in constants:
        inner = [
            c for c in constants if c.op == "div" and c.value == outer.value and c.position < outer.position
        ]
        if outer.op == "mul" and inner:
            yield inner[-1], outer


def _channels(code: Code, output: Resolution, given: Tensor) -> Iterator[Unobservable]:
    """Leave each input channel of a linear layer out, and yield those that no output would miss.

    Args:
        code: of the layer.
        output: of its output `[..., O]`.
        given: `[..., K]` the candidate's input.
    """
    if not given.numel():
        return
    x = given.to(torch.float64).reshape(-1, given.shape[-1]).abs()
    w = code.module.get_parameter("weight").detach().to(torch.float64).abs()
    allowed = output.allowance().reshape(-1, len(w))
    x = x * allowed.isfinite().any(-1, keepdim=True)
    # A bound from below on max |x_tk w_ok| / allowed_to: at the largest |x| of each channel, and at the
    # largest |w|.
    largest_x, t = x.max(0)
    largest_w, o = w.max(0)
    at_token = (largest_x * w / allowed[t].T).amax(0)
    at_output = (x * largest_w / allowed[:, o]).amax(0)
    missed = (torch.maximum(at_token, at_output) <= 1).nonzero().flatten().tolist()
    if missed:
        shown = ", ".join(map(str, missed[:8])) + (f" and {len(missed) - 8} more" if len(missed) > 8 else "")
        yield Unobservable(
            module=code.call.module,
            what="an input channel left out",
            why="what it adds is within the rounding of every output",
            propose=f"tokens that use input channel{'s' if len(missed) > 1 else ''} {shown}",
        )
