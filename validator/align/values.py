"""Whether two modules hold the same parameters, or made the same of what they were given.

Where names say nothing, values tell which module is which. Parameters are compared as they are stored:
the reference's are rounded to the candidate's format first. A rank's shard is compared with as much of
the reference's tensor as it would hold on the first rank.
"""

import math

import torch

from validator.align.trees import Tree
from validator.capturing.digest import checksum
from validator.capturing.formats_hdf5 import element_bytes
from validator.capturing.levels import NOTHING
from validator.capturing.records import TensorMeta
from validator.errors import CaptureError

__all__ = ["Values"]


class Values:
    """Compares parameters of two trees; each of the reference's is read once a format and shape.

    Args:
        cand: the candidate's tree.
        ref: the reference's.
    """

    def __init__(self, *, cand: Tree, ref: Tree) -> None:
        self._cand = cand
        self._ref = ref
        self._digests: dict[tuple[str, str, tuple[int, ...]], str | None] = {}

    def shared(self, cand: str, ref: str) -> float:
        """Return how much of a candidate's module is in a module of the reference, bit for bit: 0 to 1."""
        theirs = list(self._ref.parameters_inside(ref))
        total = found = 0
        for name in self._cand.parameters_inside(cand):
            meta = self._first(name)
            size = math.prod(meta.shape)
            total += size
            if any(self._digest(other, meta.dtype, meta.shape) == meta.checksum for other in theirs):
                found += size
        return found / total if total else 0.0

    def distance(self, cand: str, ref: str) -> float:
        """Return how far apart what two modules first returned is, relative to the reference's size.

        Infinite where one did not run, or they returned tensors of other shapes or no numbers.
        """
        ours, theirs = self._cand.outputs.get(cand), self._ref.outputs.get(ref)
        if ours is None or theirs is None or ours.meta.shape != theirs.meta.shape:
            return math.inf
        if not all(
            tensor.meta.dtype in ("float16", "bfloat16", "float32", "float64") for tensor in (ours, theirs)
        ):
            return math.inf
        if NOTHING in (ours.meta.one_in, theirs.meta.one_in):
            return math.inf
        want, have = theirs.read().to(torch.float64), ours.read().to(torch.float64)
        if (ours.meta.one_in, theirs.meta.one_in) != (1, 1):
            known = ~(want.isnan() | have.isnan())
            want, have = want[known], have[known]
        off = torch.linalg.vector_norm(have - want)
        distance = float(off / torch.linalg.vector_norm(want))
        return distance if math.isfinite(distance) else math.inf

    def holds(self, cand: str, ref: str, *, row: int) -> bool:
        """Tell whether a candidate's parameter has the reference's from a row on.

        Args:
            cand: name of the candidate's parameter, `[rows, *]`.
            ref: name of the reference's, of which the first row is looked at.
            row: where it should begin.
        """
        parameters = self._cand.parameters[cand]
        first = parameters[min(parameters)]
        theirs = self._read(ref)
        try:
            ours = first.ref.read()
        except CaptureError:
            return False
        if theirs is None or row >= len(ours) or ours[row].shape != theirs[0].shape:
            return False
        return torch.equal(*(_bits(one) for one in (ours[row], theirs[0].to(ours.dtype))))

    def _first(self, name: str) -> TensorMeta:
        parameters = self._cand.parameters[name]
        return parameters[min(parameters)].ref.meta

    def _digest(self, name: str, dtype: str, shape: tuple[int, ...]) -> str | None:
        key = (name, dtype, shape)
        if key not in self._digests:
            self._digests[key] = self._made(*key)
        return self._digests[key]

    def _made(self, name: str, dtype: str, shape: tuple[int, ...]) -> str | None:
        own = self._ref.parameters[name]
        whole = own[min(own)].ref.meta.shape
        if self._cand.world_size == 1 and shape != whole:
            return None
        if len(whole) != len(shape) or any(part > size for part, size in zip(shape, whole, strict=True)):
            return None
        tensor = self._read(name)
        if tensor is None:
            return None
        part = tensor[tuple(slice(size) for size in shape)].to(getattr(torch, dtype)).contiguous()
        return checksum(element_bytes(part))

    def _read(self, name: str) -> torch.Tensor | None:
        """Return the reference's parameter, or None where its values are not stored."""
        own = self._ref.parameters[name]
        try:
            return own[min(own)].ref.read()
        except CaptureError:
            return None


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    # torch can't compare float8.
    return tensor.reshape(-1).contiguous().view(torch.uint8)
