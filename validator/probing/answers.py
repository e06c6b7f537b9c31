"""What a reduction must give, in float64, from all contributions.

Shape legend: N = ranks, * = elements.
"""

from torch import Tensor

from .exchanges import Reduction

__all__ = ["accumulated_slack", "reduced"]


def reduced(parts_N: Tensor, reduction: Reduction, *, world_size: int) -> Tensor:
    """Reduce contributions.

    Args:
        parts_N: `[M, *]` float64, any number of contributions: those of all ranks, or what a fault leaves.
        reduction: how.
        world_size: what an average divides by, whatever M is.

    Returns:
        `[*]` float64; exact where sums of the contributions are exact in float64. Without a contribution, 0.
    """
    if not len(parts_N):
        return parts_N.new_zeros(parts_N.shape[1:])
    match reduction:
        case Reduction.SUM:
            return parts_N.sum(0)
        case Reduction.AVG:
            return parts_N.sum(0) / world_size
        case Reduction.MAX:
            return parts_N.amax(0)
        case Reduction.MIN:
            return parts_N.amin(0)
    return parts_N.prod(0)


def accumulated_slack(parts_N: Tensor, unit_roundoff: float) -> Tensor:
    """Return how far any order of adding may end from the exact sum, `[*]`.

    Args:
        parts_N: `[N, *]` float64, the contributions.
        unit_roundoff: of the format that each of the N-1 sums is rounded to; one more rounding is allowed,
            for a wider accumulator, or an average's division before or after.

    Source:
        Higham, "Accuracy and stability of numerical algorithms", 2nd ed., section 4.2: (n-1)u to first order.
        N + 1 roundings, and 1% for the higher orders (N u < 0.01).
    """
    return 1.01 * (len(parts_N) + 1) * unit_roundoff * parts_N.abs().sum(0)
