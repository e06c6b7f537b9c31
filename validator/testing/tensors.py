"""Whether two tensors differ by more than the last rounding, and how.

Shape legend: * = any shape, equal on both sides.
"""

import math

import torch
from torch import Tensor

from validator.errors import ComparisonError, UsageError
from validator.numerics.formats import format_of
from validator.numerics.rounding import round_nearest
from validator.numerics.ulp import ulp_error

__all__ = ["difference_text"]


def difference_text(*, ref: Tensor, cand: Tensor, max_ulp: float) -> str | None:
    """Say how a candidate differs from its reference, or None where it does so by rounding alone.

    Args:
        ref: `[*]` reference, a floating format; for integers and booleans every bit counts.
        cand: `[*]` candidate, of the same kind.
        max_ulp: how far an element may be from the reference, in ulp of the candidate's format; finite, 0.5
            or more.

    Returns:
        The headline and figures, or None. NaN explains NaN, and infinity an infinity of the same sign, or a
        reference that rounds to it.

    Raises:
        ComparisonError: shapes or kinds differ, there is no element to compare, or one is not dense or holds
            no values.
        UsageError: `max_ulp` is no finite number, or under 0.5, which no format can keep.
    """
    if not isinstance(max_ulp, int | float) or isinstance(max_ulp, bool) or max_ulp == math.inf:
        raise UsageError(f"max_ulp is {max_ulp!r}; it must be a finite number, 0.5 or more")
    if not max_ulp >= 0.5:
        raise UsageError(f"max_ulp is {max_ulp!r}; rounding alone makes 0.5")
    for name, tensor in (("ref", ref), ("cand", cand)):
        if tensor.is_meta or tensor.is_nested or tensor.layout is not torch.strided:
            what = "is on the meta device and holds no values" if tensor.is_meta else "is not dense"
            raise ComparisonError(f"{name} {what}: give a dense tensor with values")
    if ref.shape != cand.shape:
        raise ComparisonError(f"ref has the shape {list(ref.shape)} and cand {list(cand.shape)}")
    if not ref.numel():
        raise ComparisonError(f"ref and cand have the shape {list(ref.shape)}: there is nothing to compare")
    if ref.is_floating_point() != cand.is_floating_point() or ref.is_complex() or cand.is_complex():
        raise ComparisonError(f"ref is {_dtype(ref)} and cand {_dtype(cand)}: they can't be compared")
    ref, cand = ref.detach().cpu(), cand.detach().cpu()
    if not cand.is_floating_point():
        outside = ref != cand
        return _text(ref, cand, outside, None, "equal to the reference") if outside.any() else None
    exact = ref.to(torch.float64)
    error = ulp_error(exact=exact, cand=cand)
    rounded = round_nearest(exact, format_of(cand.dtype))
    value = cand.to(torch.float64)
    same_class = (rounded == value) | (torch.isnan(exact) & torch.isnan(value))
    outside = torch.where(torch.isfinite(exact) & torch.isfinite(value), error > max_ulp, ~same_class)
    if not outside.any():
        return None
    return _text(exact, value, outside, error, f"within {max_ulp:g} ulp of the reference", _dtype(cand))


def _text(
    ref: Tensor, cand: Tensor, outside: Tensor, error: Tensor | None, wanted: str, dtype: str = ""
) -> str:
    count, elements = int(outside.sum()), outside.numel()
    lines = [f"{count} of {elements} elements ({count / elements:.1%}) are not {wanted}"]
    classes = outside if error is None else outside & torch.isnan(error)
    at = int(classes.flatten().to(torch.int8).argmax()) if classes.any() or error is None else None
    if at is None:
        assert error is not None
        at = int(torch.where(outside, error, -math.inf).argmax())
    index = [int(i) for i in torch.unravel_index(torch.tensor(at), ref.shape)]
    distance = "" if error is None or classes.flatten()[at] else f", {float(error.flatten()[at]):.3g} ulp"
    label = "first" if error is None or classes.flatten()[at] else "worst"
    lines.append(
        f"  {label}  {index}: reference {ref.flatten()[at].item():.9g}, candidate "
        f"{cand.flatten()[at].item():.9g}{distance}"
    )
    lines.append(f"  shape  {list(ref.shape)}" + (f"  {dtype}" if dtype else ""))
    return "\n".join(lines)


def _dtype(values: Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")
