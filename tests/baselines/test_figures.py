"""Figures of a suite against those that were recorded."""

import json
from pathlib import Path
from typing import Any

import pytest

from validator.baselines.checking import check_figures
from validator.baselines.figures import FigureVerdict, judge_figures, read_figures
from validator.baselines.recording import record_figures
from validator.checks.findings import Verdict
from validator.errors import CaptureError, UsageError
from validator.report.screen import plain_text
from validator.testing.records import Figure

RUN = {"hardware": [{"cpu": "one", "devices": []}], "software": {"torch": "2.12.0"}}
OTHER = {"hardware": [{"cpu": "two", "devices": []}], "software": {"torch": "2.12.0"}}


def figure(value: float | str, **fields: Any) -> Figure:
    return Figure(name="f", value=value, **fields)


def one(then: Figure, now: Figure, *, another_machine: bool = False) -> FigureVerdict:
    (judged,) = judge_figures({"f": then}, {"f": now}, another_machine=another_machine)
    return judged.verdict


def written(path: Path, figures: dict[str, object], run: dict[str, object] = RUN, **others: object) -> Path:
    path.write_text(json.dumps({"figures": figures, "run": run, **others}))
    return path


def test_a_figure_may_move_by_what_both_errors_explain_and_no_further() -> None:
    then = figure(3.0, unit="nat", error=0.1)
    assert one(then, figure(3.3, unit="nat", error=0.1)) is FigureVerdict.EXPLAINED
    assert one(then, figure(5.0, unit="nat", error=0.1)) is FigureVerdict.CHANGED


def test_a_figure_that_became_nan_is_changed() -> None:
    assert one(figure(3.0, error=0.1), figure(float("nan"), error=0.1)) is FigureVerdict.CHANGED


def test_a_change_that_nothing_explains_is_unknown_and_the_same_number_is_the_same() -> None:
    assert one(figure(3), figure(4)) is FigureVerdict.UNKNOWN
    assert one(figure(3), figure(3)) is FigureVerdict.SAME


def test_words_must_be_the_same() -> None:
    assert one(figure("D0"), figure("D1")) is FigureVerdict.CHANGED


def test_another_unit_is_a_change() -> None:
    assert one(figure(3.0, unit="ms"), figure(3.0, unit="s")) is FigureVerdict.CHANGED


MACHINE = (
    *("s", "ms", "sec", "secs", "second", "seconds", "minutes", "hours", "tokens/s", "tokens/sec", "tok / s"),
    *("tokens per second", "tokens/minute", "MiB", "TB", "TiB", "byte", "B/token", "GB/s"),
    *("FLOPS", "TFLOPS", "GFLOPS", "Hz", "MHz"),
)


@pytest.mark.parametrize("unit", MACHINE)
def test_speed_and_memory_of_another_machine_are_refused(unit: str) -> None:
    assert one(figure(1.0, unit=unit), figure(1.0, unit=unit), another_machine=True) is (
        FigureVerdict.REFUSED
    )
    assert one(figure(1.0, unit=unit), figure(9.0, unit=unit)) is FigureVerdict.MEASURED


@pytest.mark.parametrize("unit", ["", "nat", "bits", "tokens", "nat/token", "steps", "%", "FLOP", "Bananas"])
def test_other_figures_are_of_no_machine(unit: str) -> None:
    then, now = (figure(value, unit=unit, error=0.1) for value in (1.0, 9.0))
    assert one(then, then, another_machine=True) is FigureVerdict.SAME
    assert one(then, now, another_machine=True) is FigureVerdict.CHANGED


def ratio(then: tuple[float, ...], now: tuple[float, ...]) -> str:
    pair = (figure(1.0, unit="s", samples=samples) for samples in (then, now))
    (judged,) = judge_figures({"f": next(pair)}, {"f": next(pair)}, another_machine=False)
    return judged.why


