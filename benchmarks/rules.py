"""Rules that ports are commonly accepted by, to be judged on the same runs as `validator`.

All look at the final logits alone, as their users do. Shape legend: N = logits of all real positions.
"""

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["RULES", "broken_rules"]

Rule = Callable[[Tensor, Tensor, Tensor, torch.dtype], bool]


def _cosine(x: Tensor, y: Tensor) -> float:
    return float(x @ y / (x.norm() * y.norm()))


def _low_cosine(ref: Tensor, cand: Tensor, control: Tensor, dtype: torch.dtype) -> bool:
    return not _cosine(ref, cand) >= 0.99


def _low_correlation(ref: Tensor, cand: Tensor, control: Tensor, dtype: torch.dtype) -> bool:
    return not _cosine(ref - ref.mean(), cand - cand.mean()) >= 0.99


def _not_close(ref: Tensor, cand: Tensor, control: Tensor, dtype: torch.dtype) -> bool:
    try:
        torch.testing.assert_close(cand.to(dtype), ref.to(dtype))
    except AssertionError:
        return True
    return False


def _far_in_l2(ref: Tensor, cand: Tensor, control: Tensor, dtype: torch.dtype) -> bool:
    return not float((cand - ref).norm() / ref.norm()) <= 1e-3


def _worse_than_control(ref: Tensor, cand: Tensor, control: Tensor, dtype: torch.dtype) -> bool:
    own = float((control - ref).norm())
    return not float((cand - ref).norm()) <= 2 * own


def _few_within_a_thousandth(ref: Tensor, cand: Tensor, control: Tensor, dtype: torch.dtype) -> bool:
    within = (cand - ref).abs() <= 1e-3 * ref.abs()
    return not float(within.double().mean()) >= 0.999


RULES: dict[str, Rule] = {
    "cosine < 0.99": _low_cosine,
    "PCC < 0.99": _low_correlation,
    "torch.testing defaults": _not_close,
    "relative L2 > 1e-3": _far_in_l2,
    "RMSE ratio > 2": _worse_than_control,
    "under 99.9% within 0.1%": _few_within_a_thousandth,
}
"""By name: tells whether a rule calls a candidate wrong. Each takes NaN for wrong."""


def broken_rules(*, ref: Tensor, cand: Tensor, control: Tensor, dtype: torch.dtype) -> dict[str, bool]:
    """Tell which rules would have called a candidate wrong.

    Args:
        ref: `[N]` the reference's logits, in its own dtype.
        cand: `[N]` the candidate's.
        control: `[N]` those of the reference's code run in the candidate's dtype, whose error the RMSE ratio
            takes for its unit.
        dtype: the candidate's, which sets `torch.testing`'s tolerances.
    """
    flat = [x.flatten().double() for x in (ref, cand, control)]
    return {name: rule(*flat, dtype) for name, rule in RULES.items()}
