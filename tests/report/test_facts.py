"""Facts of an outcome: which judgement a finding is of."""

from dataclasses import replace

from tests.report.page.test_rendering import Document
from validator.align.traces import StepTokens
from validator.checks.findings import Outcome
from validator.checks.stepping import told_by_step
from validator.report.facts import first_judgement, is_of
from validator.report.json_report import to_json
from validator.report.notebook.plots import judgement_of
from validator.report.page.rendering import to_html


def of_decode_steps(outcome: Outcome) -> Outcome:
    """Let the first finding be of the candidate's second call."""
    step = StepTokens(number=2, count=9, call=1, start=8, stop=9, kept=(8,))
    told = told_by_step(replace(outcome.findings[0], step=step))
    assert told.call == 1
    return replace(outcome, findings=(told, *outcome.findings[1:]))


def test_a_finding_of_a_later_step_is_known_by_its_place_in_the_order(divergent: Outcome) -> None:
    outcome = of_decode_steps(divergent)
    row = first_judgement(outcome)
    assert row == first_judgement(divergent)
    assert row is not None
    assert is_of(outcome.judgements[row], outcome.findings[0])
    assert judgement_of(outcome, outcome.findings[0]) is outcome.judgements[row]


def test_the_page_of_decode_steps_names_its_first_divergence(divergent: Outcome) -> None:
    text = Document(to_html(of_decode_steps(divergent))).text
    assert "No edge diverges" not in text
    assert "First divergence: model.layers.2.mlp.down_proj" in text


def test_an_edge_in_json_has_the_call_of_its_finding(divergent: Outcome) -> None:
    document = to_json(of_decode_steps(divergent))
    found = document["findings"][0]
    names = ("module", "check", "into", "call")
    edges = [edge for edge in document["edges"] if all(edge[name] == found[name] for name in names)]
    assert [edge["verdict"] for edge in edges] == ["divergent"]
