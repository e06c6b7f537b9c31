"""Constants: a bias that is added too often or not at all, another vector, a number in the code.

Shape legend: * = the edge's shape, its last dim the channels.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from validator.checks.findings import Signature
from validator.checks.module_code import ALTERATION, Key, ReplaysOf
from validator.checks.roundings import Constant
from validator.checks.signatures.subject import EXPLAINED_SHARE, Subject
from validator.numerics.ulp import ulp

__all__ = ["FittedConstant", "bias_missing", "bias_per_rank", "constant_vector", "fit_constant"]

NEWTON_STEPS = 5


def bias_per_rank(subject: Subject) -> Signature | None:
    """Say whether every rank added the bias to its term."""
    bias, ranks = _bias(subject), subject.world_size
    if bias is None or ranks == 1:
        return None
    left = subject.residual(subject.exact + (ranks - 1) * bias, slack=2.0)
    if left is None:
        return None
    parameters = {"times": ranks, "world_size": ranks}
    return Signature(kind="bias_per_rank", parameters=parameters, residual_ulp=left)


def bias_missing(subject: Subject) -> Signature | None:
    """Say whether the bias was left out."""
    bias = _bias(subject)
    left = None if bias is None else subject.residual(subject.exact - bias, slack=2.0)
    return None if left is None else Signature(kind="bias_missing", parameters={}, residual_ulp=left)


def constant_vector(subject: Subject) -> Signature | None:
    """Say whether the same vector was added to every row."""
    exact, usable = subject.exact, subject.usable
    if exact.dim() < 2 or exact.numel() <= exact.shape[-1]:
        return None
    flat_usable = usable.reshape(-1, exact.shape[-1])
    difference = torch.where(usable, subject.cand - exact, 0.0).reshape(-1, exact.shape[-1])
    count = flat_usable.sum(0).clamp_min(1)
    vector = difference.sum(0) / count
    scatter = torch.where(flat_usable, difference - vector, 0.0).square().sum(0)
    if scatter.sum() > EXPLAINED_SHARE * difference.square().sum():
        # A mean can always be subtracted; as a hypothesis it must carry most of the difference.
        return None
    # The vector is a mean over rows: five standard errors, of few rows no more than what rounding makes.
    rounding = subject.allowed.expand(exact.shape) + ulp(subject.cand, subject.fmt) / 2
    most = torch.where(usable, rounding, 0.0).reshape(-1, exact.shape[-1]).sum(0) / count
    inexact = torch.minimum(5 * scatter.sqrt() / count, most)
    left = subject.residual(exact + vector, slack=2.0, inexact=inexact)
    if left is None or not bool(vector.any()):
        return None
    return Signature(kind="constant_vector", parameters={"norm": float(vector.norm())}, residual_ulp=left)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedConstant:
    """A constant of the code, fitted to the candidate: its factor, and `[*]` the edge's values then."""

    factor: float
    values: Tensor


def fit_constant(
    replays: ReplaysOf, constant: Constant, key: Key, *, cand: Tensor, weight: Tensor, usable: Tensor
) -> FittedConstant | None:
    """Fit one constant of a module's code to the candidate's values by Gauss-Newton steps.

    Args:
        replays: runs the code.
        constant: the constant to fit.
        key: the edge.
        cand: `[*]` float64 candidate.
        weight: `[*]` float64, inverse variance of rounding.
        usable: `[*]` boolean.

    Returns:
        The fit, or None where the edge does not depend on the constant or the fit runs away.
    """
    factor = 1.0
    for _ in range(NEWTON_STEPS):
        base = replays.altered(constant, factor).get(key)
        moved = replays.altered(constant, factor * (1 + ALTERATION)).get(key)
        if base is None or moved is None:
            return None
        direction = ((moved - base) / ALTERATION)[usable]
        power = (weight[usable] * direction.square()).sum()
        if not bool(power > 0) or not bool(power.isfinite()):
            return None
        step = float((weight[usable] * direction * (cand - base)[usable]).sum() / power)
        factor *= 1 + step
        if not 1e-6 < abs(factor) < 1e6:
            return None
        if abs(step) < 2.0**-40:
            break
    values = replays.altered(constant, factor).get(key)
    return None if values is None else FittedConstant(factor=factor, values=values)


def _bias(subject: Subject) -> Tensor | None:
    bias = subject.bias
    if bias is None or bias.shape[-1:] != subject.exact.shape[-1:] or not bool(bias.any()):
        return None
    return bias
