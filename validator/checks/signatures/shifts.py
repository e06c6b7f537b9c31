"""Rows of another place: the output of one position where another's belongs.

Shape legend: * = the edge's shape; B = sequences, S = positions, F = features of a row.
"""

import torch
from torch import Tensor

from validator.checks.findings import Signature
from validator.checks.signatures.subject import Subject

__all__ = ["shifted"]

MINIMUM_FEATURES = 8
"""Shorter rows may be alike by chance."""

PROBED = 64
"""Features of a row that it is searched by."""


def shifted(subject: Subject) -> Signature | None:
    """Say whether rows that are off are the oracle's of other positions, or of other sequences.

    Returns:
        `shifted` with the number of `tokens` that rows came too late (negative: too early) and of how many
        `sequences` further they are; or None.
    """
    rows = _rows(subject)
    if rows is None:
        return None
    exact, cand, allowed, usable, outside = rows
    guilty = outside.any(-1).nonzero()
    if not len(guilty):
        return None
    offsets = {_source(rows, guilty[len(guilty) * i // 3]) for i in range(3)}
    for offset in sorted(offsets - {None, (0, 0)}, key=lambda o: (abs(o[0]), abs(o[1])) if o else (0, 0)):
        assert offset is not None
        b, s = (guilty - torch.tensor(offset)).T
        has_source = (b >= 0) & (s >= 0) & (b < exact.shape[0]) & (s < exact.shape[1])
        if 2 * int(has_source.sum()) < len(guilty):
            continue
        corrected = exact.clone()
        at = guilty[has_source].unbind(-1)
        corrected[at] = exact[b[has_source], s[has_source]]
        known = torch.ones(exact.shape[:2], dtype=torch.bool)
        known[guilty[~has_source].unbind(-1)] = False
        moved = Subject(
            exact=exact,
            cand=cand,
            allowed=allowed,
            fmt=subject.fmt,
            judged=usable & known[..., None],
        )
        # The band is that of the row's own place.
        left = moved.residual(corrected, slack=2.0)
        if left is not None:
            sequences, tokens = offset
            parameters = {"tokens": tokens} | ({"sequences": sequences} if sequences else {})
            return Signature(kind="shifted", parameters=parameters, residual_ulp=left)
    return None


_Rows = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _rows(subject: Subject) -> _Rows | None:
    """Return the edge's tensors as `[B, S, F]`: the oracle, the candidate, the band, usable, outside."""
    dims = subject.dims
    if "token" not in dims or subject.exact.dim() < 2:
        return None
    order = [i for i, dim in enumerate(dims) if dim == "batch"][:1]
    token = dims.index("token")
    shape = subject.exact.shape
    rest = [i for i in range(len(dims)) if i not in (*order, token)]
    sequences = shape[order[0]] if order else 1
    if shape.numel() // (sequences * shape[token]) < MINIMUM_FEATURES:
        return None

    def arranged(values: Tensor) -> Tensor:
        moved = values.expand(shape).permute(*order, token, *rest)
        return moved.reshape(sequences, shape[token], -1)

    return (
        arranged(subject.exact),
        arranged(subject.cand),
        arranged(subject.allowed),
        arranged(subject.usable),
        arranged(subject.outside),
    )


def _source(rows: _Rows, place: Tensor) -> tuple[int, int] | None:
    """Return how far away from `place` the oracle's row is that the candidate has there, or None."""
    exact, cand, allowed, usable, _ = rows
    b, s = (int(i) for i in place)
    features = usable[b, s].nonzero()[:, 0]
    if len(features) < MINIMUM_FEATURES:
        return None
    probed = features[:: -(-len(features) // PROBED)]
    distance = (cand[b, s, probed] - exact[..., probed]).abs() / torch.maximum(
        allowed[b, s, probed], allowed[..., probed]
    )
    alike = (distance.amax(-1) <= 2).nonzero()
    if not len(alike):
        return None
    steps = torch.tensor([b, s]) - alike
    nearest = steps[int((steps[:, 0].abs() * exact.shape[1] + steps[:, 1].abs()).argmin())]
    return int(nearest[0]), int(nearest[1])
