"""What HDF5 holds in memory of a capture does not grow with its edges, on writing or on reading."""

import shutil

import pytest
import torch
from h5py import h5f

from validator.capturing import files, store
from validator.capturing.copies import Layout
from validator.capturing.files import CaptureSource
from validator.capturing.schema import INDEX, INDEX_DTYPE, module_path, source_name
from validator.capturing.store import CaptureFile

EDGES, ROUNDS = 10, 3
LARGE = (40_000,)
SMALL = (4,)


def value(edge, round_, shape):
    return torch.full(shape, float(edge * ROUNDS + round_))


def path(edge):
    return f"{module_path(f'layers.{edge}')}/outputs"


@pytest.fixture(params=[LARGE, SMALL], ids=["large", "small"])
def shape(request):
    return request.param


@pytest.fixture
def written(tmp_path, monkeypatch, shape):
    """A file that is opened anew after each third new edge, and whose edges go on after that."""
    monkeypatch.setattr(store, "_CACHED_EDGES", 3)
    file = CaptureFile(tmp_path / "x.h5", rank=0, world_size=1)
    for round_ in range(ROUNDS):
        for edge in range(EDGES):
            file.add_value(path(edge), round_, value(edge, round_, shape), Layout(shape=shape))
            if edge % 2:
                file.commit()
    return file


def check_values(source, shape):
    for edge in range(EDGES):
        index = source.table(f"{path(edge)}/{INDEX}", INDEX_DTYPE)
        assert index["row"].tolist() == list(range(ROUNDS))
        where = f"{path(edge)}/{source_name('float32', large=shape == LARGE)}"
        for round_, offset in enumerate(index["offset"].tolist()):
            data = source.elements(where, "float32", offset, shape[0])
            assert torch.equal(torch.from_numpy(data).view(torch.float32), value(edge, round_, shape))


def test_a_file_that_was_opened_anew_holds_every_value(written, shape):
    written.finish(manifest=None)
    check_values(CaptureSource(written.path), shape)


def test_what_was_committed_before_a_run_was_killed_is_read_from_a_file_that_was_opened_anew(written, shape):
    left = shutil.copy(written.path, written.path.with_name("left.h5"))
    check_values(CaptureSource(left), shape)
    written.abandon("killed")


def test_datasets_are_closed_while_new_edges_come(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_CACHED_EDGES", 3)
    file = CaptureFile(tmp_path / "x.h5", rank=0, world_size=1)
    most = 0
    for edge in range(50):
        file.add_value(path(edge), 0, value(edge, 0, SMALL), Layout(shape=SMALL))
        file.commit()
        most = max(most, h5f.get_obj_count(file._file.id, h5f.OBJ_DATASET))
    file.finish(manifest=None)
    # Two of each new edge, and the tables.
    assert most <= 2 * 3 + len(store.TABLES)


def test_a_reader_keeps_few_datasets_open(written, shape, monkeypatch):
    monkeypatch.setattr(files, "_KEPT_OPEN", 2)
    written.finish(manifest=None)
    source = CaptureSource(written.path)
    check_values(source, shape)
    check_values(source, shape)
    assert h5f.get_obj_count(source._file.id, h5f.OBJ_DATASET) <= 2
    assert h5f.get_obj_count(source._file.id, h5f.OBJ_GROUP) <= 3
