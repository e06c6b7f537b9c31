"""Which edges of a model hold the channels of its attention heads, one head after the other."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

__all__ = ["HeadSizes", "head_sizes"]

_INTO_HEADS = ("q_proj", "k_proj", "v_proj")
_OUT_OF_HEADS = ("o_proj", "out_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSizes:
    """How many channels a head has, by the fqn of the module.

    Attributes:
        inputs: of modules that are given heads.
        outputs: of modules that return heads.
    """

    inputs: Mapping[str, int] = field(default_factory=dict)
    outputs: Mapping[str, int] = field(default_factory=dict)


def head_sizes(reference: nn.Module) -> HeadSizes:
    """Look for the projections into heads and out of heads, of attention that tells how large its heads are.

    A projection counts where it makes, or takes, as many heads as there are of queries or of keys: one that
    makes queries and gates at once is of other parts than heads.

    Args:
        reference: the trusted model.
    """
    inputs: dict[str, int] = {}
    outputs: dict[str, int] = {}
    for fqn, module in reference.named_modules():
        size = getattr(module, "head_dim", None)
        if type(size) is not int:
            continue
        whole = {count * size for count in _counts(module)}
        before = f"{fqn}." if fqn else ""
        for name, child in module.named_children():
            if name in _INTO_HEADS and getattr(child, "out_features", None) in whole:
                outputs[before + name] = size
            if name in _OUT_OF_HEADS and getattr(child, "in_features", None) in whole:
                inputs[before + name] = size
    return HeadSizes(inputs=inputs, outputs=outputs)


def _counts(module: nn.Module) -> Iterator[int]:
    """Yield how many heads of queries, and of keys, attention says that it has."""
    config: Any = getattr(module, "config", None)
    for name in ("num_attention_heads", "num_heads", "num_key_value_heads"):
        for owner in (module, config):
            count = getattr(owner, name, None)
            if type(count) is int:
                yield count
