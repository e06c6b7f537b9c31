from tests.report.page.test_rendering import HOSTILE, Document
from validator.checks.findings import Outcome
from validator.report.page.plain import screen_page
from validator.report.result import Result
from validator.report.screen import Column, Kind, Row, Screen, Section, Table
from validator.report.shown import Shown

FIGURE = {"data": [], "layout": {}}


def screen(*sections: Section | Table, headline: str = "x") -> Screen:
    return Screen(headline=headline, style="bold red", sections=sections)


def policy_of(document: Document) -> str:
    (policy,) = (a["content"] for a in document.all("meta") if a.get("http-equiv"))
    assert policy is not None
    return policy


def test_all_that_a_screen_holds_is_text() -> None:
    columns = (Column(name=HOSTILE), Column(name="n", kind=Kind.NUMBER))
    page = screen_page(
        screen(
            Section(title=HOSTILE, rows=(Row(label=HOSTILE, text=HOSTILE), Row(text=HOSTILE, command=True))),
            Table(title=HOSTILE, columns=columns, rows=((HOSTILE, "1"),), folded=True),
            headline=HOSTILE,
        ),
        {},
    )
    document = Document(page)
    assert document.all("script") == []
    assert document.text.count("alert(1)") == 9  # once more in the window's title
    assert "\u202e" not in page


def test_what_has_a_title_has_a_heading_and_what_is_folded_can_be_opened() -> None:
    rows = (Row(label="a", text="b"),)
    shown = screen(
        Section(rows=rows), Section(title="named", rows=rows), Section(title="folded", rows=rows, folded=True)
    )
    document = Document(screen_page(shown, {}))
    assert [tag for tag, _ in document.elements if tag in ("h1", "h2", "details", "summary")] == [
        "h1",
        "h2",
        "details",
        "summary",
    ]
    assert [a["aria-label"] for a in document.all("div")] == ["Remarks", "named", "folded"]


def test_what_answers_stands_before_the_plot_and_what_is_folded_after_it() -> None:
    rows = (Row(label="a", text="b"),)
    shown = screen(Section(title="folded", rows=rows, folded=True), Section(title="answer", rows=rows))
    document = Document(screen_page(shown, {"plot": FIGURE}))
    assert [tag for tag, _ in document.elements if tag in ("h2", "figure", "summary")] == [
        "h2",
        "figure",
        "summary",
    ]


def test_short_texts_in_a_table_stay_on_one_line() -> None:
    columns = (Column(name="worst slice"),)
    table = Table(columns=columns, rows=(("token 62: 3.1e-2",), ("x " * 30,)))
    cells = [a["class"] for a in Document(screen_page(screen(table), {})).all("td")]
    assert cells == ["text short", "text"]


def test_nothing_is_asked_of_a_network_and_nothing_runs() -> None:
    document = Document(screen_page(screen(), {}))
    assert policy_of(document) == (
        "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline'; img-src data:"
    )
    assert document.all("button") == []


def test_plots_are_packed_and_scripts_of_ours_alone_may_run() -> None:
    document = Document(screen_page(screen(), {HOSTILE: FIGURE}))
    (nonce,) = (a["nonce"] for a in document.all("script") if "nonce" in a)
    assert f"script-src 'nonce-{nonce}'" in policy_of(document)
    assert sum(a.get("type") == "text/plain" for a in document.all("script")) == 2
    assert len(document.all("script")) == 3


def test_a_result_without_a_page_of_its_own_is_shown_as_its_screen(divergent: Outcome) -> None:
    page = Shown.to_html(Result(divergent))
    assert page.startswith("<!doctype html>")
    assert "divergent: first at model.layers.2.mlp.down_proj" in Document(page).text
