"""The file of all judged values: slices of it are what was judged; what is broken or hostile is refused."""

import math
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from validator.align.traces import LogicalTensor
from validator.checks.edge_values import EdgeValues, values_of
from validator.checks.findings import Check, Evidence, Judgement, Verdict
from validator.checks.judge import Band, Bench
from validator.checks.judged_values import JudgedValues, StoredEdge, ValuesWriter
from validator.errors import CaptureError

EDGE = StoredEdge(
    module="layers.0",
    check=Check.WIRING,
    path="input/0",
    call=2,
    order=7,
    into="layers.0.<b>&é",
    ranks=(0, 1),
    dims=("token", ""),
    shape=(3, 4),
)
JUDGEMENT = Judgement(
    module="layers.0",
    candidate_module="layers.0",
    check=Check.WIRING,
    path="input/0",
    call=2,
    order=7,
    into="layers.0.<b>&é",
    verdict=Verdict.ALIGNED,
    evidence=Evidence(),
)


def values(judged: torch.Tensor | None = None, dtype: torch.dtype = torch.bfloat16) -> EdgeValues:
    exact = torch.arange(12, dtype=torch.float64).reshape(3, 4) + 1 / 3
    cand = LogicalTensor(data=exact.to(dtype), parts=(), dims=("token", ""))
    return values_of(exact=exact, cand=cand, band=Band(), judged=judged, bench=Bench(elements=12))


def written(path: Path, *edges: StoredEdge, judged: torch.Tensor | None = None) -> Path:
    with ValuesWriter(path) as writer:
        for edge in edges:
            writer.put(edge, values(judged))
    return path


def test_a_slice_is_what_was_judged(tmp_path: Path) -> None:
    stored = JudgedValues(written(tmp_path / "judged.h5", EDGE))
    assert stored.edges == (EDGE,)
    made = values()
    for field, expected in (("oracle", made.exact), ("candidate", made.cand), ("allowed", made.allowed)):
        read = stored.read(EDGE, field, (slice(1, 3), 2))
        # Beside a bfloat16, a float32 is as good as a float64.
        np.testing.assert_array_equal(read, expected[1:3, 2].to(torch.float32).numpy())
        assert stored.read(EDGE, field).shape == (3, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
def test_the_values_of_wide_formats_are_kept_bit_for_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    made = values(dtype=dtype)
    with ValuesWriter(tmp_path / "judged.h5") as writer:
        writer.put(EDGE, made)
    stored = JudgedValues(tmp_path / "judged.h5")
    np.testing.assert_array_equal(stored.read(EDGE, "oracle"), made.exact.numpy())
    np.testing.assert_array_equal(stored.read(EDGE, "candidate"), made.cand.numpy())


def test_where_nothing_is_judged_everything_is_allowed(tmp_path: Path) -> None:
    judged = torch.tensor([True, False, True])[:, None]
    stored = JudgedValues(written(tmp_path / "judged.h5", EDGE, judged=judged))
    assert [math.isinf(value) for value in stored.read(EDGE, "allowed")[:, 0]] == [False, True, False]


def test_a_judgement_finds_its_edge_and_of_copies_that_of_its_rank(tmp_path: Path) -> None:
    copies = [replace(EDGE, ranks=(rank,)) for rank in (0, 1)]
    stored = JudgedValues(written(tmp_path / "judged.h5", *copies, replace(EDGE, path="other")))
    assert stored.find(replace(JUDGEMENT, rank=1)) == copies[1]
    assert stored.find(JUDGEMENT) == copies[0]
    assert stored.find(replace(JUDGEMENT, call=3)) is None


def test_terms_of_a_sum_are_told_apart_by_their_rank(tmp_path: Path) -> None:
    terms = [replace(EDGE, check=Check.PARTIAL, rank=rank) for rank in (0, 1)]
    stored = JudgedValues(written(tmp_path / "judged.h5", *terms))
    assert stored.find(replace(JUDGEMENT, check=Check.PARTIAL, rank=1)) == terms[1]


def test_edges_of_one_element_and_of_none_are_kept(tmp_path: Path) -> None:
    with ValuesWriter(tmp_path / "judged.h5") as writer:
        for order, shape in enumerate([(), (0, 3)]):
            exact = torch.ones(shape, dtype=torch.float64)
            cand = LogicalTensor(data=exact, parts=(), dims=("",) * len(shape))
            made = values_of(exact=exact, cand=cand, band=None, judged=None, bench=Bench(elements=1))
            edge = StoredEdge(
                module="a",
                check=Check.EXACT,
                path="",
                call=0,
                order=order,
                ranks=(0,),
                dims=cand.dims,
                shape=shape,
            )
            writer.put(edge, made)
    stored = JudgedValues(tmp_path / "judged.h5")
    assert [stored.read(edge, "oracle").shape for edge in stored.edges] == [(), (0, 3)]


def test_what_is_no_file_of_values_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.h5").write_text("no")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = [1]
    for name in ("text.h5", "other.h5", "missing.h5"):
        with pytest.raises(CaptureError, match=r"can't be read as judged values: .*judged\.h5"):
            JudgedValues(tmp_path / name)


@pytest.mark.parametrize("kind", ["external", "soft"])
def test_a_link_is_not_followed(kind: str, tmp_path: Path) -> None:
    target = written(tmp_path / "target.h5", EDGE)
    path = written(tmp_path / "judged.h5", EDGE)
    with h5py.File(path, "a") as file:
        file["000001"] = (
            h5py.ExternalLink(target, "/000000") if kind == "external" else h5py.SoftLink("/000000")
        )
    with pytest.raises(CaptureError, match="is a link out of its place"):
        JudgedValues(path)


def test_a_dataset_whose_values_lie_in_another_file_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "judged.h5", EDGE)
    with h5py.File(path, "a") as file:
        kind = file["000000"].dtype
        file.create_dataset("000001", (3,), kind, external=[(tmp_path / "raw", 0, 3 * kind.itemsize)])
    with pytest.raises(CaptureError, match="lie in another file"):
        JudgedValues(path)


@pytest.mark.parametrize("dims", [("token",), ("token", "", ""), ("token", "<b>")])
def test_dims_that_do_not_fit_are_one_message(dims: tuple[str, ...], tmp_path: Path) -> None:
    path = written(tmp_path / "judged.h5", EDGE)
    with h5py.File(path, "a") as file:
        file["000000"].attrs["dims"] = np.array(dims, dtype=h5py.string_dtype())
    with pytest.raises(CaptureError, match=r"shape \(3, 4\) has dims .*'token'.*, not 2 of .*judged\.h5"):
        JudgedValues(path)


def test_a_cut_file_is_one_message(tmp_path: Path) -> None:
    path = written(tmp_path / "judged.h5", EDGE)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(CaptureError, match=r"can't be read as judged values"):
        JudgedValues(path)


def test_a_folder_that_is_not_there_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"can't be written"):
        ValuesWriter(tmp_path / "nowhere" / "judged.h5")
