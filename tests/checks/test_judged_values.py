"""The file of all judged values: slices of it are what was judged; what is broken or hostile is refused."""

import errno
import math
import re
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from validator.align.traces import LogicalTensor
from validator.checks import values_writer
from validator.checks.edge_values import EdgeValues, values_of
from validator.checks.findings import Check, Evidence, Judgement, Verdict
from validator.checks.judge import Band, Bench
from validator.checks.judged_values import JudgedValues, StoredEdge
from validator.checks.values_writer import ValuesWriter
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
    read = stored.read(EDGE, (slice(1, 3), 2))
    for held, expected in (
        (read.oracle, made.exact),
        (read.candidate, made.cand),
        (read.allowed, made.allowed),
    ):
        # Beside a bfloat16, a float32 is as good as a float64.
        np.testing.assert_array_equal(held, expected[1:3, 2].to(torch.float32).numpy())
    assert stored.read(EDGE).allowed.shape == (3, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
def test_the_values_of_wide_formats_are_kept_bit_for_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    made = values(dtype=dtype)
    with ValuesWriter(tmp_path / "judged.h5") as writer:
        writer.put(EDGE, made)
    stored = JudgedValues(tmp_path / "judged.h5")
    read = stored.read(EDGE)
    np.testing.assert_array_equal(read.oracle, made.exact.numpy())
    np.testing.assert_array_equal(read.candidate, made.cand.numpy())
    np.testing.assert_array_equal(read.allowed, made.allowed.numpy())


@pytest.mark.parametrize(
    ("dtype", "allowed"),
    [(torch.float64, 1e-300), (torch.float32, 2.0**-150), (torch.bfloat16, 2.0**-134)],
    ids=str,
)
def test_however_little_is_allowed_is_not_nothing(dtype: torch.dtype, allowed: float, tmp_path: Path) -> None:
    """In each format down to half of its smallest spacing, which is what its own rounding is allowed."""
    least = torch.full((3, 4), allowed, dtype=torch.float64)
    with ValuesWriter(tmp_path / "judged.h5") as writer:
        writer.put(EDGE, replace(values(dtype=dtype), allowed=least))
    assert (JudgedValues(tmp_path / "judged.h5").read(EDGE).allowed == allowed).all()


def test_however_much_is_allowed_is_not_unjudged(tmp_path: Path) -> None:
    """Nor does an oracle beyond the candidate's format get in the way."""
    made = values()
    with ValuesWriter(tmp_path / "judged.h5") as writer:
        writer.put(EDGE, replace(made, exact=made.exact * 1e300, allowed=made.allowed * 1e300))
    assert np.isfinite(JudgedValues(tmp_path / "judged.h5").read(EDGE).allowed).all()


def test_where_nothing_is_judged_everything_is_allowed(tmp_path: Path) -> None:
    judged = torch.tensor([True, False, True])[:, None]
    stored = JudgedValues(written(tmp_path / "judged.h5", EDGE, judged=judged))
    assert [math.isinf(value) for value in stored.read(EDGE).allowed[:, 0]] == [False, True, False]


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
    assert [stored.read(edge).oracle.shape for edge in stored.edges] == [(), (0, 3)]


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


def test_of_a_large_edge_only_the_chunks_are_read_in_which_a_slice_lies(tmp_path: Path) -> None:
    """All others are broken here, so that whoever reads one of them fails."""
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(64, 512, dtype=torch.float64, generator=generator)
    cand = LogicalTensor(data=exact.to(torch.bfloat16), parts=(), dims=("token", "channel"))
    made = values_of(exact=exact, cand=cand, band=Band(), judged=None, bench=Bench(elements=12))
    edge = replace(EDGE, dims=cand.dims, shape=(64, 512))
    path = tmp_path / "judged.h5"
    with ValuesWriter(path) as writer:
        writer.put(edge, made)
    with h5py.File(path) as file:
        (dataset,) = file.values()
        rows, columns = dataset.chunks
        chunks = [dataset.id.get_chunk_info(n) for n in range(dataset.id.get_num_chunks())]
    kept = next(chunk for chunk in chunks if chunk.chunk_offset == (0, columns))
    assert len(chunks) > 4
    with path.open("r+b") as raw:
        for chunk in chunks:
            if chunk != kept:
                raw.seek(chunk.byte_offset)
                raw.write(b"\xff" * chunk.size)
    stored = JudgedValues(path)
    read = stored.read(edge, (slice(0, rows), slice(columns, 2 * columns)))
    np.testing.assert_array_equal(read.candidate, made.cand[:rows, columns : 2 * columns].numpy())
    with pytest.raises(CaptureError, match="can't be read as judged values"):
        stored.read(edge, (slice(0, rows), slice(0, 2 * columns)))


def test_the_file_is_open_only_while_it_is_read(tmp_path: Path) -> None:
    """So a cell that checks again may replace it while an older view of it is still shown."""
    path = written(tmp_path / "judged.h5", EDGE)
    stored = JudgedValues(path)
    stored.read(EDGE)
    with h5py.File(path, "a", locking=True):
        pass
    written(path, EDGE)
    assert stored.read(EDGE).oracle.shape == (3, 4)
    written(path, replace(EDGE, path="other"))
    with pytest.raises(CaptureError, match=r"can't be read .*written anew since it was opened"):
        stored.read(EDGE)


def test_a_full_disk_ends_the_writing_and_leaves_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter([None, None, None])  # the file itself, and one edge

    def reserve(descriptor: int, size_bytes: int) -> None:
        if next(left, "full") == "full":
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(values_writer, "reserve", reserve)
    with ValuesWriter(tmp_path / "judged.h5") as writer:
        for order in range(3):
            writer.put(replace(EDGE, order=order), values())
    assert writer.note is not None
    assert re.search(
        r"judged\.h5 holds the values of the first 1 edges alone: no room left on the disk; .*make room",
        writer.note,
    )
    stored = JudgedValues(tmp_path / "judged.h5")
    assert stored.edges == (replace(EDGE, order=0),)
    np.testing.assert_array_equal(stored.read(*stored.edges).candidate, values().cand.numpy())


def test_room_is_asked_for_before_values_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk HDF5 can't close its file, and crashes."""
    path = tmp_path / "judged.h5"
    asked: list[tuple[int, int]] = []
    reserve = values_writer.reserve

    def asking(descriptor: int, size_bytes: int) -> None:
        reserve(descriptor, size_bytes)
        asked.append((size_bytes, path.stat().st_size))

    monkeypatch.setattr(values_writer, "reserve", asking)
    with ValuesWriter(path) as writer:
        writer.put(EDGE, values())
        written_bytes = path.stat().st_size
    size_bytes, reserved_bytes = asked[-1]
    assert size_bytes == 12 * 12
    assert path.stat().st_size == written_bytes <= reserved_bytes


def test_a_file_that_can_not_be_made_is_a_note(tmp_path: Path) -> None:
    with ValuesWriter(tmp_path / "nowhere" / "judged.h5") as writer:
        writer.put(EDGE, values())
    assert writer.note is not None
    assert re.search(r"first 0 edges alone: .*No such file or directory", writer.note)
