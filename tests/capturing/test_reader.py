"""Files that are broken, or made to do harm, end in one clear message."""

import dataclasses
import os
import pickle
import re
import subprocess
import sys

import h5py
import numpy as np
import pytest
import torch
from torch import nn

from validator.capturing.reader import open_capture
from validator.capturing.session import capture
from validator.errors import CaptureError, IncompleteCaptureError

SECRET = 12345.0


@pytest.fixture
def file(tmp_path):
    """A capture in one file, of a small and a large value."""
    torch.manual_seed(0)
    model = nn.Linear(4, 40_000, bias=False)
    with capture(model, tmp_path / "run.h5"), torch.no_grad():
        model(torch.ones(1, 4))
    return tmp_path / "run.h5"


@pytest.fixture
def folder(tmp_path):
    model = nn.Linear(4, 4)
    with capture(model, tmp_path / "run"):
        model(torch.ones(1, 4))
    return tmp_path / "run"


def read_everything(path):
    """Read all that a capture holds, values included."""
    opened = open_capture(path)
    for rank in opened.ranks:
        run = opened.rank(rank)
        for call in run.calls:
            for leaf in (*call.inputs.values(), *call.outputs.values()):
                if hasattr(leaf, "read"):
                    leaf.read()
        for parameter in run.parameters.values():
            parameter.ref.read()
    return opened


def edit(path, change):
    with h5py.File(path, "r+", locking=False) as opened:
        change(opened)


def replace(opened, name, **created):
    """Put another dataset in a dataset's place."""
    del opened[name]
    opened.create_dataset(name, **created)


def set_field(table, row, name, value):
    def change(opened):
        rows = opened[table][:]
        rows[name][row] = value
        opened[table][:] = rows

    return change


def test_a_healthy_capture_reads(file, folder):
    assert read_everything(file).complete
    assert read_everything(folder).complete


def test_a_capture_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(CaptureError, match=r"nothing.h5: no such capture.*validator capture"):
        open_capture(tmp_path / "nothing.h5")


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89HDF\r\n\x1a\n", b"PK\x03\x04"], ids=repr)
def test_a_file_that_is_not_hdf5_is_refused(tmp_path, content):
    (tmp_path / "x.h5").write_bytes(content)
    with pytest.raises(CaptureError, match=r"x\.h5"):
        open_capture(tmp_path / "x.h5")


def test_a_folder_that_is_no_capture_is_refused(tmp_path):
    with pytest.raises(CaptureError, match=r"neither manifest\.json nor a rank's file"):
        open_capture(tmp_path)


