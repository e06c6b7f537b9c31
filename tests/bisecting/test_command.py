"""`validator bisect` as a command: its options, its text and its exit codes."""

import json
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from validator import cli
from validator.bisecting.path import Claim, Cost, Step
from validator.checks.findings import Arm, Check, Evidence, Finding, Judgement, Outcome, Verdict
from validator.errors import UsageError
from validator.report.bisection import BisectionResult

FINDING = Finding(
    module="layers.7",
    candidate_module="layers.7",
    into="layers.7.down",
    check=Check.WIRING,
    verdict=Verdict.DIVERGENT,
    arm=Arm.MAX,
    summary="layers.7: what goes into layers.7.down is outside",
    evidence=Evidence(max_over_band=2.0),
    order=9,
)
BEFORE = Judgement(
    module="layers.7.up",
    candidate_module="layers.7.up",
    check=Check.FUNCTION,
    verdict=Verdict.ALIGNED,
    order=8,
    evidence=Evidence(),
)
STEPS = (
    Step(
        name="boundaries",
        modules=("layers.6", "layers.7"),
        captured=5,
        runs=1,
        size_bytes=200_000,
        verdict="beyond the noise from layers.7 on",
    ),
    Step(
        name="inside",
        modules=("layers.6", "layers.7"),
        captured=8,
        runs=1,
        size_bytes=1_300_000,
        verdict="divergent: layers.7",
    ),
)
COST = Cost.of(STEPS, full_bytes=15_000_000)


def result(verdict: Verdict, *, ranks: int = 1) -> BisectionResult:
    is_found = verdict is Verdict.DIVERGENT
    outcome = Outcome(
        verdict=verdict,
        findings=(FINDING,) if is_found else (),
        judgements=(BEFORE,) if is_found else (),
        run={"candidate": {"parallelism": {"world_size": ranks}}},
    )
    claim = Claim(finding=FINDING, before=BEFORE) if is_found else None
    return BisectionResult(outcome, STEPS, COST, claim)


class Api(types.ModuleType):
    """Stands in for `validator.api`: records its arguments, and returns what a test says."""

    def __init__(self) -> None:
        super().__init__("validator.api")
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.says: BisectionResult | Exception = result(Verdict.DIVERGENT)

    def bisect_target(self, *args: Any, **kwargs: Any) -> BisectionResult:
        self.calls.append((args, kwargs))
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    fake = Api()
    monkeypatch.setitem(sys.modules, "validator.api", fake)
    return fake


def run(*args: str | Path) -> Any:
    return CliRunner().invoke(cli.app, ["bisect", *(str(arg) for arg in args)])


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (Verdict.ALIGNED, 0),
        (Verdict.DIVERGENT, 1),
        (Verdict.UNDECLARED_PRECISION, 1),
        (Verdict.INCONCLUSIVE, 3),
    ],
)
def test_it_exits_with_the_code_of_the_verdict(api: Api, verdict: Verdict, code: int) -> None:
    api.says = result(verdict)
    assert run("port.py").exit_code == code


def test_it_prints_the_path_its_cost_and_what_was_verified(api: Api) -> None:
    printed = " ".join(run("port.py").stdout.split())
    words = ("boundaries", "5 modules: all but the", "200 kB", "inside", "8 modules:", "1.3 MB")
    assert [word for word in words if word not in printed] == []
    assert printed.startswith("divergent: first at layers.7, into down")
    assert "cost 2 candidate runs, 1.5 MB captured, 1.3 MB at a time" in printed
    assert "a capture of everything takes 1 run and about 15 MB (10.0% of that were captured)" in printed
    assert "verified on the candidate's own inputs layers.7, into down is off, and the edge" in printed
    assert "before it, layers.7.up, is aligned" in printed


def test_an_edge_that_is_off_and_the_one_before_it_are_told_apart(api: Api) -> None:
    before = replace(BEFORE, module=FINDING.module, into=FINDING.into, path="mask", check=Check.EXACT)
    found = replace(FINDING, path="x")
    outcome = Outcome(verdict=Verdict.DIVERGENT, findings=(found,), judgements=(before,))
    api.says = BisectionResult(outcome, STEPS, COST, Claim(finding=found, before=before))
    printed = " ".join(run("port.py").stdout.split())
    assert "layers.7, into down [x] (wiring) is off, and" in printed
    assert "the edge before it, layers.7, into down [mask] (exact), is aligned" in printed


def test_the_cost_on_several_ranks_is_no_share_of_what_one_rank_holds(api: Api) -> None:
    api.says = result(Verdict.DIVERGENT, ranks=2)
    printed = " ".join(run("port.py").stdout.split())
    assert "takes 1 run and about 15 MB, and more where ranks hold copies" in printed


def test_it_passes_every_option_on(api: Api, tmp_path: Path) -> None:
    options = ["--nproc", "4", "--device", "cpu", "--dtype", "bfloat16", "--tp", "2", "--recipe", "eager"]
    others = ["--timeout", "9.5", "--plant", "attn-scale:layer=3", "--module", "layers.3"]
    run("port.py", *options, *others, "--capture", "cand", "--keep", tmp_path, "--repro", "made")
    ((args, kwargs),) = api.calls
    assert args == ("port.py",)
    assert callable(kwargs.pop("progress"))
    assert kwargs == {
        "nproc": 4,
        "device": "cpu",
        "dtype": "bfloat16",
        "tp": 2,
        "recipe": "eager",
        "module": "layers.3",
        "capture": Path("cand"),
        "keep": tmp_path,
        "timeout_s": 9.5,
        "plant": "attn-scale:layer=3",
        "repro": Path("made"),
        "profiles": False,
    }


def test_a_page_shows_the_path_and_what_each_edge_looks_like(api: Api, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    assert run("port.py", "--html", path).exit_code == 1
    assert api.calls[0][1]["profiles"] is True
    page = path.read_text(encoding="utf-8")
    assert 'id="search"' in page
    assert "1.3 MB" in page
    assert "cost: 2 candidate runs" in page


def test_a_table_and_a_summary_are_written_as_of_any_result(api: Api, tmp_path: Path) -> None:
    table, summary = tmp_path / "edges.csv", tmp_path / "summary.md"
    assert run("port.py", "--csv", table, "--markdown", summary).exit_code == 1
    assert table.read_text().splitlines()[1].startswith("layers.7.up,")
    text = summary.read_text()
    assert text.startswith("### divergent: first at layers.7, into down\n")
    assert "| boundaries | 5 modules: all but the insides of 2 blocks | 1 | 200 kB |" in text


def test_json_has_the_path_the_cost_and_the_claim(api: Api, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    assert run("port.py", "--json", path).exit_code == 1
    document = json.loads(path.read_text())
    assert [step["name"] for step in document["path"]] == ["boundaries", "inside"]
    assert document["cost"] == {
        "runs": 2,
        "size_bytes": 1_500_000,
        "largest_bytes": 1_300_000,
        "full_bytes": 15_000_000,
    }
    assert document["verified"]["before"]["module"] == "layers.7.up"


def test_a_users_mistake_is_one_message_and_exit_2(api: Api) -> None:
    api.says = UsageError("--keep there is of another search")
    found = run("port.py")
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr == "error: --keep there is of another search\n"
