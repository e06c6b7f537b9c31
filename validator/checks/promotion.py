"""The dtypes that an operator's result has, by torch's own type promotion."""

from typing import Any

import torch
from torch import Tensor

from validator.checks.aten_calls import Form, listed, unflatten_call

__all__ = ["result_dtypes"]

_DTYPES: dict[Any, list[Any]] = {}


def result_dtypes(func: Any, leaves: list[Any], form: Form) -> list[Any]:
    """Return the dtype of each leaf of the operator's result, as torch's own type promotion gives it.

    The operator runs once on meta tensors of the reported dtypes; the answer is kept by what
    promotion depends on.
    """
    key: Any = (
        func,
        form,
        tuple(
            (x.dtype, x.dim() == 0)
            if isinstance(x, Tensor)
            else (type(x), x if isinstance(x, torch.dtype) else None)
            for x in leaves
        ),
    )
    try:
        known = _DTYPES.get(key)
    except TypeError:
        known, key = None, None
    if known is not None:
        return known
    metas = [
        torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device="meta")
        if isinstance(x, Tensor)
        else x
        for x in leaves
    ]
    metas = [torch.device("meta") if isinstance(x, torch.device) else x for x in metas]
    args, kwargs = unflatten_call(metas, form)
    if _creates(func):
        kwargs["device"] = torch.device("meta")
    try:
        result = func(*args, **kwargs)
    except (NotImplementedError, RuntimeError):
        floats = [
            x.dtype for x in leaves if isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())
        ]
        widest = floats[0] if floats else torch.get_default_dtype()
        for dtype in floats[1:]:
            widest = torch.promote_types(widest, dtype)
        return [widest] * 16
    labels = [x.dtype if isinstance(x, Tensor) else None for x in listed(result)]
    # How many tensors a list holds depends on more than the key says.
    if key is not None and not any(isinstance(r.type, torch.ListType) for r in func._schema.returns):
        _DTYPES[key] = labels
    return labels


def _creates(func: Any) -> bool:
    return any(a.name == "device" for a in func._schema.arguments)
