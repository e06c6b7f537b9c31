"""`validator report RESULT.json...`: what changed from run to run."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import pytest
from typer.testing import CliRunner

from tests.report.page.test_rendering import Document
from validator import cli
from validator.checks.findings import Arm, Outcome, Verdict
from validator.errors import TargetError, UsageError
from validator.report.json_report import error_json, schema
from validator.report.result import Result
from validator.report.screen import plain_text
from validator.report.side_by_side import read_runs


def run(*args: object) -> Any:
    return CliRunner().invoke(cli.app, [str(arg) for arg in args])


MOVED, FOUND = "model.layers.0.mlp.down_proj", "model.layers.2.mlp.down_proj"


def with_error(outcome: Outcome, module: str, error: float, *, world_size: int) -> Outcome:
    """Return the outcome with another error over the band at the function check of a module."""
    side = {"software": {"torch": "2.10"}, "parallelism": {"world_size": world_size}}
    return replace(
        outcome,
        run={"candidate": side},
        judgements=tuple(
            replace(j, evidence=replace(j.evidence, max_over_band=error))
            if (j.module, j.check) == (module, "function")
            else j
            for j in outcome.judgements
        ),
    )


@pytest.fixture
def files(tmp_path: Path, aligned: Outcome, divergent: Outcome) -> list[Path]:
    """An aligned run, a divergent one, and one in which layer 0 is nearer to its band."""
    paths = [tmp_path / f"{name}.json" for name in ("tp1", "tp2", "tp4")]
    first = with_error(aligned, MOVED, 0.31, world_size=1)
    last = with_error(aligned, MOVED, 0.95, world_size=4)
    for path, outcome in zip(paths, (first, divergent, last), strict=True):
        Result(outcome).write_json(path)
    return paths


def test_text_shows_the_runs_what_changed_and_what_moved(files: list[Path]) -> None:
    result = run("report", *files)
    assert result.exit_code == 0
    words = " ".join(result.stdout.split())
    assert words.startswith("3 runs: aligned (tp1), then divergent (tp2), then aligned (tp4)")
    # The other runs have judged no such edge of layer 3.
    found, of_its_own = f"{FOUND} (function)", "model.layers.3.self_attn, into o_proj [input] (wiring)"
    news = f"1 finding new: {found}; 1 finding where nothing was judged before: {of_its_own}"
    assert f"tp1 to tp2 divergent, was aligned; {news}" in words
    assert (
        f"tp2 to tp4 aligned, was divergent; 1 finding gone: {found}; 1 finding no longer judged: " in words
    )
    moved = words.split("moved more than chance moves it")[1]
    assert "model.layers.0.mlp.down_proj (function) 0.31 0.71 0.95" in moved
    assert "model.layers.1" not in moved
    assert "whose elements err independently of each other, at most 1.0% show such an edge" in moved
    assert "candidate.parallelism.world_size 1 2 4" in moved
    assert "candidate.software.torch 2.10 - 2.10" in moved


def test_the_figure_has_every_edge_of_every_run(files: list[Path]) -> None:
    figure = read_runs(files).figure()
    runs = figure.data[:3]  # signs of the findings follow
    assert [(trace.name, len(trace.x)) for trace in runs] == [("tp1", 12), ("tp2", 13), ("tp4", 12)]
    assert len(set(figure.data[1].x)) == 13
    place = list(read_runs(files).to_frame().query("run == 'tp1'").module).index(MOVED)
    moved = [trace.y[list(trace.x).index(place)] for trace in runs]
    assert moved == [0.31, 0.71, 0.95]


def test_the_page_asks_for_nothing_and_has_the_plot(files: list[Path], tmp_path: Path) -> None:
    page = tmp_path / "runs.html"
    assert run("report", *files, "--html", page).exit_code == 0
    document = Document(page.read_text())
    assert "3 runs: aligned (tp1), then divergent (tp2), then aligned (tp4)" in document.text
    assert "Error over the band, edge by edge" in document.text
    assert [attributes for tag, attributes in document.elements if {"src", "href"} & attributes.keys()] == [
        {"rel": "icon", "href": "data:,"}
    ]


def test_the_exit_code_is_that_of_the_last_run(files: list[Path]) -> None:
    assert [run("report", *order).exit_code for order in (files, files[:2], files[::-1])] == [0, 1, 0]


def test_one_run_is_shown_too(files: list[Path]) -> None:
    result = run("report", files[1])
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0] == "tp2: divergent"


def test_files_hold_all_of_it(files: list[Path], tmp_path: Path) -> None:
    out = [tmp_path / f"all.{ending}" for ending in ("txt", "csv", "md")]
    assert run("report", *files, "--json", out[0], "--csv", out[1], "--markdown", out[2]).exit_code == 0
    document = json.loads(out[0].read_text())
    jsonschema.validate(document, schema(), cls=jsonschema.Draft202012Validator)
    assert [found["name"] for found in document["runs"]] == ["tp1", "tp2", "tp4"]
    assert [len(change["appeared"]) for change in document["changes"]] == [2, 0]
    (moved,) = document["moved"]
    assert (moved["edge"]["module"], moved["max_over_band"]) == (MOVED, [0.31, 0.71, 0.95])
    frame = pd.read_csv(out[1])
    assert frame.groupby("run").size().to_dict() == {"tp1": 12, "tp2": 13, "tp4": 12}
    assert "| `tp2` | divergent | 2 | `model.layers.2.mlp.down_proj (function)` |" in out[2].read_text()


def test_identical_runs_say_that_nothing_changed(files: list[Path], tmp_path: Path) -> None:
    again = tmp_path / "again.json"
    again.write_text(files[0].read_text())
    runs = read_runs([files[0], again])
    assert runs.to_json()["moved"] == []
    assert runs.to_json()["differences"] == {}
    assert "2 runs: all aligned" in str(runs)
    assert "the same findings" in str(runs)
    assert "chance" not in str(runs)
    assert "err independently" not in str(runs)


def without(file: Path, module: str) -> Path:
    """Write the result again as if an edge had not been judged, beside the other."""
    document = json.loads(file.read_text())
    document["edges"] = [edge for edge in document["edges"] if edge["module"] != module]
    found = file.with_name(f"{file.stem}-less.json")
    found.write_text(json.dumps(document))
    return found


def changes(*paths: Path) -> str:
    """What is said from the first run to the second."""
    return " ".join(str(read_runs(list(paths))).split("from run to run")[1].split("\n\n")[0].split())


def test_a_finding_whose_edge_is_not_judged_any_more_is_not_gone(files: list[Path]) -> None:
    _, before, after = files
    assert f"1 finding gone: {FOUND} (function)" in changes(before, after)
    narrowed = changes(before, without(after, FOUND))
    assert "gone" not in narrowed
    assert f"2 findings no longer judged: {FOUND} (function)" in narrowed
    widened = changes(without(after, FOUND), before)
    assert "new" not in widened
    assert f"2 findings where nothing was judged before: {FOUND} (function)" in widened


def test_a_finding_of_a_decode_step_is_gone_where_its_module_is_aligned(
    files: list[Path], divergent: Outcome
) -> None:
    step = replace(divergent, findings=(replace(divergent.findings[0], call=7),))
    Result(step).write_json(files[1])
    assert f"1 finding gone: {FOUND} (function, call 7)" in changes(files[1], files[2])


def test_results_of_findings_alone_are_taken_to_have_judged_the_rest(files: list[Path]) -> None:
    document = json.loads(files[2].read_text())
    del document["edges"]
    files[2].write_text(json.dumps(document))
    assert "2 findings gone" in changes(files[1], files[2])


def test_edges_that_a_later_run_alone_has_stand_where_they_are_judged(files: list[Path]) -> None:
    """Without an edge in the first run its place comes from the second, and not from which is given first."""
    first = without(files[0], FOUND)
    for paths in ([first, files[1]], [files[1], first]):
        runs = read_runs(paths)
        (shown,) = (trace for trace in runs.figure().data if trace.name == "tp2")
        order = [text for _, text in sorted(zip(shown.x, shown.text, strict=True))]
        names = [text.partition("<br>")[0] for text in order]
        at = names.index(f"{FOUND} (function)")
        assert names[at - 1].startswith("model.layers.2.mlp.down_proj.weight")
        assert names[at + 1].startswith("model.layers.2.mlp (")
        found = [row["edge"]["module"] for row in runs.to_json()["findings"]]
        assert found == [FOUND, "model.layers.3.self_attn"]


def test_what_is_not_known_of_a_run_is_no_python(files: list[Path]) -> None:
    for file, backend in ((files[0], None), (files[2], "gloo")):
        document = json.loads(file.read_text())
        document["run"]["candidate"]["parallelism"]["backend"] = backend
        file.write_text(json.dumps(document))
    runs = read_runs([files[0], files[2]])
    assert "candidate.parallelism.backend - gloo" in " ".join(str(runs).split())
    assert runs.to_json()["differences"]["candidate.parallelism.backend"] == [None, "gloo"]
    del document["run"]["candidate"]["parallelism"]["backend"]
    files[2].write_text(json.dumps(document))
    assert "candidate.parallelism.backend" not in read_runs([files[0], files[2]]).to_json()["differences"]


def test_names_of_metadata_are_whole_at_80_columns(files: list[Path]) -> None:
    for file, checksum in ((files[0], "a" * 64), (files[2], "b" * 64)):
        document = json.loads(file.read_text())
        document["run"]["candidate"]["inputs"] = {"input_ids": {"checksum": checksum}}
        file.write_text(json.dumps(document))
    text = plain_text(read_runs([files[0], files[2]]).__rich__(), 80)
    assert "candidate.parallelism.world_size " in text
    assert "candidate.inputs.input_ids " in text
    assert max(map(len, text.splitlines())) <= 80


def test_another_reference_and_other_inputs_are_differences(files: list[Path]) -> None:
    for file, checksum, torch in ((files[0], "aa", "2.9"), (files[2], "bb", "2.10")):
        document = json.loads(file.read_text())
        document["run"]["candidate"]["inputs"] = {"input_ids": {"checksum": checksum, "mean": 1.0}}
        document["run"]["reference"] = {"software": {"torch": torch}, "source": "tiny"}
        file.write_text(json.dumps(document))
    differences = read_runs([files[0], files[2]]).to_json()["differences"]
    assert differences["candidate.inputs.input_ids"] == ["aa", "bb"]
    assert differences["reference.software.torch"] == ["2.9", "2.10"]
    assert "reference.source" not in differences


@pytest.mark.parametrize("value", [None, 7])
def test_a_first_divergence_that_is_none_of_the_findings_is_an_error(
    files: list[Path], value: object
) -> None:
    document = json.loads(files[1].read_text())
    document["first_divergence"] = value
    files[1].write_text(json.dumps(document))
    with pytest.raises(UsageError, match="first_divergence is not the first"):
        read_runs(files)
    del document["first_divergence"]
    files[1].write_text(json.dumps(document))
    with pytest.raises(UsageError, match="KeyError: 'first_divergence'"):
        read_runs(files)


def test_of_several_ranks_the_worst_counts(aligned: Outcome, tmp_path: Path) -> None:
    first = aligned.judgements[1]
    worse = replace(first, rank=1, evidence=replace(first.evidence, max_over_band=0.9))
    path = tmp_path / "run.json"
    Result(replace(aligned, judgements=(*aligned.judgements, worse))).write_json(path)
    frame = read_runs([path]).to_frame()
    found = frame[(frame.module == first.module) & (frame.check == "function")]
    assert found.max_over_band.tolist() == [0.9]


@pytest.mark.parametrize("arm", [Arm.CLASS, Arm.EXACT])
def test_a_value_of_another_class_is_plotted_at_infinity_however_small_the_other_errors(
    arm: Arm, divergent: Outcome, tmp_path: Path
) -> None:
    found = divergent.findings[0]
    small = replace(found.evidence, max_over_band=0.4)
    path = tmp_path / "run.json"
    judgements = tuple(
        replace(j, evidence=small) if (j.module, j.check) == (found.module, found.check) else j
        for j in divergent.judgements
    )
    Result(
        replace(divergent, findings=(replace(found, arm=arm, evidence=small),), judgements=judgements)
    ).write_json(path)
    runs = read_runs([path])
    trace, *_ = runs.figure().data
    (at,) = [place for place, text in enumerate(trace.text) if f"{found.module} (function)" in text]
    assert "run: inf, " in trace.text[at]
    assert trace.y[at] == runs.figure().layout.yaxis.tickvals[-1]


def test_a_run_after_as_many_as_there_are_colours_does_not_look_like_another(
    files: list[Path], tmp_path: Path
) -> None:
    paths = [tmp_path / f"run{n}.json" for n in range(14)]
    for path in paths:
        path.write_text(files[0].read_text())
    data = read_runs(paths).figure().data
    assert len({(trace.marker.color, trace.marker.symbol) for trace in data}) == 14


def test_an_edge_that_is_left_open_is_stored_and_read(aligned: Outcome, tmp_path: Path) -> None:
    open_one = replace(aligned.judgements[1], verdict=Verdict.INCONCLUSIVE)
    outcome = replace(aligned, judgements=(aligned.judgements[0], open_one, *aligned.judgements[2:]))
    paths = tmp_path / "a.json", tmp_path / "b.json"
    for path, made in zip(paths, (aligned, outcome), strict=True):
        Result(made).write_json(path)
        jsonschema.validate(json.loads(path.read_text()), schema(), cls=jsonschema.Draft202012Validator)
    read = read_runs(paths).runs[1].edges.values()
    assert [edge.verdict for edge in read].count(Verdict.INCONCLUSIVE) == 1


def test_runs_of_one_name_are_told_apart_by_their_folders(files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    old = tmp_path / "old" / "tp1.json"
    old.write_text(files[0].read_text())
    assert [found.name for found in read_runs([old, files[0]]).runs] == [str(old), str(files[0])]


def test_results_older_than_the_list_of_edges_are_read(files: list[Path]) -> None:
    document = json.loads(files[1].read_text())
    del document["edges"]
    files[1].write_text(json.dumps(document))
    frame = read_runs([files[1]]).to_frame()
    assert frame.verdict.tolist() == ["divergent", "divergent"]


def test_edges_of_unknown_size_are_said_to_be_compared_less(files: list[Path]) -> None:
    document = json.loads(files[0].read_text())
    for edge in document["edges"]:
        del edge["elements"], edge["arm"]
    files[0].write_text(json.dumps(document))
    runs = read_runs(files)
    assert runs.to_json()["moved"] == []
    words = " ".join(str(runs).split())
    # One of the twelve has a finding.
    assert "11 edges of results that older versions wrote have no number of elements" in words
    assert "no number of elements" not in str(read_runs(files[1:]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-20], "can't be read as a result (JSONDecodeError"),
        (lambda text: "[]", "no document of schema 1 (its schema is 'None')"),
        (
            lambda text: text.replace('"schema": 1', '"schema": 7'),
            "no document of schema 1 (its schema is '7')",
        ),
        (lambda text: text.replace('"checked"', '"pairs"'), "holds no result of `validator check`"),
        (lambda text: text.replace('"aligned"', '"fine"'), "can't be read as a result (ValueError: 'fine'"),
        (lambda text: text.replace('"call": 0', '"call": "0"'), "can't be read as a result (TypeError"),
        (lambda text: text.replace("0.000124", '"much"'), "can't be read as a result (ValueError"),
        (
            lambda text: text.replace('"elements": 2048', '"elements": -1'),
            "can't be read as a result (ValueError: -1 is no",
        ),
        (lambda text: text.replace("0.31", f"1{'0' * 400}"), "can't be read as a result (OverflowError"),
        (
            lambda text: json.dumps(error_json(TargetError("no port"))),
            "holds no result, its run failed: no port",
        ),
        (lambda text: "[" * 100_000, "can't be read as a result (RecursionError"),
    ],
    ids=[
        "truncated",
        "list",
        "version",
        "comparison",
        "verdict",
        "call",
        "figure",
        "size",
        "huge",
        "error",
        "deep",
    ],
)
def test_a_file_that_is_no_result_is_one_message(
    files: list[Path], change: Callable[[str], str], message: str
) -> None:
    files[0].write_text(change(files[0].read_text()))
    result = run("report", *files)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {files[0]}: {message}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("places", [(0,), (0, 1), (1, 0)], ids=["alone", "first", "last"])
def test_a_result_that_is_not_there_is_named(files: list[Path], places: tuple[int, ...]) -> None:
    missing = files[0].parent / "missing.json"
    result = run("report", *([missing, *files[:1]][place] for place in places))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {missing}: can't be read as a result (FileNotFoundError: ")


def test_a_capture_beside_results_is_named(files: list[Path], tmp_path: Path) -> None:
    result = run("report", files[0], tmp_path)
    assert result.exit_code == 2
    assert f"{str(tmp_path)!r} is no such file, and is named beside 1 more" in result.stderr


def test_a_file_that_is_given_twice_is_an_error(files: list[Path]) -> None:
    with pytest.raises(UsageError, match="is given twice"):
        read_runs([files[0], files[1], files[0]])


def test_counts_are_of_captures(files: list[Path]) -> None:
    result = run("report", files[0], "--counts")
    assert result.exit_code == 2
    assert "--counts reads the values of a capture" in result.stderr


def test_no_result_is_overwritten(files: list[Path]) -> None:
    before = files[0].read_text()
    assert run("report", *files, "--json", files[0]).exit_code == 2
    assert files[0].read_text() == before
