from tests.report.page.test_rendering import HOSTILE, Document
from validator.checks.findings import Outcome
from validator.report.page.plain import page_around
from validator.report.result import Result
from validator.report.shown import Shown


def test_the_title_is_text_and_the_body_is_html() -> None:
    page = page_around(HOSTILE, "<p>shown</p>")
    document = Document(page)
    assert document.all("script") == []
    assert [attributes for tag, attributes in document.elements if tag == "p"] == [{}]
    assert "alert(1)" in document.text


def test_nothing_is_asked_of_a_network_and_nothing_runs() -> None:
    (policy,) = (a["content"] for a in Document(page_around("x", "")).all("meta") if a.get("http-equiv"))
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def test_plots_are_packed_and_scripts_of_ours_alone_may_run() -> None:
    document = Document(page_around("x", "", figures={HOSTILE: {"data": [], "layout": {}}}))
    (policy,) = (a["content"] for a in document.all("meta") if a.get("http-equiv"))
    (nonce,) = (a["nonce"] for a in document.all("script") if "nonce" in a)
    assert f"script-src 'nonce-{nonce}'" in policy
    assert sum(a.get("type") == "text/plain" for a in document.all("script")) == 2
    assert len(document.all("script")) == 3


def test_a_result_without_a_page_of_its_own_is_shown_as_in_a_notebook(divergent: Outcome) -> None:
    page = Shown.to_html(Result(divergent))
    assert page.startswith("<!doctype html>")
    assert "divergent: first at model.layers.2.mlp.down_proj" in Document(page).text
