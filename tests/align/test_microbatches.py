"""Calls of micro-batches are one call of the whole batch."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from tests.align.build import Recorder, tensor_ref
from validator.align.microbatches import join_microbatches
from validator.capturing.records import Call, RankCapture, TensorRef

BATCH = 4
X = torch.randn(BATCH, 3, 2, generator=torch.Generator().manual_seed(0))
TABLES = torch.arange(3.0)[None]


def run(*parts: slice, inside: bool = False, tables: torch.Tensor = TABLES) -> RankCapture:
    """Record a model of a rotary table and one layer, run on parts of the batch, in one call or one each."""
    recorder = Recorder()

    def body(part: slice) -> None:
        with recorder.call("body", {"x": X[part]}) as out:
            recorder.leaf("rotary", {"positions": TABLES}, tables)
            with recorder.call("up", {"input": X[part]}) as up:
                recorder.reduce(X[part] / 2, X[part], (0, 1))
                up[""] = X[part]
            out[""] = 2 * X[part]

    if inside:
        with recorder.call("", {"x": X}) as out:
            for part in parts:
                body(part)
            out[""] = 3 * X
    else:
        for part in parts:
            with recorder.call("", {"x": X[part], "use_cache": False}) as out:
                body(part)
                out[""] = 3 * X[part]
    return recorder.capture()


def joined(cand: RankCapture, ref: RankCapture) -> RankCapture:
    names = {name: name for name in ref.modules}
    (found,) = join_microbatches(cand=[cand], ref=ref, modules=names, batch=BATCH)
    return found


def calls(capture: RankCapture) -> dict[str, Call]:
    assert len({call.module for call in capture.calls}) == len(capture.calls)
    return {call.module: call for call in capture.calls}


def tensor(values: Mapping[str, Any], path: str) -> torch.Tensor:
    value = values[path]
    assert isinstance(value, TensorRef)
    read = value.read()
    assert value.meta.checksum == tensor_ref(read).meta.checksum
    return read


WHOLE = run(slice(0, BATCH))


@pytest.mark.parametrize("inside", [False, True], ids=["one call each", "in one call"])
@pytest.mark.parametrize(
    "parts",
    [(slice(0, 2), slice(2, 4)), (slice(0, 3), slice(3, 4)), tuple(slice(i, i + 1) for i in range(4))],
    ids=["halves", "uneven", "one by one"],
)
def test_parts_of_the_batch_are_one_call_with_its_sums(parts: tuple[slice, ...], inside: bool) -> None:
    found = joined(run(*parts, inside=inside), WHOLE)
    by_module = calls(found)
    assert by_module.keys() == {"", "body", "rotary", "up"}
    assert [by_module[m].parent for m in ("", "body", "up")] == [None, by_module[""].id, by_module["body"].id]
    assert torch.equal(tensor(by_module[""].outputs, ""), 3 * X)
    assert torch.equal(tensor(by_module["up"].inputs, "input"), X)
    assert torch.equal(tensor(by_module["rotary"].outputs, ""), TABLES)
    (sum_,) = found.collectives
    assert sum_.call == by_module["up"].id
    assert torch.equal(sum_.entered[0].read(), X / 2)


def test_sums_of_single_numbers_are_joined_too() -> None:
    recorder = Recorder()
    with recorder.call("", {"x": X}):
        for part in (X[:2], X[2:]):
            with recorder.call("up", {"input": part}) as out:
                recorder.reduce(part.sum(), part.sum(), (0, 1))
                out[""] = part
    reference = Recorder()
    with reference.call("", {"x": X}):
        reference.leaf("up", X, X)
    (sum_,) = joined(recorder.capture(), reference.capture()).collectives
    assert torch.equal(sum_.left[0].read(), torch.stack([X[:2].sum(), X[2:].sum()]))


def test_what_every_part_has_alike_alone_is_no_micro_batch() -> None:
    recorder = Recorder()
    with recorder.call("", {"x": X}):
        for _ in range(2):
            recorder.leaf("up", X, X)
    cand = recorder.capture()
    reference = Recorder()
    with reference.call("", {"x": X}):
        reference.leaf("up", X, X)
    assert joined(cand, reference.capture()).calls == cand.calls


def test_parts_that_do_not_make_up_the_batch_stay_apart() -> None:
    cand = run(slice(0, 2), slice(2, 3))
    assert joined(cand, WHOLE).calls == cand.calls


def test_a_module_that_one_part_alone_called_is_that_parts() -> None:
    recorder = Recorder()
    for part in (slice(0, 2), slice(2, 4)):
        with recorder.call("", {"x": X[part]}) as out:
            if part.start == 0:
                recorder.leaf("expert", X[0, :1], X[0, :1])
            out[""] = X[part]
    reference = Recorder()
    with reference.call("", {"x": X}) as out:
        reference.leaf("expert", X[0, :1], X[0, :1])
        out[""] = X
    by_module = calls(joined(recorder.capture(), reference.capture()))
    assert by_module["expert"].parent == by_module[""].id
    assert torch.equal(tensor(by_module["expert"].inputs, "input"), X[0, :1])


@pytest.mark.parametrize(("rows", "count"), [(BATCH, 1), (BATCH + 2, 2)])
def test_calls_on_some_rows_at_a_time_are_one_only_if_the_rows_are_sequences(rows: int, count: int) -> None:
    x = torch.randn(rows, 2, generator=torch.Generator().manual_seed(1))

    def experts(*parts: slice) -> RankCapture:
        recorder = Recorder()
        with recorder.call("", {"x": x}) as out:
            for part in parts:
                recorder.leaf("act", {"input": x[part]}, 2 * x[part])
            out[""] = 3 * x
        return recorder.capture()

    names = {"": "", "act": "act"}
    (joined,) = join_microbatches(
        cand=(experts(slice(0, 3), slice(3, rows)),), ref=experts(slice(None)), modules=names, batch=BATCH
    )
    assert [call.module for call in joined.calls].count("act") == count
