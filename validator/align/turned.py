"""Weights that lie the other way: a `Conv1D` of transformers keeps `[in, out]`, a `Linear` `[out, in]`."""

from collections.abc import Collection, Iterable
from dataclasses import replace

from validator.align.derived import transposed_parameter
from validator.capturing.records import RankCapture

__all__ = ["conv1d_weights", "turned"]


def conv1d_weights(captures: Iterable[RankCapture]) -> set[str]:
    """Return the names of the weights of all modules whose class is called `Conv1D`."""
    return {
        f"{fqn}.weight"
        for capture in captures
        for fqn, info in capture.modules.items()
        if info.type.rpartition(".")[2] == "Conv1D"
    }


def turned(captures: Iterable[RankCapture], names: Collection[str]) -> tuple[RankCapture, ...]:
    """Return captures in which these parameters, where they are matrices, are transposed."""
    return tuple(
        replace(
            capture,
            parameters={
                name: transposed_parameter(p) if name in names and len(p.ref.meta.shape) == 2 else p
                for name, p in capture.parameters.items()
            },
        )
        for capture in captures
    )
