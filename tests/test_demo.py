"""The demo shows what it promises: a healthy port, a fault that no threshold can see, and where it is."""

import importlib.util
import io
import re
from typing import Any

import pytest
from rich.console import Console

from validator import demo
from validator.checks.findings import Arm, Check, Evidence, Finding, Outcome, Verdict
from validator.demo import PLANTED_MODULE, PLANTED_RANK, run_demo
from validator.errors import UsageError
from validator.report.result import Result


def test_the_demo_finds_what_it_planted_and_a_threshold_could_not(capfd: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    assert run_demo(Console(file=stream, width=80, color_system=None))
    shown = stream.getvalue()
    healthy, faulty = shown.split("\n$ validator check ")[1:]
    assert healthy.splitlines()[1].startswith("aligned: ")
    assert faulty.splitlines()[1] == f"divergent: first at {PLANTED_MODULE}, rank {PLANTED_RANK}"
    assert max(map(len, shown.splitlines())) <= 80
    assert "Loading weights" not in capfd.readouterr().err
    # In each figure that a threshold could be put on, the fault is lost in the healthy run's own rounding.
    assert min(_figures(shown, "cosine similarity of logits")) > 0.9999
    for name, share in (
        ("relative L2 error of logits", 0.2),
        ("logits assert_close rejects", 0.2),
        ("relative L2 error of down_proj", 0.02),
    ):
        good, bad = _figures(shown, name)
        assert bad == pytest.approx(good, rel=share), name


@pytest.mark.parametrize(
    ("module", "rank", "found"),
    [
        (PLANTED_MODULE, PLANTED_RANK, True),
        (PLANTED_MODULE, 0, False),
        ("model.layers.3.mlp.down_proj", PLANTED_RANK, False),
    ],
    ids=["as-planted", "another-rank", "another-module"],
)
def test_a_demo_that_names_another_place_has_failed(
    monkeypatch: pytest.MonkeyPatch, module: str, rank: int, found: bool
) -> None:
    _stand_in(monkeypatch, healthy=_outcome(Verdict.ALIGNED), faulty=_divergent(module, rank))
    assert run_demo(Console(file=io.StringIO())) is found


def test_a_demo_whose_healthy_port_is_not_aligned_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    faulty = _divergent(PLANTED_MODULE, PLANTED_RANK)
    _stand_in(monkeypatch, healthy=_outcome(Verdict.INCONCLUSIVE), faulty=faulty)
    assert run_demo(Console(file=io.StringIO())) is False


def test_without_transformers_the_demo_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs transformers: pip install 'accuracy-validator\[hf\]'"):
        run_demo(Console(file=io.StringIO()))


def _outcome(verdict: Verdict, *findings: Finding) -> Outcome:
    return Outcome(verdict=verdict, findings=findings, judgements=())


def _divergent(module: str, rank: int) -> Outcome:
    finding = Finding(
        module=module,
        candidate_module=module,
        check=Check.PARTIAL,
        verdict=Verdict.DIVERGENT,
        arm=Arm.MAX,
        summary="the partial result is outside the band",
        order=1,
        evidence=Evidence(),
        rank=rank,
    )
    return _outcome(Verdict.DIVERGENT, finding)


def _stand_in(monkeypatch: pytest.MonkeyPatch, *, healthy: Outcome, faulty: Outcome) -> None:
    """Let the checks of the two ports give these outcomes, without running anything."""

    def check_target(source: str, **options: Any) -> Result:
        return Result(faulty if source.endswith("_faulty.py") else healthy)

    monkeypatch.setattr(demo, "check_target", check_target)
    monkeypatch.setattr(demo, "_figures", lambda run: {})


def _figures(shown: str, name: str) -> list[float]:
    """Return the two figures of a row of the demo's table."""
    row = re.search(rf"^{re.escape(name)} +([\d.]+)%? +([\d.]+)%?", shown, re.MULTILINE)
    assert row is not None, f"no row {name!r} in:\n{shown}"
    return [float(figure) for figure in row.groups()]
