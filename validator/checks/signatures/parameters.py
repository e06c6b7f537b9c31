"""How a parameter came to differ: another one's values, rows in another order, a factor.

Shape legend: * = the parameter's shape.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from validator.checks.findings import Signature
from validator.checks.orders import order_names
from validator.checks.signatures.scaling import MINIMUM_RATIOS

__all__ = ["parameter_signature"]


def parameter_signature(
    *,
    reference: Tensor,
    candidate: Tensor,
    others: Callable[[], Iterable[tuple[str, Tensor]]],
    rows: str = "channel",
) -> Signature | None:
    """Say how a parameter came to differ.

    Args:
        reference: `[*]` float64, rounded to the candidate's format.
        candidate: `[*]` float64.
        others: the reference's other parameters of this shape with their names, in float64.
        rows: what the first dim means.

    Returns:
        `other_parameter` (with its `name`), `permutation` (of rows or columns, with the `dim` and whether
        it moves whole `blocks`, and, of a layout that is known, what it `is` and `should_be`), `factor` (of
        the differing rows), or None.
    """
    for name, other in others():
        if torch.equal(other, candidate):
            return Signature(kind="other_parameter", parameters={"name": name}, residual_ulp=0.0)
    for dim in range(min(candidate.dim(), 2)):
        order = _row_order(reference.transpose(0, dim), candidate.transpose(0, dim))
        if order is not None:
            moved = order.diff()
            block = int((moved != 1).sum()) + 1
            parameters: dict[str, Any] = {"dim": dim, "blocks": block, "block_size": len(order) // block}
            if names := order_names(order.numpy(), meaning=rows if dim == 0 else "channel"):
                parameters["is"], parameters["should_be"] = names
            return Signature(kind="permutation", parameters=parameters, residual_ulp=0.0)
    differs = (reference != candidate) & (reference != 0)
    if int(differs.sum()) >= MINIMUM_RATIOS:
        ratio = candidate[differs] / reference[differs]
        middle = float(ratio.median())
        # A stored factor is rounded once more: 2^-7 covers bfloat16.
        if bool(((ratio - middle).abs() < 2.0**-7 * abs(middle)).all()) and abs(middle - 1) > 2.0**-7:
            return Signature(kind="factor", parameters={"factor": middle, "elements": int(differs.sum())})
    return None


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
