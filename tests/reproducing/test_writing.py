"""Reproducers of findings of several kinds: each runs by itself, and shows its fault."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.checks.build import captured as recorded
from tests.checks.build import feed
from tests.checks.inside.build import Mlp, Model, Norm, Run, captured
from tests.checks.inside.test_culprit import Gelu, LargeEpsilon, WrongScale
from tests.checks.test_edges import Mlp as TwoLayers
from tests.checks.test_edges import hidden, sharded
from validator.align.builder import build_trace
from validator.capturing.reader import open_capture
from validator.capturing.session import capture
from validator.checks.engine import policy_of, run_checks
from validator.checks.findings import Check, Finding, Outcome
from validator.errors import UsageError
from validator.reproducing import subject
from validator.reproducing.tensor_file import write_tensors
from validator.reproducing.writing import Reproducer, require_writable, write_first, write_reproducer

ELEMENTS = 1 << 20


class NarrowSums(nn.Linear):
    """Adds its terms up in the storage format, one after the other."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as the layer calls it
        terms = (input.unsqueeze(-2) * self.weight).unbind(-1)
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total


class NarrowDown(Mlp):
    def __init__(self) -> None:
        super().__init__()
        self.down = NarrowSums(64, 32, bias=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run with a finding, and its reproducer."""

    run: Run
    finding: Finding
    files: Reproducer


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Case]:
    """Return reproducers by what is wrong."""
    folder = tmp_path_factory.mktemp("reproducers")

    def case(name: str, candidate: type[nn.Module], **options: Any) -> Case:
        place = folder / name
        place.mkdir()
        run = captured(candidate, place, **options)
        outcome = run.check()
        finding = outcome.findings[0]
        return Case(run=run, finding=finding, files=_written(run, finding, place / "made"))

    run, found = _partial()
    return {
        "scale": case("scale", WrongScale),
        "epsilon": case("epsilon", LargeEpsilon, operators=None),
        "activation": case("activation", Gelu, operators=None),
        "accumulation": case("accumulation", NarrowDown, operators=None),
        "weight": case("weight", Mlp, operators=None, spoil=_spoil_weight),
        "rank": Case(run=run, finding=found, files=_written(run, found, folder / "rank")),
    }


@pytest.fixture(scope="module")
def results(
    cases: Mapping[str, Case], tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, tuple[int, str]]:
    """Return exit code and output of each reproducer's script, run in another process."""
    out = tmp_path_factory.mktemp("results") / "results.json"
    runner = Path(__file__).with_name("alone.py")
    scripts = {name: str(case.files.script) for name, case in cases.items()}
    scripts["mended"] = str(_mended(cases["scale"].files, out.with_name("mended")))
    subprocess.run([sys.executable, "-I", str(runner), str(out), *scripts.values()], check=True, timeout=300)
    said = json.loads(out.read_text())
    return {name: (said[script]["code"], said[script]["said"]) for name, script in scripts.items()}


FAULTS = ["scale", "epsilon", "activation", "accumulation", "weight", "rank"]


@pytest.mark.parametrize("name", FAULTS)
def test_a_reproducer_runs_by_itself_and_shows_the_fault(
    results: Mapping[str, tuple[int, str]], name: str
) -> None:
    code, said = results[name]
    assert code == 1
    here, stored = (line for line in said.splitlines() if "ulp at worst" in line)
    assert here.startswith("computed here now")
    assert here.endswith("right")
    assert stored.startswith("candidate as stored")
    assert stored.endswith("WRONG")


def test_where_operators_were_recorded_it_runs_the_guilty_one_alone(cases: Mapping[str, Case]) -> None:
    text = cases["scale"].files.script.read_text()
    assert text.count("torch.ops.aten.mul.Tensor") == 1
    assert "torch.ops.aten.bmm" not in text
    assert cases["scale"].files.what == "the operator mul"


def test_where_none_were_recorded_it_runs_the_code_up_to_the_edge(cases: Mapping[str, Case]) -> None:
    text = cases["epsilon"].files.script.read_text()
    called = [
        line.split("torch.ops.aten.")[1].split("(")[0] for line in text.splitlines() if "ops.aten" in line
    ]
    assert called == [
        "_to_copy.default",
        "pow.Tensor_Scalar",
        "mean.dim",
        "add.Tensor",
        "rsqrt.default",
        "mul.Tensor",
        "_to_copy.default",
        "mul.Tensor",
    ]
    assert cases["epsilon"].files.what == "the code of inner"


class Turned(nn.Module):
    """Turns its input by angles whose rates it widens."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rates", 0.3 ** torch.arange(32.0), persistent=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        angles = torch.arange(16.0)[:, None] * self.rates.float()
        return (hidden_states.float() * angles.cos()).to(hidden_states.dtype)


def test_a_cast_that_is_given_a_narrower_constant_is_one_operator(tmp_path: Path) -> None:
    x = torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(7)).bfloat16()
    reference, candidate = Model(Turned()), Model(Turned().bfloat16())
    paths = [tmp_path / "reference.h5", tmp_path / "candidate.h5"]
    for model, path in zip((reference, candidate), paths, strict=True):
        with torch.no_grad(), capture(model, path, operators="*"):
            model(x.float() if model is reference else x)
    ref, cand = (open_capture(path).rank(0) for path in paths)
    run = Run(reference=reference, trace=build_trace(cand=[cand], ref=ref), inputs={"hidden_states": x})
    found = run.check().findings[0]
    assert (found.module, found.op) == ("inner", "_to_copy")
    assert _written(run, found, tmp_path / "made").what == "the operator _to_copy"


def test_the_script_says_what_it_is_in_about_a_page(cases: Mapping[str, Case]) -> None:
    for case in cases.values():
        text = case.files.script.read_text()
        assert case.finding.summary.split(":")[0] in text
        assert f"torch {torch.__version__}" in text
        assert len(text.splitlines()) < 130


def test_a_wrong_weight_is_shown_by_the_code_that_uses_it(cases: Mapping[str, Case]) -> None:
    assert cases["weight"].finding.check is Check.PARAMETER
    assert "mm" in cases["weight"].files.script.read_text()


def test_what_a_rank_gave_is_reproduced_on_its_slice(cases: Mapping[str, Case]) -> None:
    assert cases["rank"].finding.rank == 1
    assert "what rank 1 adds" in cases["rank"].files.what


def test_a_candidate_that_is_right_exits_with_0(results: Mapping[str, tuple[int, str]]) -> None:
    code, said = results["mended"]
    assert code == 0
    assert "WRONG" not in said


@pytest.mark.parametrize("operators", [None, ("*",)], ids=["code", "operators"])
def test_where_rounding_explains_the_value_there_is_no_reproducer(
    operators: tuple[str, ...] | None, tmp_path: Path
) -> None:
    run = captured(Norm, tmp_path, operators=operators)
    with pytest.raises(UsageError, match="no reproducer of inner: judged once more, by itself, rounding ex"):
        _written(run, _finding_at(run.check()), tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_a_folder_that_holds_one_already_is_refused(cases: Mapping[str, Case]) -> None:
    case = cases["scale"]
    with pytest.raises(UsageError, match=r"holds reproduce\.py already; name a new folder"):
        _written(case.run, case.finding, case.files.script.parent)


def test_where_nothing_is_computed_there_is_no_reproducer(cases: Mapping[str, Case], tmp_path: Path) -> None:
    case = cases["scale"]
    given = replace(case.finding, check=Check.INPUT)
    with pytest.raises(UsageError, match="no reproducer of inner: its input check compares values"):
        _written(case.run, given, tmp_path / "made")


def test_the_first_finding_that_has_one_is_taken_and_no_more_than_three_are_tried(
    cases: Mapping[str, Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, walks = cases["epsilon"], []
    walked = subject.walk
    monkeypatch.setattr(subject, "walk", lambda **options: (walks.append(1), walked(**options)))
    elsewhere = [replace(case.finding, module=f"nowhere.{i}") for i in range(9)]
    given = [replace(case.finding, check=Check.INPUT)] * 9
    said = _first(case.run, [*given, elsewhere[0], case.finding], tmp_path / "made")
    assert (said.endswith("reproduces the code of inner: inner"), len(walks)) == (True, 2)
    said = _first(case.run, [*elsewhere, case.finding], tmp_path / "other")
    assert (said, len(walks)) == ("no reproducer of nowhere.0: no code of its own stands behind it", 5)


def test_a_folder_that_holds_one_is_an_error_also_where_any_finding_would_do(
    cases: Mapping[str, Case],
) -> None:
    case = cases["scale"]
    with pytest.raises(UsageError, match=r"holds reproduce\.py already"):
        _first(case.run, [case.finding], case.files.script.parent)


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_folder_that_cant_be_written_is_one_message_before_the_work(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(UsageError, match=r"^--repro .* can't be written: .*; name a folder that you may wri"):
        require_writable(tmp_path / place)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_asking_whether_a_folder_can_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    require_writable(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_leaves_no_half_of_a_reproducer(
    cases: Mapping[str, Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, *args: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    case = cases["epsilon"]
    with pytest.raises(UsageError, match="can't be written: No space left on device"):
        _written(case.run, case.finding, tmp_path / "made")
    assert list((tmp_path / "made").iterdir()) == []


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu])
def test_every_float8_dtype_can_be_written(dtype: torch.dtype, tmp_path: Path) -> None:
    values = torch.tensor([0.5, 1.0, 4.0]).to(dtype)
    write_tensors(tmp_path / "x", {"x": values}, {})
    assert load_file(tmp_path / "x")["x"].double().tolist() == [0.5, 1.0, 4.0]


def _first(run: Run, findings: list[Finding], folder: Path) -> str:
    return write_first(
        folder,
        findings,
        reference=run.reference,
        trace=run.trace,
        run=feed(run.inputs),
        policy=policy_of(None),
        elements=ELEMENTS,
    )


def _mended(files: Reproducer, folder: Path) -> Path:
    """Return a copy of a script beside tensors in which the candidate gave what the oracle says."""
    folder.mkdir()
    tensors = load_file(files.tensors)
    right = tensors["judge/oracle"].to(tensors["judge/candidate"].dtype)
    save_file(tensors | {"judge/candidate": right}, folder / files.tensors.name)
    return Path(shutil.copy(files.script, folder))


def _spoil_weight(model: nn.Module) -> None:
    with torch.no_grad():
        model.get_parameter("inner.up.weight").mul_(1.05)


def _written(run: Run, finding: Finding, folder: Path) -> Reproducer:
    return write_reproducer(
        folder,
        finding,
        reference=run.reference,
        trace=run.trace,
        run=feed(run.inputs),
        policy=policy_of(None),
        elements=ELEMENTS,
    )


def _partial() -> tuple[Run, Finding]:
    x, reference = hidden(), TwoLayers()
    captures = sharded(reference, x, partial=lambda rank, t: t * 1.1 if rank == 1 else t)
    trace = build_trace(cand=captures, ref=recorded(reference, {"x": x.float()}))
    outcome = run_checks(reference=reference, trace=trace, run=feed({"x": x}), policy=policy_of(None))
    return Run(reference=reference, trace=trace, inputs={"x": x}), outcome.findings[0]


def _finding_at(outcome: Outcome) -> Finding:
    """Return what a finding at the norm's output would be."""
    assert outcome.findings == ()
    judgement = next(j for j in outcome.judgements if j.module == "inner" and j.into is None)
    return Finding(
        module="inner",
        candidate_module="inner",
        check=judgement.check,
        verdict=judgement.verdict,
        arm="MAX",  # type: ignore[arg-type]
        summary="inner: the output is said to be wrong",
        evidence=judgement.evidence,
        path=judgement.path,
        order=judgement.order,
    )
