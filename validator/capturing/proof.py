"""Proof that looking changed nothing: a run's outputs with hooks against those without.

A run that repeats itself must give the same bits with hooks. One that does not (atomic additions,
say) is repeated without hooks to learn its own spread, which the run with hooks may not exceed.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .copies import copy_tensor
from .digest import checksum
from .formats_hdf5 import dtype_name, element_bytes
from .manifest import Proof, ProofStatus
from .values import tensors

__all__ = ["RandomState", "copy_outputs", "judge", "repeat", "same_bits", "worst"]

_ORDER = list(ProofStatus)

Outputs = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomState:
    """The state of the generators that a run may draw from."""

    python: Any
    numpy: Any
    torch_cpu: torch.Tensor
    torch_cuda: tuple[torch.Tensor, ...]

    @classmethod
    def now(cls) -> "RandomState":
        """Return the state at this moment."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        return cls(
            python=random.getstate(),
            numpy=np.random.get_state(),
            torch_cpu=torch.get_rng_state(),
            torch_cuda=tuple(cuda),
        )

    def restore(self) -> None:
        """Go back to this state."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch_cpu)
        if self.torch_cuda:
            torch.cuda.set_rng_state_all(list(self.torch_cuda))


def copy_outputs(value: Any) -> Outputs:
    """Return copies of this rank's parts of a run's output tensors, by path."""
    copies = {path: copy_tensor(tensor) for path, tensor in tensors(value).items()}
    return {path: copy.wait() for path, copy in copies.items() if copy is not None}


def same_bits(a: Outputs, b: Outputs) -> bool:
    """Say whether two runs' outputs are the same tensors, bit by bit."""
    return _digests(a) == _digests(b)


def judge(*, hooked: Outputs, plain: Sequence[Outputs]) -> Proof:
    """Say what the hooks did to a run.

    Args:
        hooked: outputs with hooks.
        plain: outputs of one or more runs without.
    """
    if not hooked and not plain[0]:
        return Proof(status=ProofStatus.SKIPPED, reason="the run returned no tensor to compare")
    if same_bits(hooked, plain[0]):
        return Proof(
            status=ProofStatus.IDENTICAL,
            reason="the outputs with hooks and without are bit-identical",
            difference=0.0,
        )
    # The nearest: had the hooks no effect, this run would be as far from the others as they are apart.
    difference = min(_difference(hooked, run) for run in plain)
    spread = max(_difference(a, b) for i, a in enumerate(plain) for b in plain[i + 1 :]) if plain[1:] else 0.0
    within = difference <= spread < float("inf")
    return Proof(
        status=ProofStatus.WITHIN_SPREAD if within else ProofStatus.CHANGED,
        reason=(
            f"the outputs with hooks differ by up to {difference:.3g} from those without, "
            f"which differ by up to {spread:.3g} among themselves"
        ),
        difference=difference,
        spread=spread,
    )


def worst(proofs: Sequence[Proof]) -> Proof:
    """Return the worst of the ranks' proofs."""
    return max(proofs, key=lambda proof: _ORDER.index(proof.status))


def repeat(run: Callable[[], Any], state: RandomState) -> Outputs:
    """Run once more from the same random state, and return the outputs."""
    state.restore()
    return copy_outputs(run())


def _digests(outputs: Outputs) -> dict[str, tuple[str, tuple[int, ...], str]]:
    return {
        path: (dtype_name(x.dtype), tuple(x.shape), checksum(element_bytes(x))) for path, x in outputs.items()
    }


def _difference(a: Outputs, b: Outputs) -> float:
    if a.keys() != b.keys():
        return float("inf")
    return max((_tensor_difference(a[path], b[path]) for path in a), default=0.0)


def _tensor_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    if a.dtype != b.dtype or a.shape != b.shape:
        return float("inf")
    if a.numel() == 0 or np.array_equal(element_bytes(a), element_bytes(b)):
        return 0.0
    wide = torch.complex128 if a.is_complex() else torch.float64
    x, y = a.to(wide), b.to(wide)
    apart = (x - y).abs()
    # Equal infinities and two NaNs are no difference; one infinity or one NaN is an infinite one.
    apart[(x == y) | (x.isnan() & y.isnan())] = 0.0
    return float(apart.nan_to_num(nan=float("inf"), posinf=float("inf")).max())
