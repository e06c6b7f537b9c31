"""What a notebook shows: HTML of its own colours, names as text, and a twin in plain text."""

import html
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import validator
from tests.report.captures import WithNan, captured
from tests.report.results import probe_result, search_result, swap_result
from validator.checks.findings import Outcome
from validator.report.capture_ranges import ranges_of
from validator.report.capture_report import CaptureReport
from validator.report.notebook.cell import to_html
from validator.report.result import Result
from validator.report.screen import Column, Row, Screen, Section, Table
from validator.report.shown import Shown

NAME = "<img src=x onerror=alert(1)>'\"&lt;`|\N{GRINNING FACE}\x1b[31m" + "x" * 300


class Tags(HTMLParser):
    """Collects tags, their attributes and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.append(tag)
        self.open.append(tag)
        self.attributes |= {name for name, _ in attributes}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


OURS = {"div", "p", "details", "summary", "table", "thead", "tbody", "tr", "th", "td", "code"}


def words(text: str) -> str:
    return " ".join(text.split())


def test_names_are_text_wherever_they_stand() -> None:
    sections = (
        Section(title=NAME, rows=(Row(label=NAME, text=NAME), Row(text=NAME, command=True)), folded=True),
        Table(title=NAME, columns=(Column(name=NAME),), rows=((NAME,),)),
    )
    shown = Tags(to_html(Screen(headline=NAME, style="bold red", sections=sections)))
    assert set(shown.tags) == OURS
    assert shown.attributes <= {"style", "open", "scope"}
    assert shown.text.count(NAME.replace("\x1b", "\\x1b")) == 8
    assert shown.open == []


def test_what_is_folded_is_closed_and_the_rest_is_open() -> None:
    row = (Row(label="a", text="b"),)
    for folded in (False, True):
        text = to_html(Screen(headline="h", style="", sections=(Section(rows=row, folded=folded),)))
        assert ("<details open" in text) is not folded


def test_text_and_ground_take_the_notebooks_colours(divergent: Outcome) -> None:
    """Of light and dark: a colour is set for the mark beside the headline alone."""
    colours = re.findall(
        r"(?<![-\w])(?:color|background(?:-color)?)\s*:\s*([^;\"]+)", Result(divergent)._repr_html_()
    )
    assert set(colours) <= {"transparent", "inherit"}


@pytest.mark.parametrize("name", ["aligned", "divergent", "undeclared", "inconclusive"])
def test_a_result_shows_its_verdict_and_what_was_checked(name: str, request: pytest.FixtureRequest) -> None:
    outcome = request.getfixturevalue(name)
    shown = Tags(Result(outcome)._repr_html_()).text
    assert outcome.verdict.replace("_", " ") in shown
    assert "parameter 4, function 4, wiring 4" in shown
    assert ("4.4x band" in shown) == (name == "divergent")
    bundle = Result(outcome)._repr_mimebundle_()
    assert bundle["text/plain"] == str(Result(outcome))
    assert bundle["text/html"] == Result(outcome)._repr_html_()


def test_a_finding_shows_its_evidence_by_itself(divergent: Outcome) -> None:
    finding = divergent.findings[0]
    bundle = finding._repr_mimebundle_()
    assert bundle["text/plain"].startswith("divergent: model.layers.2.mlp.down_proj, rank 1\n")
    for text in (words(bundle["text/plain"]), words(Tags(bundle["text/html"]).text)):
        assert "30 of 2048 elements (1.5%), all in tokens 0-3, 9; channel 40" in text
        assert "a factor of 1.02" in text
    hostile = replace(finding, module=NAME, candidate_module=NAME)
    assert set(Tags(hostile._repr_html_()).tags) <= OURS


def test_a_finding_that_a_recipe_explains_names_it(undeclared: Outcome) -> None:
    shown = Tags(undeclared.findings[0]._repr_html_()).text
    assert "mlp.down_proj, rank 1; recipe eager would explain it" in shown


def test_a_row_that_says_nothing_is_left_out(divergent: Outcome) -> None:
    """Of an edge with no format, rank or other name nothing is known of the candidate."""
    shown = Tags(divergent.findings[1]._repr_html_()).text
    assert "What enters o_proj is off by one factor." in shown
    assert "candidate\n" not in shown


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (
            search_result("a.b"),
            ["divergent: first at a.b, rank 1", "boundaries", "5 modules: a.b", "2 candidate runs"],
        ),
        (
            swap_result("a.b"),
            ["divergent: a.b0 explains a mean KL of 3.1e-2", "1 block of 2", "all others", "5 hybrids"],
        ),
        (
            probe_result("a_b"),
            ["a_b: wrong answers (2 ranks, gloo on cpu)", "bfloat16", "1 KiB", "a_b adds: ring, upwards"],
        ),
    ],
    ids=["search", "swap", "probe"],
)
def test_a_search_a_swap_and_a_probe_show_what_their_commands_print(result: Shown, words: list[str]) -> None:
    bundle = result._repr_mimebundle_()
    assert bundle["text/plain"] == str(result)
    assert bundle["text/html"] == result._repr_html_()
    for text in (Tags(bundle["text/html"]).text, bundle["text/plain"]):
        assert [word for word in words if word not in text] == []


@pytest.mark.parametrize("made", [search_result, swap_result, probe_result])
def test_hostile_names_in_them_are_text(made: Callable[[str], Shown]) -> None:
    shown = Tags(made(NAME)._repr_html_())
    assert set(shown.tags) <= OURS
    assert shown.attributes <= {"style", "open", "scope"}
    assert shown.open == []
    assert NAME.replace("\x1b", "\\x1b") in shown.text
    assert "\x1b" not in str(made(NAME))


def test_of_a_large_set_the_first_members_are_shown() -> None:
    text = str(swap_result("m", members=20))
    assert "20 blocks of 21" in text
    assert "... and 8 more (see --json)" in text
    assert (" m11 " in text, " m12 " in text) == (True, False)


def test_a_capture_shows_what_it_is_and_reads_no_rank(tmp_path: Path) -> None:
    capture = captured(tmp_path / "run")
    bundle = capture._repr_mimebundle_()
    assert bundle["text/plain"].startswith(f"capture of 1 rank: {tmp_path}/run".replace("\n", ""))
    assert "level full" in bundle["text/html"]
    assert capture._read == {}


def test_a_comparison_and_a_captures_report_show_their_tables(tmp_path: Path) -> None:
    healthy, faulty = captured(tmp_path / "a"), captured(tmp_path / "b", WithNan)
    comparison = validator.compare(ref=healthy.path, cand=faulty.path)
    shown = Tags(comparison._repr_html_())
    assert "inconclusive" in shown.text
    assert {"thead", "td"} <= set(shown.tags)
    assert "layers.1" in shown.text
    assert html.unescape(comparison._repr_mimebundle_()["text/plain"]) == str(comparison)
    assert "NaN, first in layers.1" in Tags(CaptureReport(ranges_of(faulty))._repr_html_()).text