def test_an_hdf5_file_of_another_kind_is_refused(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as other:
        other["weights"] = np.zeros(3)
    with pytest.raises(CaptureError, match="not a capture"):
        open_capture(tmp_path / "x.h5")


def test_another_format_version_is_refused_with_both_versions(file):
    edit(file, lambda f: f.attrs.modify("format_version", 99))
    with pytest.raises(CaptureError, match="written in format version 99, this validator reads version 1"):
        open_capture(file)


@pytest.mark.parametrize("part", [0.01, 0.3, 0.6, 0.9, 0.999])
def test_a_truncated_file_is_refused(file, part):
    os.truncate(file, int(file.stat().st_size * part))
    with pytest.raises(CaptureError, match=str(file)):
        read_everything(file)


def test_overwritten_bytes_are_noticed_or_harmless(file):
    original = file.read_bytes()
    healthy = [p.ref.meta for p in open_capture(file).rank(0).parameters.values()]
    generator = np.random.default_rng(0)
    noticed = 0
    for trial in range(40):
        damaged = bytearray(original)
        start = int(generator.integers(len(damaged) - 64))
        damaged[start : start + 64] = generator.bytes(64)
        copy = file.with_name(f"damaged{trial}.h5")
        copy.write_bytes(damaged)
        try:
            opened = read_everything(copy)
            found = [p.ref.meta.checksum for p in opened.rank(0).parameters.values()]
            assert found == [meta.checksum for meta in healthy]
        except CaptureError:
            noticed += 1
    assert noticed > 10


def test_a_changed_value_does_not_match_its_checksum(file):
    def change(opened):
        dataset = opened["values/%root/inputs/input/%float32"]
        dataset[0] = 2.0

    edit(file, change)
    with pytest.raises(CaptureError, match="does not match its checksum"):
        read_everything(file)


@pytest.mark.parametrize("kind", ["soft", "external"])
@pytest.mark.parametrize("place", ["values", "values/%root/outputs/%float32.large", "calls"])
def test_links_out_of_the_file_are_not_followed(file, tmp_path, kind, place):
    with h5py.File(tmp_path / "secret.h5", "w") as secret:
        secret["data"] = np.full(40_000, SECRET)

    def change(opened):
        opened.move(place, "moved")
        soft = h5py.SoftLink("/moved")
        opened[place] = soft if kind == "soft" else h5py.ExternalLink(tmp_path / "secret.h5", "/data")

    edit(file, change)
    with pytest.raises(CaptureError, match="link to another place"):
        read_everything(file)


def test_values_in_another_file_are_not_read(file, tmp_path):
    secret = tmp_path / "secret.bin"
    secret.write_bytes(np.full(40_000, SECRET, np.float32).tobytes())
    name = "values/%root/outputs/%float32.large"
    edit(
        file,
        lambda f: replace(
            f, name, shape=(40_000,), dtype="f4", external=[(str(secret), 0, h5py.h5f.UNLIMITED)]
        ),
    )
    with pytest.raises(CaptureError, match="takes its values from another file"):
        read_everything(file)


def test_virtual_datasets_are_not_read(file, tmp_path):
    with h5py.File(tmp_path / "secret.h5", "w") as secret:
        secret["data"] = np.full(40_000, SECRET, np.float32)
    layout = h5py.VirtualLayout(shape=(40_000,), dtype="f4")
    layout[:] = h5py.VirtualSource(tmp_path / "secret.h5", "data", shape=(40_000,))

    def change(opened):
        name = "values/%root/outputs/%float32.large"
        del opened[name]
        opened.create_virtual_dataset(name, layout)

    edit(file, change)
    with pytest.raises(CaptureError, match="takes its values from another file"):
        read_everything(file)


@pytest.mark.parametrize(
    "name", ["calls", "values/%root/outputs/%index", "values/%root/outputs/%float32.large"]
)
def test_a_huge_declared_shape_takes_no_memory(file, name):
    def change(opened):
        opened[name].resize((1 << 40,))
        layouts = opened["layouts"][:]
        layouts["layout"] = [text.replace(b"40000", str(1 << 38).encode()) for text in layouts["layout"]]
        opened["layouts"][:] = layouts

    edit(file, change)
    with pytest.raises(CaptureError, match=r"claims \d+ \w+ that the file does not hold"):
        read_everything(file)


@pytest.mark.parametrize(
    ("table", "field", "value"),
    [
        ("calls", "module", 7),
        ("calls", "module", -1),
        ("calls", "parent", 0),
        ("calls", "inputs", "[1, 2"),
        ("calls", "inputs", "[" * 100_000),
        ("calls", "inputs", '{"input": {"tensor": true}, "other": {"tensor": true}}'),
        ("calls", "inputs", '{"../../sources": {"tensor": true}}'),
        ("layouts", "layout", '{"shape": [-4]}'),
        ("layouts", "layout", '{"shape": ["4"], "global_shape": null, "placements": null, "mesh": null}'),
        ("sources", "path", "/etc/passwd"),
        ("sources", "path", "values/%root/outputs"),
        ("sources", "path", ""),
        ("sources", "dtype", "object"),
        ("sources", "dtype", "float64"),
        ("parameters", "name", "../../bias"),
        ("values/%root/outputs/%index", "offset", -1),
        ("values/%root/outputs/%index", "offset", 1 << 62),
        ("values/%root/outputs/%index", "layout", -1),
        ("values/%root/outputs/%index", "source", -5),
        ("values/%root/outputs/%index", "source", 1000),
    ],
)
def test_tables_that_refer_to_what_is_not_there_are_damaged(file, table, field, value):
    edit(file, set_field(table, 0, field, value))
    with pytest.raises(CaptureError, match=re.escape(str(file))):
        read_everything(file)


def test_a_table_of_another_type_is_damaged(file):
    edit(file, lambda f: replace(f, "calls", data=np.zeros(3)))
    with pytest.raises(CaptureError, match="'calls' has type float64"):
        read_everything(file)


@pytest.mark.parametrize(
    "manifest",
    ["", "[]", "{}", '{"format": "validator-capture", "format_version": 1}', "[" * 100_000, "\0"],
    ids=["empty", "list", "object", "no-fields", "deep", "nul"],
)
def test_a_broken_manifest_is_refused(folder, manifest):
    (folder / "manifest.json").write_text(manifest)
    with pytest.raises(CaptureError, match=r"manifest\.json"):
        open_capture(folder)


def test_no_object_is_unpickled(file, tmp_path):
    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harmed"),)

    harm = np.void(pickle.dumps(Harm()))
    edit(file, lambda f: replace(f, "calls", data=harm))
    with pytest.raises(CaptureError):
        read_everything(file)
    assert not (tmp_path / "harmed").exists()


def test_a_missing_rank_is_named(folder):
    (folder / "rank0.h5").unlink()
    with pytest.raises(IncompleteCaptureError, match=r"rank 0 of 1 is missing.*copy rank0\.h5 from host '"):
        open_capture(folder)


def test_files_of_several_captures_are_not_mixed(folder):
    edit(folder / "rank0.h5", lambda f: f.attrs.modify("world_size", 4))
    with pytest.raises(CaptureError, match="files of several captures were mixed"):
        open_capture(folder)


def test_a_rank_that_was_not_recorded_is_refused(folder):
    with pytest.raises(CaptureError, match="has no rank 3, only 0"):
        open_capture(folder).rank(3)


def test_a_renamed_incomplete_capture_is_not_taken_for_a_complete_one(tmp_path):
    def run():
        model(torch.ones(1, 2))
        raise ZeroDivisionError("planted")

    model = nn.Linear(2, 2)
    with pytest.raises(ZeroDivisionError), capture(model, tmp_path / "run.h5"):
        run()
    with pytest.raises(
        IncompleteCaptureError,
        match=r"did not end: rank 0 got to call 1, of '' \(the run raised ZeroDivision",
    ):
        open_capture(tmp_path / "run.h5")
    (tmp_path / "run.h5.partial").rename(tmp_path / "run.h5")
    with pytest.raises(IncompleteCaptureError):
        open_capture(tmp_path / "run.h5")


def test_a_folder_without_manifest_is_incomplete(folder):
    (folder / "manifest.json").unlink()
    with pytest.raises(IncompleteCaptureError, match="rank 0 got to call 1"):
        open_capture(folder)
    opened = open_capture(folder, allow_incomplete=True)
    assert not opened.complete
    assert len(opened.rank(0).calls) == 1


def test_a_live_capture_can_be_looked_into(tmp_path):
    model = nn.Linear(2, 2)
    with capture(model, tmp_path / "run", flush_interval_s=0.0):
        model(torch.ones(1, 2))
        with pytest.raises(IncompleteCaptureError, match="is still being written"):
            open_capture(tmp_path / "run")


def test_a_reference_can_be_sent_to_another_process(file):
    ref = open_capture(file).rank(0).calls[0].outputs[""]
    assert torch.equal(pickle.loads(pickle.dumps(ref)).read(), ref.read())


def test_a_file_that_was_replaced_since_it_was_opened_is_noticed(file):
    read = open_capture(file).rank(0).calls[0].outputs[""].read
    with pytest.raises(CaptureError, match="another file has this name"):
        dataclasses.replace(read, inode=read.inode + 1)()


def test_a_process_that_only_reads_can_decompress(file):
    script = (
        "import sys; from validator.capturing.reader import open_capture; "
        "print(open_capture(sys.argv[1]).rank(0).calls[0].outputs[''].read().shape)"
    )
    command = [sys.executable, "-c", script, str(file)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert result.stdout.strip() == "torch.Size([1, 40000])"


def test_viewers_may_open_a_capture_that_is_open(file):
    read_everything(file)
    with h5py.File(file) as viewer:
        assert viewer["values/%root/inputs/input/%float32"].shape == (4,)
