"""The figures of, and the verdict on, a pair of which samples, statistics or hashes alone are stored.

Shape legend: K = elements that both sides know.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from validator.align.traces import Edge, View
from validator.capturing.levels import NOTHING, kept
from validator.capturing.records import Parameter, TensorRef
from validator.checks.findings import Arm, Evidence
from validator.checks.stored_rows import differing_rows
from validator.comparing.records import Figures
from validator.comparing.verdicts import Verdicts
from validator.errors import CaptureError
from validator.numerics.metrics import Metrics, measure_blocks

__all__ = ["Measured", "is_sampled", "measure_hashes", "measure_thin"]

Measured = tuple[Figures, tuple[Arm | None, Evidence, str] | None]
"""The figures of a pair, and what the noise says of it: the rule that fired, the evidence, a few words."""


def is_sampled(ref: TensorRef, cand: Edge) -> bool:
    """Say whether some elements of a pair are not stored on one side."""
    return ref.meta.one_in != 1 or cand.one_in != 1


def measure_thin(ref: TensorRef, cand: Edge, view: View, verdicts: Verdicts | None) -> Measured:
    """Measure and judge a pair by what is stored of both sides.

    Args:
        ref: the reference's tensor.
        cand: the candidate's.
        view: whose copies of it are taken.
        verdicts: judges by the noise, or None where none is known.

    Raises:
        CaptureError: the two samples have no element in common, or a file is damaged.
    """
    if NOTHING in (ref.meta.one_in, cand.one_in):
        figures = Figures(metrics=Metrics(elements=prod(cand.shape)))
        if verdicts is None:
            return figures, None
        of_all = verdicts.judge_statistics(ref, cand, view)
        gone = verdicts.judge_class(ref, cand, view)
        return figures, gone if gone is not None and gone[0] is not None else of_all
    theirs, ours = ref.read().reshape(-1), cand.read(view).data.reshape(-1)
    own_nan = _kept_nan(ours, cand)
    known = torch.ones(len(theirs), dtype=torch.bool)
    for values, one_in in ((theirs, ref.meta.one_in), (ours, cand.one_in)):
        if one_in != 1:
            known &= ~values.isnan()
    places = known.nonzero()[:, 0]
    gone = None if verdicts is None else verdicts.judge_class(ref, cand, view, own_nan)
    if not len(places) and gone is None:
        raise CaptureError(_nothing_common(ref, cand))
    judge = None if verdicts is None else verdicts.judge(ref, cand, places=places)
    metrics = measure_blocks(
        ref=_taken(theirs, places),
        cand=_taken(ours, places),
        shape=(len(places),),
        also=None if judge is None else judge.add,
    )
    index = metrics.worst_index
    if index is not None:
        index = _index(int(places[index[0]]), cand.shape)
    figures = Figures(metrics=replace(metrics, dims=(), worst_index=index))
    if gone is not None and (gone[0] is not None or judge is None):
        return figures, gone
    if judge is None:
        return figures, None
    arm, evidence = judge.result()
    at = evidence.worst_index
    where = None if at is None else _index(int(places[at[0]]), cand.shape)
    note = "" if gone is None or arm is not None else gone[2]
    return figures, (arm, replace(evidence, worst_index=where, shape=cand.shape, dims=cand.dims), note)


def measure_hashes(parameter: Parameter, cand: Edge, view: View) -> Measured:
    """Compare a parameter of whose rows one side has hashes alone, with the reference's rounded once.

    Raises:
        CaptureError: what is stored of the two sides can't be compared.
    """
    theirs = parameter.ref
    if cand.row_hashes is None:
        raise CaptureError(
            f"{parameter.name}: the reference's values are not stored, only hashes of its rows, which say "
            "nothing of a candidate's values. Capture the reference with --level full"
        )
    hashes = cand.row_hashes(view)
    if parameter.row_hashes is not None:
        if theirs.meta.dtype != cand.dtype:
            raise CaptureError(
                f"{parameter.name}: only hashes of its rows are stored, of {theirs.meta.dtype} in the "
                f"reference and of {cand.dtype} in the candidate, which can't be compared. Capture the "
                "reference with --level full"
            )
        rows = [i for i, (a, b) in enumerate(zip(parameter.row_hashes, hashes, strict=True)) if a != b]
    else:
        rows = differing_rows(theirs.read(), cand.dtype, hashes)
    elements = prod(cand.shape)
    mismatched = len(rows) * (elements // max(1, len(hashes)))
    return Figures(metrics=Metrics(elements=elements, compared=elements, mismatched=mismatched)), None


def _taken(values: Tensor, places: Tensor) -> Iterator[Tensor]:
    if values.element_size() == 1 and values.is_floating_point():  # float8 can't be indexed
        yield values.view(torch.uint8)[places].view(values.dtype)
    else:
        yield values[places]


def _kept_nan(values: Tensor, cand: Edge) -> Tensor:
    """Return `[n]` the places of a sampled tensor that were kept and are NaN.

    Parts that start inside of a sample's period, and those that were put in another order, have elements
    elsewhere: of these nothing is returned, since NaN stands for what was not kept as well.
    """
    none = torch.zeros(0, dtype=torch.int64)
    if cand.one_in in (1, NOTHING):
        return values.isnan().nonzero()[:, 0] if cand.one_in == 1 else none
    places = torch.from_numpy(kept(cand.shape, cand.one_in))
    elsewhere = ~values.isnan()
    elsewhere[places] = False
    return none if bool(elsewhere.any()) else places[values.isnan()[places]]


def _index(place: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(place), shape))


def _nothing_common(ref: TensorRef, cand: Edge) -> str:
    return (
        f"{cand.path or 'it'}: the samples of both sides have no element in common (one in "
        f"{ref.meta.one_in} and one in {cand.one_in} of {list(cand.shape)} were kept; shards that start "
        "inside of a sample's period have other elements). Capture one side with --level full"
    )
