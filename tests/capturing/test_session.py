"""Which modules, calls and ranks are kept, and what a path must be."""

import fcntl
import os
import re

import pytest
import torch
from torch import nn

from validator.capturing.manifest import ProofStatus
from validator.capturing.reader import open_capture
from validator.capturing.session import capture, capture_run
from validator.errors import CaptureError


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        self.expert = nn.Linear(2, 2)

    def forward(self, x):
        return self.used(x)


def run_of(tmp_path, **options):
    model = Unused()
    with capture(model, tmp_path / "run.h5", **options):
        model(torch.ones(1, 2))
        model(torch.ones(1, 2))
    return open_capture(tmp_path / "run.h5")


def modules_of(tmp_path, **options):
    return [call.module for call in run_of(tmp_path, **options).rank(0).calls]


def test_everything_is_kept_by_default(tmp_path):
    assert modules_of(tmp_path) == ["", "used", "used.0", "used.1"] * 2


def test_a_glob_matches_across_dots(tmp_path):
    assert modules_of(tmp_path, include="u*") == ["used", "used.0", "used.1"] * 2


def test_excluded_modules_are_left_out_of_the_included(tmp_path):
    assert modules_of(tmp_path, include=["used", "used.*"], exclude="*.0") == ["used", "used.1"] * 2


def test_an_included_call_is_inside_the_nearest_included_one(tmp_path):
    calls = run_of(tmp_path, include=["", "used.0"]).rank(0).calls
    assert [(c.module, c.parent) for c in calls[:2]] == [("", None), ("used.0", 0)]


def test_only_the_parameters_of_kept_modules_are_kept(tmp_path):
    assert set(run_of(tmp_path, include="used.1").rank(0).parameters) == {"used.1.weight", "used.1.bias"}


def test_calls_are_kept_by_their_number(tmp_path):
    run = run_of(tmp_path, include="used.0", calls=range(1, 5)).rank(0)
    assert [call.n for call in run.calls] == [1]
    assert run.modules["used.0"].calls == 2


def test_modules_that_did_not_fire_are_listed(tmp_path):
    assert run_of(tmp_path).manifest.silent == ("expert",)


def test_a_glob_that_matches_no_module_is_refused_before_the_run(tmp_path):
    with pytest.raises(CaptureError, match=re.escape("'layers.*' matches no module of this model")):
        run_of(tmp_path, include=["used", "layers.*"])
    assert list(tmp_path.iterdir()) == []


def test_a_glob_that_matches_no_module_that_fired_is_an_error_and_nothing_is_lost(tmp_path):
    with pytest.raises(CaptureError, match="'expert' matches no module that fired"):
        run_of(tmp_path, include=["used.0", "expert"])
    assert [p.name for p in tmp_path.iterdir()] == ["run.h5.partial"]
    left = open_capture(tmp_path / "run.h5", allow_incomplete=True)
    assert [call.module for call in left.rank(0).calls] == ["used.0"] * 2


def test_a_run_that_records_nothing_is_an_error(tmp_path):
    with pytest.raises(CaptureError, match="nothing was recorded"), capture(Unused(), tmp_path / "run.h5"):
        pass


def test_ranks_that_do_not_exist_are_refused(tmp_path):
    with pytest.raises(CaptureError, match=re.escape("ranks=[3] keeps none of the 1 ranks")):
        run_of(tmp_path, ranks=[3])


def test_one_rank_can_be_a_folder(tmp_path):
    model = Unused()
    summary = capture_run(lambda: model(torch.ones(1, 2)), model, tmp_path / "run", recipe="eager")
    assert sorted(p.name for p in summary.path.iterdir()) == ["manifest.json", "rank0.h5"]
    opened = open_capture(tmp_path / "run")
    assert opened.complete
    assert opened.ranks == summary.ranks == (0,)
    assert opened.manifest.recipe == "eager"
    assert opened.manifest.proof.status is ProofStatus.IDENTICAL
    assert (summary.calls, summary.silent) == (4, ("expert",))


@pytest.mark.parametrize("name", ["run", "run.h5"])
def test_a_capture_is_not_replaced_unasked(tmp_path, name):
    model = Unused()
    capture_run(lambda: model(torch.ones(1, 2)), model, tmp_path / name)
    with pytest.raises(CaptureError, match=r"exists already.*overwrite=True"):
        capture_run(lambda: model(torch.zeros(1, 2)), model, tmp_path / name)
    assert open_capture(tmp_path / name).rank(0).calls[0].inputs["x"].read().sum() == 2


@pytest.mark.parametrize("name", ["run", "run.h5"])
def test_overwriting_replaces_a_capture_only_when_the_new_one_is_complete(tmp_path, name):
    model = Unused()
    capture_run(lambda: model(torch.ones(1, 2)), model, tmp_path / name)
    with capture(model, tmp_path / name, overwrite=True):
        model(torch.zeros(1, 2))
        assert open_capture(tmp_path / name).rank(0).calls[0].inputs["x"].read().sum() == 2
    assert open_capture(tmp_path / name).rank(0).calls[0].inputs["x"].read().sum() == 0
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_failed_run_does_not_replace_a_capture(tmp_path):
    model = Unused()
    capture_run(lambda: model(torch.ones(1, 2)), model, tmp_path / "run")
    with pytest.raises(ZeroDivisionError), capture(model, tmp_path / "run", overwrite=True):
        raise ZeroDivisionError
    assert open_capture(tmp_path / "run").complete


