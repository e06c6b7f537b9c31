"""What a module's code made at one place, next to the candidate's value, and what it chose."""

from torch import Tensor

from validator.align.traces import LogicalTensor, TraceCall
from validator.checks.arithmetic import Arithmetic
from validator.checks.module_code import CodeChoice, CodeEdge, Key
from validator.checks.selections import Choice
from validator.checks.shadow import ShadowTensor, real_view
from validator.checks.substitution import real_parts

__all__ = ["code_choice", "code_edge"]


def code_edge(
    key: Key, into: TraceCall | None, value: Tensor, cand: LogicalTensor, order: int, arithmetic: Arithmetic
) -> CodeEdge:
    """Return an edge of the code.

    Args:
        key: as of the edge.
        into: the call of the child that is given the value, or None for an output.
        value: what the code made; a shadow, where it is floating.
        cand: what the candidate has there.
        order: position in the reference's execution order.
        arithmetic: that the code runs under.
    """
    shadow = value if isinstance(value, ShadowTensor) else None
    obstacle = ""
    if shadow is not None and shadow.unknown:
        obstacle = f"nothing is known of the rounding inside {shadow.unknown}"
    elif shadow is None and arithmetic.is_chosen(value):
        obstacle = "rounded values decide it, and no edge of the candidate shows how"
    return CodeEdge(
        key=key,
        into=into,
        path=key[1],
        order=order,
        # A copy: the code may go on to change the tensor in place.
        exact=(value if shadow is None else real_view(shadow.exact64)).clone(),
        depth=0 if shadow is None else _depth(shadow),
        sigma=None if shadow is None else _of_parts(shadow.sigma64, shadow),
        bound=None if shadow is None else shadow.bound64,
        cand=real_parts(cand),
        obstacle=obstacle,
    )


def code_choice(choice: Choice, order: int) -> CodeChoice:
    """Return a choice of the code, in which it goes on with the candidate's.

    Args:
        choice: as it was made.
        order: position in the reference's execution order.
    """
    return CodeChoice(
        key=(None, choice.name),
        order=order,
        op=choice.op,
        best=choice.values_at(choice.own.indices),
        chosen=choice.values_at(choice.indices),
    )


def _depth(value: ShadowTensor) -> int:
    """Count the roundings behind a value; a cast alone is one: its result is not the bits that came in."""
    return 1 if value.depth == 0 and value.is_cast else value.depth


def _of_parts(sigma: Tensor | None, shadow: ShadowTensor) -> Tensor | None:
    """Return the sigma of a complex value's parts."""
    if sigma is None or not shadow.is_complex():
        return sigma
    return sigma.unsqueeze(-1).expand(*sigma.shape, 2)
