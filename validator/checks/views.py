"""From what each view says to what holds of the run.

Where replicas differ, the ranks are judged in several views, each with its own copies of the
replicated tensors. A result that is gathered from ranks whose inputs differed holds, on all ranks,
parts that follow from different copies: each view explains its own part alone.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, TypeVar

import torch

from validator.align.traces import Trace, View
from validator.checks.edges import EdgeJudge
from validator.checks.findings import Check, Finding, Judgement, Verdict

__all__ = ["OutputKey", "merge_views", "mixed_outputs"]

OutputKey = tuple[str, int, str]
"""An output of a call: module, call, path."""

_Said = TypeVar("_Said", Judgement, Finding)
_MIXED = "its parts follow from the different inputs of different ranks"


def mixed_outputs(trace: Trace, judges: Sequence[EdgeJudge]) -> set[OutputKey]:
    """Find outputs that are alike on all ranks, made of inputs that were not, and nowhere wrong in all views.

    Args:
        trace: the candidate's run.
        judges: of every view.
    """
    if len(judges) == 1:
        return set()
    mixed = set()
    for call in trace.calls.values():
        if not any(edge.disagreeing for edge in call.inputs.values()):
            continue
        for path, edge in call.outputs.items():
            key = (call.module, call.n, path)
            if edge.disagreeing or not all(key in judge.said.guilty for judge in judges):
                continue
            common = reduce(lambda a, b: a[torch.isin(a, b)], [judge.said.guilty[key] for judge in judges])
            if not common.numel():
                mixed.add(key)
    return mixed


def merge_views(
    per_view: Sequence[Sequence[_Said]], views: Sequence[View], mixed: Collection[OutputKey]
) -> list[_Said]:
    """Merge what several views say of the same edge; what one rank's view alone says is that rank's.

    Args:
        per_view: findings or judgements of each view.
        views: the views, in the same order.
        mixed: outputs that no view explains alone, but all of them together do.
    """
    if len(per_view) == 1:
        return sorted(per_view[0], key=lambda item: item.order)
    groups: dict[tuple[Any, ...], list[tuple[View, _Said]]] = {}
    for view, items in zip(views, per_view, strict=True):
        for item in items:
            key: tuple[Any, ...] = (item.check, item.module, item.into, item.path, item.call)
            if item.check is Check.PARTIAL:
                key = (*key, item.rank)
            groups.setdefault(key, []).append((view, item))
    merged = []
    for said in groups.values():
        bad = [(view, item) for view, item in said if item.verdict is not Verdict.ALIGNED] or said
        first = said[0][1]
        if first.into is None and (first.module, first.call, first.path) in mixed:
            # A finding is no finding; a judgement says why.
            if isinstance(first, Judgement):
                merged.append(replace(first, verdict=Verdict.ALIGNED, arm=None, rank=None, note=_MIXED))
            continue
        view, item = bad[0]
        ranks = {rank for view, _ in bad for rank in view.ranks}
        is_everywhere = len(bad) == len(views)
        rank = item.rank if item.check is Check.PARTIAL else None
        if item.verdict is not Verdict.ALIGNED and not is_everywhere and len(ranks) == 1:
            rank = next(iter(ranks))
        merged.append(replace(item, rank=rank))
    return sorted(merged, key=lambda item: item.order)