@pytest.mark.parametrize(("before", "after"), [(0, 12), (2, 40), (5, 5), (6, 6), (5, 8), (1, 1000)])
def test_so_few_measurements_that_no_difference_would_show_are_too_few(before: int, after: int) -> None:
    then, now = (tuple(start + 0.01 * n for n in range(count)) for start, count in ((1, before), (99, after)))
    assert ratio(then, now).endswith("too few measurements to tell from chance")


@pytest.mark.parametrize(("before", "after"), [(7, 7), (6, 8), (5, 12), (30, 30)])
@pytest.mark.parametrize("digits", [3, 0], ids=["apart", "ties"])
def test_measurements_that_are_enough_tell_two_sets_apart_that_have_none_in_common(
    before: int, after: int, digits: int
) -> None:
    then, now = (
        tuple(round(start + 0.01 * n, digits) for n in range(count))
        for start, count in ((1, before), (99, after))
    )
    assert "not by chance" in ratio(then, now)
    assert "chance explains it" in ratio(then, then[::-1] + (then[0],) * (after - before))


def test_measurements_that_part_not_by_chance_are_told() -> None:
    then = figure(1.0, unit="s", samples=tuple(1 + 0.01 * n for n in range(12)))
    slower = figure(2.0, unit="s", samples=tuple(2 + 0.01 * n for n in range(12)))
    (parted,) = judge_figures({"f": then}, {"f": slower}, another_machine=False)
    (alike,) = judge_figures({"f": then}, {"f": then}, another_machine=False)
    assert "2 of what it was; not by chance" in parted.why
    assert "chance explains it" in alike.why


def test_figures_are_recorded_checked_and_replaced_only_on_request(tmp_path: Path) -> None:
    first = written(
        tmp_path / "a.json",
        {"perplexity": {"value": 3.0, "error": 0.1}, "rate": {"value": 9.0, "unit": "1/s"}},
    )
    folder = tmp_path / "baselines"
    record_figures("scores", first, folder=folder)
    assert check_figures("scores", first, folder=folder).verdict is Verdict.ALIGNED
    worse = written(
        tmp_path / "b.json",
        {"perplexity": {"value": 4.5, "error": 0.1}, "rate": {"value": 9.0, "unit": "1/s"}},
    )
    found = check_figures("scores", worse, folder=folder)
    assert found.verdict is Verdict.DIVERGENT
    assert found.summary.startswith("not what scores was: perplexity: it moved by 1.5")
    with pytest.raises(UsageError, match="--update replaces it"):
        record_figures("scores", worse, folder=folder)
    replaced = record_figures("scores", worse, folder=folder, update=True)
    assert replaced.changes is not None
    assert ("figure", "perplexity 3 -> 4.5") in list(replaced.changes.rows())
    assert check_figures("scores", worse, folder=folder).verdict is Verdict.ALIGNED


def test_a_figure_that_is_gone_is_a_divergence(tmp_path: Path) -> None:
    record_figures(
        "scores", written(tmp_path / "a.json", {"a": {"value": 1}, "b": {"value": 1}}), folder=tmp_path
    )
    found = check_figures("scores", written(tmp_path / "b.json", {"a": {"value": 1}}), folder=tmp_path)
    assert found.verdict is Verdict.DIVERGENT


def test_speed_alone_of_another_machine_is_refused_and_beside_others_leaves_it_open(tmp_path: Path) -> None:
    speed = {"value": 9.0, "unit": "tokens/s"}
    record_figures("speed", written(tmp_path / "a.json", {"speed": speed}), folder=tmp_path)
    with pytest.raises(UsageError, match="another machine"):
        check_figures("speed", written(tmp_path / "b.json", {"speed": speed}, OTHER), folder=tmp_path)
    both = {"speed": speed, "kl": {"value": 0.5, "error": 0.1}}
    record_figures("both", written(tmp_path / "c.json", both), folder=tmp_path)
    found = check_figures("both", written(tmp_path / "d.json", both, OTHER), folder=tmp_path)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert [str(difference) for difference in found.differences] == ["hardware cpu one, now two"]


