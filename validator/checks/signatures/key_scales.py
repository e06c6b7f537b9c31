"""Fits of the factors that attention's keys and values were multiplied by.

Shape legend: B = sequences, H = query heads, S = queries, T = keys, D = channels of a head.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from validator.checks.signatures.key_fits import Attended, EdgeOfHeads

__all__ = ["Scale", "fit_scale"]

STEPS = 12
SLOPE = 1e-5
CONVERGED = 1e-9
"""Gauss-Newton steps of a scale at most, each up to a factor of e; how far a factor is moved for its slope; a
step that takes away a smaller share of the error is the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Factors that were fitted, by what they multiply, and `[B, H, S, D]` what attention makes with them."""

    parameters: dict[str, Any]
    output: Tensor


def fit_scale(
    edge: EdgeOfHeads, attended: Attended, region: Tensor, *, of_keys: bool = False, of_values: bool = False
) -> Scale | None:
    """Fit factors to the active queries of an edge, by Gauss-Newton steps in their logarithms.

    Args:
        edge: what is fitted.
        attended: what the attention should do.
        region: `[B, H, S, T]` boolean, the keys and values that are multiplied.
        of_keys: whether the keys have a factor.
        of_values: whether the values have one.

    Returns:
        None where the candidate's scores can't be made of other keys.
    """
    chosen = edge.active[..., None].expand(edge.cand.shape)
    scale = 1 / edge.allowed[chosen]
    wanted = edge.cand[chosen] * scale
    free = [i for i, is_free in enumerate((of_keys, of_values)) if is_free]
    units = torch.eye(2, dtype=torch.float64)
    logs = torch.zeros(2, dtype=torch.float64)

    def made(at: Tensor) -> Tensor | None:
        return _scaled_output(attended, region, *(math.exp(float(x)) for x in at))

    output = made(logs)
    if output is None:
        return None
    error = float((wanted - output[chosen] * scale).square().sum())
    for _ in range(STEPS):
        slopes = [moved for i in free if (moved := made(logs + SLOPE * units[i])) is not None]
        if len(slopes) < len(free):
            return None
        matrix = torch.stack([(x - output)[chosen] * scale / SLOPE for x in slopes], -1)
        right = (wanted - output[chosen] * scale)[:, None]
        step = torch.linalg.lstsq(matrix, right).solution[:, 0].nan_to_num(nan=0.0).clamp(-1.0, 1.0)
        is_better = False
        for shorter in range(5):
            tried = logs.clone()
            tried[free] += step / 4**shorter
            at = made(tried)
            left = math.inf if at is None else float((wanted - at[chosen] * scale).square().sum())
            if at is not None and left < error:
                is_better = left < (1 - CONVERGED) * error
                logs, output, error = tried, at, left
                break
        if not is_better:
            break
    names = ("factor_of_keys", "factor_of_values")
    return Scale(parameters={names[i]: math.exp(float(logs[i])) for i in free}, output=output)


def _scaled_output(attended: Attended, region: Tensor, of_keys: float, of_values: float) -> Tensor | None:
    """Return `[B, H, S, D]` what attention makes where some keys and values are multiplied by factors."""
    weights = attended.weights
    if of_keys != 1.0:
        changed = attended.weights_of(attended.keys * of_keys)
        if changed is None:
            return None
        weights = changed
    inside = weights.where(region, 0.0)
    before = attended.weights.where(attended.seen, 0.0)
    outside = before.where(~region, 0.0)
    total = 1 + (inside - before.where(region, 0.0)).sum(-1, keepdim=True)
    made: Tensor = (outside @ attended.values + inside @ (attended.values * of_values)) / total
    return made if bool(made.isfinite().all()) else None
