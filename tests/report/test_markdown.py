"""Markdown in GitHub's flavour: what is shown is text, whatever users called their modules."""

import html
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from tests.report.results import probe_result, search_result, swap_result
from validator.checks.findings import Outcome
from validator.escapes import printable
from validator.report.markdown import MOST_CHARACTERS, code, prose, to_markdown
from validator.report.result import Result
from validator.report.screen import Column, Kind, Row, Screen, Section, Table
from validator.report.shown import Shown

GITHUB = MarkdownIt("commonmark").enable(["table", "strikethrough"])
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "![x](http://a.example/x.png)",
    "[click](javascript:alert(1))",
    "**bold** __bold__ _it_ ~~gone~~ `code` ``",
    "| a | b |",
    "a\\|b\\",
    "# heading",
    "- item",
    "1. item",
    "&lt;b&gt; &#35;",
    "$x^2$",
    "line\nbreak\r\n\n    block",
    "h\N{LATIN SMALL LETTER E WITH ACUTE}l\N{GRINNING FACE}",
    "x" * 300,
    "\x1b[31mred",
]
hostile = pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))


def shown(markdown: str) -> str:
    """Return the text of Markdown that is one paragraph; anything that is markup fails."""
    opening, inline, closing = GITHUB.parse(markdown)
    assert (opening.type, closing.type) == ("paragraph_open", "paragraph_close")
    kinds = {child.type for child in inline.children or []}
    assert kinds <= {"text", "text_special"}, kinds
    return "".join(child.content for child in inline.children or []).replace("\u200b", "")


@hostile
def test_prose_is_shown_as_it_is(text: str) -> None:
    assert shown(prose(text)) == printable(text).strip()


@given(st.text(st.sampled_from("ab19 .-+=)(#*_`~|<>[]!&;:/@$\\'\"\n\t"), min_size=1, max_size=12))
def test_any_prose_is_shown_as_it_is(text: str) -> None:
    expected = printable(text).strip()
    assert shown(f"x{prose(text)}") == f"x{expected}"
    if expected:
        assert shown(prose(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "@octocat",
        "#12",
        "GH-12",
        "see (gh-12)",
        ":smile:",
        "www.example.com",
        "http://example.com",
        "a@b.com",
    ],
)
def test_prose_names_no_user_issue_emoji_or_link(text: str) -> None:
    """GitHub looks for these in the text that Markdown became, so an escape alone would not do."""
    seen = "".join(child.content for child in GITHUB.parse(prose(text))[1].children or [])
    assert not re.search(r"@\w|#\w|:\w|gh-\d", seen, re.IGNORECASE)
    assert "www." not in prose(text)
    assert "://" not in prose(text).replace("\\:", "")


@hostile
def test_a_name_in_a_table_is_a_code_span_in_its_own_cell(text: str) -> None:
    table = Table(
        columns=(Column(name="edge", kind=Kind.NAME), Column(name="off by")), rows=((text, "4.4x band"),)
    )
    rendered = GITHUB.render(to_markdown(Screen(headline="h", style="", sections=(table,))))
    cells = re.findall(r"<td>(.*?)</td>", rendered, re.DOTALL)
    assert len(cells) == 2, rendered
    assert cells[1] == "4.4x band"
    inside = re.fullmatch(r"<code>(.*)</code>", cells[0], re.DOTALL)
    assert inside
    assert html.unescape(inside[1]).strip() == printable(text).strip()
    assert "<" not in inside[1]


def test_numbers_stand_on_the_right() -> None:
    table = Table(columns=(Column(name="n", kind=Kind.NUMBER), Column(name="t")), rows=(("1", "a"),))
    assert "| --: | --- |" in to_markdown(Screen(headline="h", style="", sections=(table,)))


@hostile
def test_what_is_folded_is_collapsed_under_its_title(text: str) -> None:
    section = Section(title=text, rows=(Row(label="what", text=text),), folded=True)
    rendered = GITHUB.render(to_markdown(Screen(headline="h", style="", sections=(section,))))
    summary = re.search(r"<details><summary>(.*?)</summary>", rendered, re.DOTALL)
    assert summary
    assert "<" not in summary[1]
    assert html.unescape(summary[1]).replace("\u200b", "") == printable(text)
    assert rendered.rstrip().endswith("</details>")
    assert re.findall(r"<(\w+)", rendered.replace(summary[0], "")) == ["h3", "ul", "li"]


