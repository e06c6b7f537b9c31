"""Edges made by hand: an oracle, what a candidate stores, and what is said of the pair."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from validator.checks.findings import Signature
from validator.checks.signatures import Subject, edge_signature, region_of
from validator.numerics.formats import FORMATS, Format
from validator.numerics.rounding import round_nearest
from validator.numerics.ulp import ulp

BF16, FP16, FP32 = (FORMATS[name] for name in ("bfloat16", "float16", "float32"))
DIMS = ("batch", "token", "channel")


def values(*shape: int, seed: int = 0) -> Tensor:
    """Return `[*]` float64 noise, by default 4 sequences of 16 tokens of 32 channels."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape or (4, 16, 32), generator=generator, dtype=torch.float64)


def subject(
    exact: Tensor, cand: Tensor, *, fmt: Format = BF16, noise: float = 0.1, **options: Any
) -> Subject:
    """Return an edge whose candidate is rounded to a format; `noise` is what the band adds, in ulp."""
    options.setdefault("judged", torch.ones(exact.shape, dtype=torch.bool))
    options.setdefault("dims", DIMS[-exact.dim() :])
    allowed = ulp(exact, fmt) * (0.5 + noise)
    return Subject(exact=exact, cand=round_nearest(cand, fmt), allowed=allowed, fmt=fmt, **options)


def signature(exact: Tensor, cand: Tensor, **options: Any) -> Signature | None:
    """Return what the searches say: a correction, else a region."""
    edge = subject(exact, cand, **options)
    return edge_signature(edge) or region_of(edge)


def named(exact: Tensor, cand: Tensor, **options: Any) -> tuple[str, Mapping[str, Any]] | None:
    """Return the kind of fault and its parameters."""
    found = signature(exact, cand, **options)
    return None if found is None else (found.kind, dict(found.parameters))


def kind(exact: Tensor, cand: Tensor, **options: Any) -> str | None:
    """Return the kind of fault alone."""
    found = signature(exact, cand, **options)
    return None if found is None else found.kind
