"""What kind of fault an edge shows: the simplest correction after which rounding explains it.

Shape legend: * = the edge's shape, its last dim the channels; N = judged elements.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from validator.checks.findings import Signature
from validator.checks.module_code import ALTERATION, Key, ReplaysOf
from validator.checks.roundings import Constant
from validator.numerics.formats import Format
from validator.numerics.ulp import ulp

__all__ = ["FittedConstant", "edge_signature", "fit_constant", "parameter_signature", "residual_ulp"]

EXPLAINED_SHARE = 0.5
NEWTON_STEPS = 5
MINIMUM_RATIOS = 8
"""Fewer elements in one ratio are no evidence of a factor."""


def residual_ulp(error: Tensor, spacing: Tensor) -> float:
    """Return the root mean square of errors in root mean square ulp: near-zero elements don't drown the rest.

    Args:
        error: `[N]` float64.
        spacing: `[N]` float64, the ulp at each reference value.
    """
    return float(torch.sqrt(error.square().mean() / spacing.square().mean()))


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


def edge_signature(
    *,
    exact: Tensor,
    cand: Tensor,
    allowed: Tensor,
    fmt: Format,
    judged: Tensor,
    bias: Tensor | None = None,
    world_size: int = 1,
    reductions: int = 0,
) -> Signature | None:
    """Look for a correction of the oracle's values that makes the candidate agree.

    Args:
        exact: `[*]` float64 oracle.
        cand: `[*]` float64 candidate.
        allowed: `[*]` float64, what the band allows.
        fmt: the candidate's format.
        judged: `[*]` boolean.
        bias: `[channels]` float64 bias of the module, or None.
        world_size: number of ranks.
        reductions: how many sums over ranks the call made.

    Returns:
        The first hypothesis that holds, in the order of `kind`: `bias_per_rank`, `bias_missing`,
        `double_reduction`, `missing_reduction`, `factor`, `sign`, `constant_vector`; or None.
        `residual_ulp` is what stays.
    """
    usable = judged & exact.isfinite() & cand.isfinite()
    if not bool(usable.any()):
        return None

    def residual(corrected: Tensor, slack: float = 1.0, inexact: Tensor | float = 0.0) -> float | None:
        """Return what stays, or None where some of it is more than `slack` bands and half an ulp.

        `inexact` is how far the correction itself may be off.
        """
        # The candidate rounded the corrected value, which may be far larger than the oracle's.
        spacing = torch.maximum(ulp(corrected, fmt), ulp(exact, fmt))[usable]
        error = ((cand - corrected).abs() - inexact).clamp_min(0)[usable]
        if bool((error > slack * allowed[usable] + spacing / 2).any()):
            return None
        return residual_ulp(error, spacing)

    if bias is not None and bias.shape[-1:] == exact.shape[-1:] and bool(bias.any()):
        if world_size > 1:
            left = residual(exact + (world_size - 1) * bias, 2.0)
            if left is not None:
                parameters = {"times": world_size, "world_size": world_size}
                return Signature(kind="bias_per_rank", parameters=parameters, residual_ulp=left)
        left = residual(exact - bias, 2.0)
        if left is not None:
            return Signature(kind="bias_missing", parameters={}, residual_ulp=left)
    y, c = exact[usable], cand[usable]
    power = (y * y).sum()
    if power > 0:
        factor = float((y * c).sum() / power)
        if reductions and world_size > 1:
            for kind, ideal in (
                ("double_reduction", float(world_size)),
                ("missing_reduction", 1.0 / world_size),
            ):
                left = residual(ideal * exact, max(ideal, 1.0))
                if left is not None:
                    return Signature(
                        kind=kind, parameters={"factor": ideal, "reductions": reductions}, residual_ulp=left
                    )
        left = residual(factor * exact, max(abs(factor), 1.0))
        if left is not None and factor != 1.0:
            return Signature(kind="factor", parameters={"factor": factor}, residual_ulp=left)
    if exact.dim() >= 2 and exact.numel() > exact.shape[-1]:
        return _constant_vector(exact, cand, usable, residual)
    return None


def parameter_signature(
    *, reference: Tensor, candidate: Tensor, others: Callable[[], dict[str, Tensor]]
) -> Signature | None:
    """Say how a parameter came to differ.

    Args:
        reference: `[*]` float64, rounded to the candidate's format.
        candidate: `[*]` float64.
        others: the reference's other parameters of this shape by name, in float64.

    Returns:
        `other_parameter` (with its `name`), `permutation` (of rows or columns, with the `dim` and whether
        it moves whole `blocks`), `factor` (of the differing rows), or None.
    """
    for name, other in others().items():
        if torch.equal(other, candidate):
            return Signature(kind="other_parameter", parameters={"name": name}, residual_ulp=0.0)
    for dim in range(min(candidate.dim(), 2)):
        order = _row_order(reference.transpose(0, dim), candidate.transpose(0, dim))
        if order is not None:
            moved = order.diff()
            block = int((moved != 1).sum()) + 1
            parameters = {"dim": dim, "blocks": block, "block_size": len(order) // block}
            return Signature(kind="permutation", parameters=parameters, residual_ulp=0.0)
    differs = (reference != candidate) & (reference != 0)
    if int(differs.sum()) >= MINIMUM_RATIOS:
        ratio = candidate[differs] / reference[differs]
        middle = float(ratio.median())
        # A stored factor is rounded once more: 2^-7 covers bfloat16.
        if bool(((ratio - middle).abs() < 2.0**-7 * abs(middle)).all()) and abs(middle - 1) > 2.0**-7:
            return Signature(kind="factor", parameters={"factor": middle, "elements": int(differs.sum())})
    return None


def _constant_vector(
    exact: Tensor, cand: Tensor, usable: Tensor, residual: Callable[[Tensor, float, Tensor], float | None]
) -> Signature | None:
    flat_usable = usable.reshape(-1, exact.shape[-1])
    difference = torch.where(usable, cand - exact, torch.zeros_like(exact)).reshape(-1, exact.shape[-1])
    count = flat_usable.sum(0).clamp_min(1)
    vector = difference.sum(0) / count
    scatter = torch.where(flat_usable, difference - vector, torch.zeros_like(difference)).square().sum(0)
    # The vector is a mean over rows: five standard errors.
    total = difference.square().sum()
    if scatter.sum() > EXPLAINED_SHARE * total:
        # A mean can always be subtracted; as a hypothesis it must carry most of the difference.
        return None
    left = residual(exact + vector, 2.0, 5 * scatter.sqrt() / count)
    if left is None or not bool(vector.any()):
        return None
    return Signature(kind="constant_vector", parameters={"norm": float(vector.norm())}, residual_ulp=left)


def _row_order(reference: Tensor, candidate: Tensor) -> Tensor | None:
    """Return which row of the reference each row of the candidate is, or None where it is no permutation."""
    if reference.shape != candidate.shape or reference.shape[0] < 2:
        return None
    keys: dict[bytes, list[int]] = {}
    for i, row in enumerate(reference.contiguous()):
        keys.setdefault(row.numpy().tobytes(), []).append(i)
    order = []
    for row in candidate.contiguous():
        places = keys.get(row.numpy().tobytes())
        if not places:
            return None
        order.append(places.pop(0))
    result = torch.tensor(order)
    return None if bool((result == torch.arange(len(order))).all()) else result
