"""What is known of a logical tensor of whose parts only samples or statistics were kept.

Shards have statistics of their own; together they are those of the whole tensor.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from validator.align.traces import View
from validator.capturing.records import Statistics, TensorMeta
from validator.sharding.plan import Plan

__all__ = ["WholeStatistics", "least_known"]


def least_known(metas: Mapping[int, TensorMeta]) -> int:
    """Return that at least one of so many elements is known on each rank: 1 for all, 0 for none."""
    shares = {meta.one_in for meta in metas.values()}
    return 0 if 0 in shares else max(shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeStatistics:
    """Puts the statistics of a tensor together from those of its parts, when called.

    Attributes:
        plan: where every part lies.
        metas: of the ranks' tensors.
    """

    plan: Plan
    metas: Mapping[int, TensorMeta]

    def __call__(self, view: View) -> Statistics | None:
        """Return the statistics as a view saw the tensor.

        Returns:
            None where the parts don't say: terms of a sum, padding, parts that overlap, numbers without any.
        """
        if self.plan.reduce is not None or any(holding.is_padded for holding in self.plan.holdings):
            return None
        chosen = [min(ranks, key=lambda r: (r not in view.ranks, r)) for ranks in self.plan.copies]
        parts = [self.metas[rank] for rank in chosen if prod(self.metas[rank].shape)]
        if sum(prod(part.shape) for part in parts) != prod(self.plan.shape):
            return None
        known = [(part.statistics, prod(part.shape)) for part in parts]
        described = [(s, size - s.nan - s.inf) for s, size in known if s is not None]
        if len(described) < len(known):
            return None
        finite = [(s, count) for s, count in described if count]
        total = sum(count for _, count in finite)
        nan, inf = sum(s.nan for s, _ in described), sum(s.inf for s, _ in described)
        if not total:
            return Statistics(min=math.nan, max=math.nan, mean=math.nan, rms=math.nan, nan=nan, inf=inf)
        return Statistics(
            min=min(s.min for s, _ in finite),
            max=max(s.max for s, _ in finite),
            mean=math.fsum(s.mean * (count / total) for s, count in finite),
            rms=math.hypot(*(s.rms * math.sqrt(count / total) for s, count in finite)),
            nan=nan,
            inf=inf,
        )