def test_speed_alone_of_the_same_machine_is_measured_and_not_judged(tmp_path: Path) -> None:
    speed = {"value": 9.0, "unit": "tokens/s"}
    record_figures("speed", written(tmp_path / "a.json", {"speed": speed}), folder=tmp_path)
    found = check_figures("speed", written(tmp_path / "b.json", {"speed": speed}), folder=tmp_path)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.summary.startswith("inconclusive against speed: ")
    assert "measured, not judged" in found.summary
    both = {"speed": speed, "kl": {"value": 0.5}}
    record_figures("both", written(tmp_path / "c.json", both), folder=tmp_path)
    found = check_figures("both", written(tmp_path / "d.json", both), folder=tmp_path)
    assert found.verdict is Verdict.ALIGNED
    assert found.summary == "what both was; speed and memory are told, not judged"


@pytest.mark.parametrize("verdict", ["failed", "inconclusive", "could_not_run"])
def test_figures_of_suites_that_did_not_pass_are_no_baseline(tmp_path: Path, verdict: str) -> None:
    path = written(tmp_path / "a.json", {"kl": {"value": 0.5}}, verdict=verdict)
    with pytest.raises(UsageError, match=f"ended '{verdict}', and only figures of a port that passed"):
        record_figures("scores", path, folder=tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
    passed = written(tmp_path / "b.json", {"kl": {"value": 0.5}}, verdict="passed")
    record_figures("scores", passed, folder=tmp_path / "kept")
    assert check_figures("scores", passed, folder=tmp_path / "kept").verdict is Verdict.ALIGNED


@pytest.mark.parametrize(
    ("ended", "verdict", "headline"),
    [
        ("failed", Verdict.DIVERGENT, "not what scores was: {} ended failed"),
        ("could_not_run", Verdict.INCONCLUSIVE, "inconclusive against scores: {} ended could not run"),
        ("inconclusive", Verdict.INCONCLUSIVE, "inconclusive against scores: {} ended inconclusive"),
    ],
)
def test_the_same_figures_of_suites_that_did_not_pass_are_not_what_the_baseline_was(
    tmp_path: Path, ended: str, verdict: Verdict, headline: str
) -> None:
    kl = {"kl": {"value": 0.5, "error": 0.1}}
    record_figures("scores", written(tmp_path / "a.json", kl, verdict="passed"), folder=tmp_path)
    found = check_figures("scores", written(tmp_path / "b.json", kl, verdict=ended), folder=tmp_path)
    assert found.verdict is verdict
    assert found.summary == headline.format("the suites that measured these figures")
    assert found.to_json()["suites"] == ended
    assert "suites" in plain_text(found)


def test_an_ending_that_no_suite_has_is_no_file_of_figures(tmp_path: Path) -> None:
    path = written(tmp_path / "a.json", {"kl": {"value": 0.5}}, verdict="splendid")
    with pytest.raises(CaptureError, match="'splendid' is not a valid Ending"):
        read_figures(path)


def test_settings_are_conditions_of_figures(tmp_path: Path) -> None:
    kl: dict[str, object] = {"kl": {"value": 0.5, "error": 0.1}}
    then = {"target": "port.py", "dtype": "bfloat16", "reports": "out"}
    record_figures("scores", written(tmp_path / "a.json", kl, settings=then), folder=tmp_path)
    now = then | {"dtype": "float16", "reports": None}
    found = check_figures("scores", written(tmp_path / "b.json", kl, settings=now), folder=tmp_path)
    assert [str(one) for one in found.differences] == ["settings dtype bfloat16, now float16"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"figures": {}}', '{"figures": {"a": {"value": null}}}'])
def test_a_file_without_figures_is_one_message(tmp_path: Path, text: str) -> None:
    path = tmp_path / "figures.json"
    path.write_text(text)
    with pytest.raises(CaptureError, match="figure"):
        read_figures(path)
