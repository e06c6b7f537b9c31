"""Dry runs: a pipeline's schedule first runs each stage once on whatever is in memory, to learn shapes.

`torch.distributed.pipelining` does so when a new stage first runs. What these calls compute is thrown away.
"""

from collections.abc import Sequence
from dataclasses import replace

from validator.capturing.records import Call, RankCapture, TensorRef

__all__ = ["leave_out_dry_runs"]


def leave_out_dry_runs(
    cand: Sequence[RankCapture], *, ref: RankCapture, batch: int | None
) -> tuple[RankCapture, ...]:
    """Leave out a rank's first outermost call where the calls after it make up the whole batch.

    Args:
        cand: every rank's capture. One rank has no stages: what it runs twice is no dry run.
        ref: the reference's, which calls the model once or else nothing is left out.
        batch: sequences of the whole batch, or None where they can't be told.
    """
    if batch is None or len(cand) == 1 or sum(call.parent is None for call in ref.calls) != 1:
        return tuple(cand)
    return tuple([_without(capture, batch) for capture in cand])


def _without(capture: RankCapture, batch: int) -> RankCapture:
    outermost = [call for call in capture.calls if call.parent is None]
    sizes = [_sequences(call) for call in outermost]
    is_first_dry = len({call.module for call in outermost}) == 1 and sum(sizes[1:]) == batch < sum(sizes)
    if not is_first_dry:
        return capture
    dry = {outermost[0].id}
    for call in sorted(capture.calls, key=lambda call: call.start):
        if call.parent in dry:
            dry.add(call.id)
    return replace(
        capture,
        calls=tuple(call for call in capture.calls if call.id not in dry),
        collectives=tuple(c for c in capture.collectives if c.call not in dry),
    )


def _sequences(call: Call) -> int:
    """Return the size of the first dim of what a call was given, 0 where that was no tensor of two dims."""
    shapes = [value.meta.shape for value in call.inputs.values() if isinstance(value, TensorRef)]
    return next((shape[0] for shape in shapes if len(shape) > 1), 0)