def test_a_command_is_code_so_that_it_can_be_pasted() -> None:
    section = Section(rows=(Row(label="next", text="validator check 'a*'", command=True),))
    assert "- next: `validator check 'a*'`" in to_markdown(
        Screen(headline="h", style="", sections=(section,))
    )


def test_an_empty_name_is_an_empty_cell() -> None:
    assert code("") == ""


def test_a_result_has_its_verdict_findings_counts_and_the_first_finding_folded(divergent: Outcome) -> None:
    text = Result(divergent).to_markdown()
    assert text.startswith("### divergent: first at model.layers.2.mlp.down\\_proj, rank 1\n")
    assert "**2 findings**" in text
    assert "| `model.layers.2.mlp.down_proj` | function | rank 1 | 4.4x band |" in text
    assert "| `model.layers.3.self_attn, into o_proj` | wiring |" in text
    assert "- checked: parameter 4, function 4, wiring 4" in text
    opened, folded = text.split("<details>")
    assert "- worst: \\[1, 9, 40\\]: oracle 0.81640625" in folded
    assert "worst" not in opened


def test_a_healthy_result_has_no_table_of_findings(aligned: Outcome) -> None:
    text = Result(aligned).to_markdown()
    assert text.startswith("### aligned: 8 edges of 4 layers explained by rounding")
    assert "|" not in text
    assert "<details>" not in text


def test_of_many_findings_the_first_are_shown_and_all_counted(divergent: Outcome) -> None:
    many = tuple(replace(divergent.findings[0], module=f"m{i}") for i in range(60))
    text = Result(replace(divergent, findings=many)).to_markdown()
    opened, folded = text.split("<details><summary>the next 40, and 10 more in the JSON</summary>")
    assert "**60 findings**" in opened
    assert (opened.count("| `m"), folded.count("| `m")) == (10, 40)


FULL = "|`<&>\\\n@#" * 1000
"""Every character of it is written as several."""


@pytest.mark.parametrize("is_folded", [False, True])
def test_a_comment_is_never_longer_than_github_allows(is_folded: bool) -> None:
    columns = (Column(name=FULL, kind=Kind.NAME), Column(name=FULL))
    table = Table(title=FULL, columns=columns, rows=((FULL, FULL),) * 100, folded=is_folded)
    rows = (Row(label=FULL, text=FULL), Row(text=FULL, command=True))
    last = Section(title="last", rows=(Row(label="note", text="it is kept"),))
    text = to_markdown(
        Screen(headline=FULL, style="", sections=(table, Section(title=FULL, rows=rows), last))
    )
    assert 0.8 * MOST_CHARACTERS < len(text) <= MOST_CHARACTERS
    rendered = GITHUB.render(text)
    assert "it is kept" in rendered
    shown = rendered.count("</tr>") - 1
    assert f"\n<p>... and {100 - shown} more, which a comment has no room for</p>" in rendered
    assert rendered.count("<details>") == rendered.count("</details>") == is_folded


def test_what_leaves_no_room_for_a_line_is_left_out_whole() -> None:
    columns = tuple(Column(name="n" * 400) for _ in range(200))
    wide = Table(title="wide", columns=columns, rows=(("",) * 200,))
    note = Section(rows=(Row(text="it is kept"),))
    text = to_markdown(Screen(headline="h", style="", sections=(wide, note)))
    assert text == "### h\n\n- it is kept\n"


@hostile
@pytest.mark.parametrize("made", [search_result, swap_result, probe_result])
def test_names_in_any_result_are_text(made: Callable[[str], Shown], text: str) -> None:
    rendered = GITHUB.render(made(text).to_markdown())
    own = {"h3", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "code"}
    assert set(re.findall(r"<(\w+)", rendered)) <= own | {"details", "summary"}
    headline = re.search(r"<h3>(.*)</h3>", rendered)
    assert headline
    assert html.unescape(headline[1]).replace("\u200b", "").find(printable(text).strip()) >= 0


def test_names_in_a_result_call_no_user_and_no_issue() -> None:
    text = search_result("@octocat#12").to_markdown()
    outside_code = re.sub(r"`[^`]*`", "", text)
    assert "octocat" in outside_code
    assert not re.search(r"@o|#1", outside_code)
