"""Compare two captures of a candidate bit by bit: by the checksums that are stored of whole tensors.

A checksum is of all elements and of their bits, at every level of a capture, so nothing is read or rounded.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from validator.capturing.reader import Capture
from validator.capturing.records import RankCapture, TensorMeta, TensorRef
from validator.report import phrases

__all__ = ["Bits", "compare_bits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bits:
    """Whether one run has the bits of another.

    Attributes:
        compared: how many tensors were.
        differing: those with other bits, shapes or formats, in execution order, parameters first.
        unknown: those that can't be compared, each with the reason.
    """

    compared: int
    differing: tuple[str, ...]
    unknown: tuple[str, ...]


def compare_bits(*, ref: Capture, cand: Capture) -> Bits:
    """Compare the bits of each tensor of two captures with the same ranks, rank by rank.

    Args:
        ref: the stored run.
        cand: the later one.

    Raises:
        CaptureError: a file is damaged.
    """
    compared, differing, unknown = 0, [], []
    for rank in sorted({*ref.ranks, *cand.ranks}):
        if rank not in ref.ranks or rank not in cand.ranks:
            unknown.append(f"rank {rank}: {_alone(rank in ref.ranks)}")
            continue
        of = f"rank {rank}, " if ref.manifest.world_size > 1 else ""
        then, now = (dict(_tensors(capture.rank(rank))) for capture in (ref, cand))
        for name in dict.fromkeys([*then, *now]):
            if name not in then or name not in now:
                unknown.append(f"{of}{name}: {_alone(name in then)}")
            elif not (then[name].checksum and now[name].checksum):
                unknown.append(f"{of}{name}: no checksum of it is stored")
            else:
                compared += 1
                if _bits(then[name]) != _bits(now[name]):
                    differing.append(of + name)
    for capture, when in ((ref, "recorded"), (cand, "of this run")):
        unknown += [f"{left}: it could not be stored ({when})" for left in capture.manifest.left_out]
    return Bits(compared=compared, differing=tuple(differing), unknown=tuple(unknown))


def _tensors(capture: RankCapture) -> Iterator[tuple[str, TensorMeta]]:
    """Yield the tensors by name in execution order, parameters first."""
    for name, parameter in capture.parameters.items():
        yield f"parameter {name}", parameter.ref.meta
    moments = []
    for call in capture.calls:
        of = phrases.module_name(call.module) + (f", call {call.n}" if call.n else "")
        moments.append((call.start, f"{of}, input", call.inputs))
        moments.append((call.start if call.end is None else call.end, f"{of}, output", call.outputs))
    for _, of, values in sorted(moments, key=lambda moment: moment[0]):
        for path, value in values.items():
            if isinstance(value, TensorRef):
                yield f"{of} {path}".rstrip(), value.meta


def _bits(meta: TensorMeta) -> tuple[object, ...]:
    return meta.dtype, meta.shape, meta.checksum


def _alone(is_stored: bool) -> str:
    return "it was recorded, and the run lacks it" if is_stored else "the run has it, and none was recorded"
