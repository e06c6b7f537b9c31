"""How small a change of what a module returns the noise of a stored run lets pass.

Stored noise is that of everything before a tensor, and grows from layer to layer. What stays below it passes.
"""

from dataclasses import dataclass
from math import prod
from statistics import median

from validator.capturing.noise import Noise
from validator.capturing.records import RankCapture, TensorRef
from validator.checks.pairs import noise_lambda

__all__ = ["Resolution", "resolution_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """What passes, as a part of the root mean square of what a module returns.

    Attributes:
        typical: at the median module.
        coarsest: where most passes.
        module: which that is.
    """

    typical: float
    coarsest: float
    module: str


def resolution_of(ref: RankCapture, noise: Noise) -> Resolution | None:
    """Return how small a change passes, or None where no noise with statistics is stored.

    Args:
        ref: the stored reference.
        noise: how its noise was measured.

    Source:
        `PairJudge`: an element may be off by `lambda` times its noise. Of a tensor that is taken at the root
        mean squares of its noise and of its values.
    """
    found: dict[str, float] = {}
    outputs = [
        (call.module, value)
        for call in ref.calls
        for value in call.outputs.values()
        if isinstance(value, TensorRef) and value.noise is not None
    ]
    multiplier = (
        noise_lambda(sum(prod(value.meta.shape) for _, value in outputs), noise.runs) if outputs else 0
    )
    for module, value in outputs:
        sigma = None if value.noise is None else value.noise.meta.statistics
        values = value.meta.statistics
        if sigma is not None and values is not None and sigma.rms and values.rms:
            found[module] = max(found.get(module, 0.0), multiplier * sigma.rms / values.rms)
    if not found:
        return None
    worst = max(found, key=lambda module: found[module])
    return Resolution(typical=median(found.values()), coarsest=found[worst], module=worst)
