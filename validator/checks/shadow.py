"""A tensor that reports one dtype and computes in float64: what model code sees under `Arithmetic`.

Shape legend: * = any shape.
"""

from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from validator.errors import TargetError

__all__ = ["ShadowTensor", "real_view", "widened"]


_CAUSES = (
    (
        ("slice", "narrow"),
        "tokens were taken back, as speculative decoding, prompt lookup and a cache's crop() do; switch "
        "assisted decoding off for this run",
    ),
    (
        ("index", "index_select", "gather"),
        "sequences were reordered or left out, as a beam search does, or a batch that sequences leave; let "
        "run() generate greedily, one sequence a prompt, and keep all sequences to the end",
    ),
)
"""What an operator on a cache is likely to be there for, by the operator's name, and what to do instead."""


def real_view(tensor: Tensor) -> Tensor:
    """Return a complex tensor with a last dim of real and imaginary part, any other as it is."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def widened(tensor: Tensor) -> Tensor:
    """Return a floating or complex tensor in float64 or complex128."""
    return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)


class ShadowTensor(Tensor):
    """A tensor that reports one dtype and holds float64 values (complex128 for a complex one).

    Attributes:
        data64: `[*]` float64, the value that later operators see.
        exact64: `[*]` float64, the value before this tensor's own last rounding.
        depth: how many operators that round stand between the values that the shadow was made from and this
            one, its own last rounding included; 0 means that the value was only moved.
        is_cast: whether a cast to a narrower dtype came after the last of them.
        sigma64: `[*]` float64 or None: sigma of the last operator's inner arithmetic, kept while it is the
            only one.
        bound64: `[*]` float64 or None: hard bound on a coherent error of the last operator.
        unknown: name of an operator behind this value whose rounding is not known, or "".
        aliases: the shadows that share this one's values: views of it, what it is a view of, and itself.
        slots: where it stands on each tape that it was recorded on.
    """

    data64: Tensor
    exact64: Tensor
    depth: int
    is_cast: bool
    sigma64: Tensor | None
    bound64: Tensor | None
    unknown: str
    aliases: "WeakSet[ShadowTensor]"
    slots: dict[int, int]

    @staticmethod
    def __new__(  # noqa: D102 - the class says what it takes
        cls,
        data64: Tensor,
        dtype: torch.dtype,
        *,
        exact64: Tensor | None = None,
        depth: int = 0,
        is_cast: bool = False,
        sigma64: Tensor | None = None,
        bound64: Tensor | None = None,
        unknown: str = "",
        aliases: "WeakSet[ShadowTensor] | None" = None,
    ) -> "ShadowTensor":
        shadow: ShadowTensor = Tensor._make_wrapper_subclass(
            cls,
            data64.size(),
            strides=data64.stride(),
            storage_offset=data64.storage_offset(),
            dtype=dtype,
            device=data64.device,
            requires_grad=False,
        )
        shadow.data64 = data64
        shadow.exact64 = data64 if exact64 is None else exact64
        shadow.depth = depth
        shadow.is_cast = is_cast
        shadow.sigma64 = sigma64
        shadow.bound64 = bound64
        shadow.unknown = unknown
        shadow.aliases = WeakSet() if aliases is None else aliases
        shadow.aliases.add(shadow)
        shadow.slots = {}
        return shadow

    def __repr__(self) -> str:  # type: ignore[override]
        return f"ShadowTensor({self.data64!r}, dtype={self.dtype})"

    def __deepcopy__(self, memo: Any) -> "ShadowTensor":
        return self.copied()

    def become(self, other: "ShadowTensor") -> None:
        """Take the values of another tensor of the same shape; not to be called under `Arithmetic`."""
        self.data64.copy_(other.data64)
        if self.exact64 is not self.data64:
            self.exact64.copy_(other.exact64)
        self.depth, self.is_cast = other.depth, other.is_cast
        self.sigma64, self.bound64, self.unknown = other.sigma64, other.bound64, other.unknown

    def copied(self) -> "ShadowTensor":
        """Return a copy that in-place operators here don't reach; not to be called under `Arithmetic`."""
        data64 = self.data64.clone()
        return ShadowTensor(
            data64,
            self.dtype,
            exact64=data64 if self.exact64 is self.data64 else self.exact64.clone(),
            depth=self.depth,
            is_cast=self.is_cast,
            sigma64=self.sigma64,
            bound64=self.bound64,
            unknown=self.unknown,
        )

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", str(func)).partition(".")[0]
        causes = [text for names, text in _CAUSES if name in names] or [text for _, text in _CAUSES]
        raise TargetError(
            f"{func} worked on what the oracle computed, a cache say, between two calls of the model, which "
            f"can't be followed: {'; or '.join(causes)}"
        )

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
