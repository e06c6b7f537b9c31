"""The two sides of a comparison, brought together: one trace, or one a rank."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from validator.align.builder import build_trace
from validator.align.traces import Trace
from validator.capturing.reader import Capture
from validator.capturing.records import RankCapture, TensorRef
from validator.capturing.selection import Selection
from validator.errors import CaptureError, MismatchError

__all__ = ["traces", "unmatched"]


def traces(
    ref: Capture,
    cand: Capture,
    *,
    names: Mapping[str, str] | None = None,
    layout: Mapping[str, str] | None = None,
    mesh: Mapping[str, int] | None = None,
) -> Iterator[tuple[int | None, RankCapture, Trace]]:
    """Yield the rank that is compared (None for a whole candidate), the reference's capture, and the trace.

    Args:
        ref: the reference's capture.
        cand: the candidate's.
        names: the target's, as `build_trace` takes it, like the next two.
        layout: the target's.
        mesh: the target's.

    Raises:
        CaptureError: a rank is missing.
        MismatchError: the numbers of ranks don't fit.
    """
    for side in (ref, cand):
        missing = [rank for rank in range(side.manifest.world_size) if rank not in side.ranks]
        if missing:
            raise CaptureError(
                f"{side.path} lacks rank {missing[0]} of {side.manifest.world_size}: copy the other ranks' "
                "files into the folder, or capture all ranks."
            )
    selection = cand.manifest.selection
    if len(ref.ranks) == 1:
        ours = ref.rank(0)
        whole = [cand.rank(rank) for rank in cand.ranks]
        yield None, ours, _trace(whole, ours, selection, names=names, layout=layout, mesh=mesh)
    elif ref.ranks == cand.ranks:
        for rank in ref.ranks:
            ours = ref.rank(rank)
            yield rank, ours, _trace([_unplaced(cand.rank(rank))], ours, selection, names=names)
    else:
        raise MismatchError(
            f"{ref.path} has {len(ref.ranks)} ranks and {cand.path} has {len(cand.ranks)}: compare with a "
            "reference of one rank, or of as many ranks"
        )


def unmatched(trace: Trace) -> list[str]:
    """Say what one side alone has, and what the candidate's was not to have."""
    lacking = [
        name for name in trace.unmatched_parameters[0] if name.rpartition(".")[0] not in trace.left_out
    ]
    names = (
        ("modules", "reference", trace.unmatched_reference),
        ("modules", "candidate", trace.unmatched_candidate),
        ("parameters", "reference", lacking),
        ("parameters", "candidate", trace.unmatched_parameters[1]),
    )
    chosen = [trace.left_out.told()] if trace.left_out.modules else []
    return chosen + [
        f"{len(found)} {kind} of the {side} have no partner, such as {found[0]!r}"
        for kind, side, found in names
        if found
    ]


def _trace(
    cand: Sequence[RankCapture],
    ref: RankCapture,
    selection: Selection,
    *,
    names: Mapping[str, str] | None = None,
    layout: Mapping[str, str] | None = None,
    mesh: Mapping[str, int] | None = None,
) -> Trace:
    return build_trace(
        cand=cand,
        ref=ref,
        names=names,
        layout=layout,
        mesh=mesh,
        expands_batch=False,  # tensors are compared as they are
        selection=selection,
    )


def _unplaced(capture: RankCapture) -> RankCapture:
    """Return a rank's capture with its parts of sharded tensors as tensors of their own."""

    def part(value: object) -> object:
        if not isinstance(value, TensorRef):
            return value
        return replace(value, meta=replace(value.meta, placements=None, mesh=None, global_shape=None))

    def parts(values: Mapping[str, object]) -> dict[str, object]:
        return {path: part(value) for path, value in values.items()}

    return replace(
        capture,
        calls=tuple(
            replace(call, inputs=parts(call.inputs), outputs=parts(call.outputs)) for call in capture.calls
        ),
        collectives=(),
        parameters={
            name: replace(parameter, ref=part(parameter.ref))  # type: ignore[arg-type]
            for name, parameter in capture.parameters.items()
        },
    )