@pytest.mark.parametrize("name", ["notes", "notes.h5"])
def test_what_is_no_capture_is_never_overwritten(tmp_path, name):
    if name == "notes":
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.txt").write_text("years of work")
    else:
        (tmp_path / name).write_text("years of work")
    model = Unused()
    with (
        pytest.raises(CaptureError, match="is not a capture, so it is not overwritten"),
        capture(model, tmp_path / name, overwrite=True),
    ):
        model(torch.ones(1, 2))
    kept = tmp_path / name / "thesis.txt" if name == "notes" else tmp_path / name
    assert kept.read_text() == "years of work"


@pytest.mark.parametrize("name", ["run", "run.h5"])
def test_a_second_writer_on_one_path_is_refused_and_the_first_one_completes(tmp_path, name):
    model = Unused()
    with capture(model, tmp_path / name):
        model(torch.ones(1, 2))
        with (
            pytest.raises(CaptureError, match="another capture is being written there right now"),
            capture(Unused(), tmp_path / name),
        ):
            pass
        model(torch.ones(1, 2))
    assert len(open_capture(tmp_path / name).rank(0).calls) == 8


@pytest.mark.parametrize("name", ["run", "run.h5"])
def test_the_remains_of_a_killed_capture_are_told_from_a_live_one(tmp_path, name):
    def run():
        model(torch.ones(1, 2))
        raise ZeroDivisionError

    model = Unused()
    with pytest.raises(ZeroDivisionError), capture(model, tmp_path / name):
        run()
    with (
        pytest.raises(CaptureError, match=r"was killed or failed, and left .*allow_incomplete=True"),
        capture(model, tmp_path / name, overwrite=True),
    ):
        pass
    assert len(open_capture(tmp_path / name, allow_incomplete=True).rank(0).calls) == 4


def test_the_lock_is_let_go_at_the_end(tmp_path):
    run_of(tmp_path)
    descriptor = os.open(tmp_path / "run.h5", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)


def test_a_path_that_can_not_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(CaptureError, match="can't be written there"),
        capture(Unused(), tmp_path / "file" / "run.h5"),
    ):
        pass


def test_large_parameters_are_known_by_the_hashes_of_their_rows(tmp_path):
    model = nn.Linear(4, 8)
    with capture(model, tmp_path / "run.h5", parameter_limit_bytes=100):
        model(torch.ones(1, 4))
    parameters = open_capture(tmp_path / "run.h5").rank(0).parameters
    weight = parameters["weight"]
    assert weight.ref.meta.shape == (8, 4)
    assert weight.ref.meta.dtype == "float32"
    assert len(set(weight.row_hashes)) == 8
    with pytest.raises(CaptureError, match="parameter_limit_bytes"):
        weight.ref.read()
    assert parameters["bias"].row_hashes is None
    assert torch.equal(parameters["bias"].ref.read(), model.bias)


def test_the_manifest_says_where_and_on_what_the_run_was_made(tmp_path):
    torch.manual_seed(1234)
    model = nn.Embedding(10, 2)
    with capture(model, tmp_path / "run.h5"):
        model(torch.tensor([[3, 5, 3]]))
    run = open_capture(tmp_path / "run.h5").manifest.run
    assert set(run) == {"hardware", "software", "parallelism", "inputs", "seeds", "determinism"}
    assert run["hardware"][0]["cpu"]
    assert run["software"]["torch"] == torch.__version__
    assert run["parallelism"]["world_size"] == 1
    assert run["seeds"]["torch"] == {"0": 1234}
    assert run["determinism"]["deterministic_algorithms"] is False
    ids = run["inputs"]["input"]
    assert (ids["dtype"], ids["shape"], ids["min"], ids["max"], ids["unique"]) == ("int64", [1, 3], 3, 5, 2)


def test_the_inputs_of_the_caller_are_described_instead_if_given(tmp_path):
    run = run_of(tmp_path, inputs={"pixels": torch.full((2, 2), float("inf"))}).manifest.run
    assert list(run["inputs"]) == ["pixels"]
    assert run["inputs"]["pixels"]["inf"] == 4


def test_equal_bits_are_stored_once(tmp_path):
    model = nn.Sequential(*[nn.Identity() for _ in range(8)])
    x = torch.rand(1 << 16)
    with capture(model, tmp_path / "run.h5"):
        model(x)
    assert (tmp_path / "run.h5").stat().st_size < 2 * x.nbytes
    for call in open_capture(tmp_path / "run.h5").rank(0).calls:
        assert torch.equal(call.outputs[""].read(), x)


def test_a_module_may_be_called_with_many_shapes_and_dtypes(tmp_path):
    model = nn.Identity()
    values = [torch.rand(3), torch.rand(40_000), torch.rand(2, 2).half(), torch.rand(70_000), torch.rand(3)]
    with capture(model, tmp_path / "run.h5"):
        for value in values:
            model(value)
    for call, value in zip(open_capture(tmp_path / "run.h5").rank(0).calls, values, strict=True):
        assert torch.equal(call.outputs[""].read(), value)
