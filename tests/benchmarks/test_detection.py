"""The benchmark of detection power: what it plans, stores, counts and says."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import detection
from benchmarks.detection import append_record, code_version, plan, read_records
from benchmarks.rules import RULES, broken_rules
from benchmarks.tables import ALIGNED, DETECTED, EXACT, FALSE_ALARM, MISSED, as_markdown
from tests.models import KERNELS
from tests.parallel.cases import CASES, PortCase
from tests.planted import FAULTS
from tests.trials import Trial


def record(outcome: str, *, fault: str | None = None, kind: str = "norms", **rules: bool) -> dict[str, Any]:
    said = dict.fromkeys(RULES, False) | rules
    label = f"{fault}-{outcome}"
    return {
        "label": label,
        "kind": kind,
        "fault": fault,
        "outcome": outcome,
        "why": "",
        "seconds": 1.0,
        "rules": said,
        "version": "a",
    }


def test_every_fault_every_family_and_300_healthy_ports_are_in_the_plan() -> None:
    cases = plan(seeds=2)
    assert [case for case in cases if isinstance(case, PortCase)] == list(CASES)
    assert len({case.label for case in cases}) == len(cases)
    trials = [case for case in cases if isinstance(case, Trial)]
    assert {trial.fault for trial in trials} == {fault.fault for fault in FAULTS} | {None}
    healthy = [trial for trial in trials if trial.fault is None]
    assert {trial.setup.family for trial in healthy} == set(KERNELS)
    assert len(healthy) >= 300
    assert {trial.setup.seed for trial in trials if trial.fault is not None} == {0, 1}


def test_a_case_is_not_run_again_unless_the_code_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = plan(seeds=1)[:3]
    ran: list[str] = []

    def run_all(left: list[Trial], jobs: int) -> Any:
        for trial in left:
            ran.append(trial.label)
            yield record(EXACT, fault=trial.fault) | {"label": trial.label}

    monkeypatch.setattr(detection, "plan", lambda *, seeds: trials)
    monkeypatch.setattr(detection, "run_all", run_all)
    assert detection.main(["--out", str(tmp_path)]) == 0
    assert detection.main(["--out", str(tmp_path)]) == 0
    assert ran == [trial.label for trial in trials]
    monkeypatch.setattr(detection, "code_version", lambda: "another")
    assert detection.main(["--out", str(tmp_path), "--any-version"]) == 0
    assert len(ran) == 3
    assert detection.main(["--out", str(tmp_path)]) == 0
    assert len(ran) == 6


def test_the_exit_code_is_1_when_a_case_is_not_as_it_should_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = plan(seeds=1)[0]
    monkeypatch.setattr(detection, "plan", lambda *, seeds: [trial])
    found = record(MISSED, fault=trial.fault) | {"label": trial.label}
    monkeypatch.setattr(detection, "run_all", lambda left, jobs: iter([found]))
    assert detection.main(["--out", str(tmp_path)]) == 1


def test_a_record_cut_short_by_a_kill_is_left_out_and_the_next_is_stored_whole(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps({"label": "a"}) + "\n" + '{"label": "b', encoding="utf-8")
    append_record(path, {"label": "c"})
    assert [found["label"] for found in read_records(path)] == ["a", "c"]


def test_the_version_is_that_of_the_code_alone() -> None:
    assert code_version() == code_version()
    assert len(code_version()) == 12


def test_the_table_counts_what_became_of_the_cases_and_names_those_that_are_wrong() -> None:
    text = as_markdown(
        [
            record(EXACT, fault="a"),
            record(DETECTED, fault="b"),
            record(MISSED, fault="c", kind="rotary", **{"cosine < 0.99": True}),
            record(ALIGNED, kind="llama"),
            record(FALSE_ALARM, kind="llama"),
        ]
    )
    assert "| norms | 2 | 1 | 1 | 0 | 0 | 1.0 |" in text
    assert "| rotary | 1 | 0 | 0 | 1 | 0 | 1.0 |" in text
    assert "| llama | 2 | 1 | 1 | 0 | 0 | 1.0 |" in text
    assert "| validator | 2 of 3 (66.7%) | 1 of 2 (50.0%) |" in text
    assert "| cosine < 0.99 | 1 of 3 (33.3%) | 0 of 2 (0.0%) |" in text
    assert "missed: c-missed" in text
    assert "a-localised" not in text


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        (lambda y: y, set()),
        (lambda y: y * 1.0005, {"torch.testing defaults"}),
        (lambda y: y * 1.01, {"torch.testing defaults", "relative L2 > 1e-3", "under 99.9% within 0.1%"}),
        # One NaN in 4,000 logits is no concern of a rule that counts elements.
        (
            lambda y: torch.where(torch.arange(len(y)) == 3, torch.nan, y),
            set(RULES) - {"under 99.9% within 0.1%"},
        ),
        (lambda y: -y, set(RULES)),
    ],
)
def test_each_rule_fires_where_its_name_says(change: Any, broken: set[str]) -> None:
    ref = torch.randn(4000, generator=torch.Generator().manual_seed(0)) + 0.1
    control = ref * (1 + 0.006)
    said = broken_rules(ref=ref, cand=change(ref), control=control, dtype=torch.float32)
    assert {name for name, is_broken in said.items() if is_broken} == broken
