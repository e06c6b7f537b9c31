"""A candidate's capture with the values of its quantised weights in the place of their codes and scales.

From here on a quantised port is one like any other: its weights are put together from shards, split where
they are fused, and must equal the reference's, which its own loader dequantised.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch

from validator.capturing.records import Parameter, RankCapture, TensorMeta, TensorRef
from validator.quantised.formats import QuantisedWeight, dequantised, quantised_weights

__all__ = ["with_values"]


def with_values(capture: RankCapture, *, weights: str | None = None) -> RankCapture:
    """Replace the parts of each quantised weight by its values.

    Args:
        capture: one rank's.
        weights: format in which the values enter products; None for the one that most of the rank's other
            parameters have, which kernels for weights in narrow integers dequantise to.

    Returns:
        The capture itself where nothing is quantised. Parts that can't be dequantised stay as they are.
    """
    found = list(_found(capture))
    if not found:
        return capture
    parts = {name for weight, _ in found for name in weight.parts.values()}
    dtype = weights or _usual(p for name, p in capture.parameters.items() if name not in parts)
    parameters: dict[str, Parameter] = {}
    owner = {weight.parts["codes"]: (weight, shape) for weight, shape in found}
    for name, parameter in capture.parameters.items():
        if name in owner:
            made = _values(*owner[name], capture, dtype)
            parameters[made.name] = made
        elif name not in parts:
            parameters[name] = parameter
    return replace(capture, parameters=parameters)


def _found(capture: RankCapture) -> Iterator[tuple[QuantisedWeight, tuple[int, ...]]]:
    """Yield the weights that can be dequantised, with their shapes."""
    modules: dict[str, dict[str, str]] = {}
    for name, parameter in capture.parameters.items():
        if parameter.row_hashes is None:
            module, _, leaf = name.rpartition(".")
            modules.setdefault(module, {})[leaf] = parameter.ref.meta.dtype
    for module, dtypes in modules.items():
        prefix = f"{module}." if module else ""
        for weight in quantised_weights(dtypes):
            parts = {part: prefix + name for part, name in weight.parts.items()}
            found = replace(weight, name=prefix + weight.name, parts=parts)
            try:
                shape = _read(found, capture.parameters).shape
            except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError):
                continue  # they only look like the parts of a weight, or a format that the library has not
            yield found, tuple(shape)


def _usual(parameters: Iterator[Parameter]) -> str:
    """Return the floating dtype that most of some parameters have."""
    floating = Counter(
        p.ref.meta.dtype
        for p in parameters
        if p.kind == "parameter" and p.ref.meta.dtype in ("float32", "float16", "bfloat16")
    )
    return floating.most_common(1)[0][0] if floating else "float32"


def _values(weight: QuantisedWeight, shape: tuple[int, ...], capture: RankCapture, dtype: str) -> Parameter:
    sources = [capture.parameters[name] for name in weight.parts.values()]
    digest = hashlib.blake2b(":".join(p.ref.meta.checksum for p in sources).encode(), digest_size=16)
    meta = TensorMeta(
        dtype=dtype,
        shape=shape,
        checksum=digest.hexdigest(),
    )
    read = partial(_read, weight, capture.parameters, getattr(torch, dtype))
    return Parameter(name=weight.name, kind="parameter", ref=TensorRef(meta=meta, read=read))


def _read(
    weight: QuantisedWeight, parameters: Mapping[str, Parameter], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    parts = {part: parameters[name].ref.read() for part, name in weight.parts.items()}
    return dequantised(weight.kind, parts).to(dtype)
