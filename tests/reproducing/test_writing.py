"""Reproducers of findings of several kinds: each runs by itself, and shows its fault."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.checks.build import captured as recorded
from tests.checks.build import feed
from tests.checks.inside.build import Mlp, Norm, Run, captured
from tests.checks.inside.test_culprit import Gelu, LargeEpsilon, WrongScale
from tests.checks.test_edges import Mlp as TwoLayers
from tests.checks.test_edges import hidden, sharded
from validator.align.builder import build_trace
from validator.checks.engine import policy_of, run_checks
from validator.checks.findings import Check, Finding, Outcome
from validator.errors import UsageError
from validator.reproducing.writing import Reproducer, write_reproducer

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
        finding = outcome.findings[0] if name != "healthy" else _finding_at(outcome)
        return Case(run=run, finding=finding, files=_written(run, finding, place / "made"))

    run, found = _partial()
    return {
        "scale": case("scale", WrongScale),
        "epsilon": case("epsilon", LargeEpsilon, operators=None),
        "activation": case("activation", Gelu, operators=None),
        "accumulation": case("accumulation", NarrowDown, operators=None),
        "weight": case("weight", Mlp, operators=None, spoil=_spoil_weight),
        "rank": Case(run=run, finding=found, files=_written(run, found, folder / "rank")),
        "healthy": case("healthy", Norm, operators=None),
    }


@pytest.fixture(scope="module")
def results(
    cases: Mapping[str, Case], tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, tuple[int, str]]:
    """Return exit code and output of each reproducer's script, run in another process."""
    out = tmp_path_factory.mktemp("results") / "results.json"
    runner = Path(__file__).with_name("alone.py")
    scripts = {name: str(case.files.script) for name, case in cases.items()}
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


def test_a_healthy_candidate_exits_with_0(results: Mapping[str, tuple[int, str]]) -> None:
    code, said = results["healthy"]
    assert code == 0
    assert "WRONG" not in said


def test_a_folder_that_holds_one_already_is_refused(cases: Mapping[str, Case]) -> None:
    case = cases["scale"]
    with pytest.raises(UsageError, match=r"holds reproduce\.py already; name a new folder"):
        _written(case.run, case.finding, case.files.script.parent)


def test_where_nothing_is_computed_there_is_no_reproducer(cases: Mapping[str, Case], tmp_path: Path) -> None:
    case = cases["scale"]
    given = replace(case.finding, check=Check.INPUT)
    with pytest.raises(UsageError, match="no reproducer of inner: its input check compares values"):
        _written(case.run, given, tmp_path / "made")


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
