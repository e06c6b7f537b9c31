import json

from validator.checks.findings import Check, Verdict
from validator.report.figures.runs import runs_figure
from validator.report.stored_runs import EdgeName, RunEdge, StoredRun


def run(name: str, **edges: tuple[Verdict, float]) -> StoredRun:
    named = {
        EdgeName(module=module, check=Check.FUNCTION, into=None, path="", call=0): RunEdge(
            verdict=verdict, max_over_band=error, elements=8
        )
        for module, (verdict, error) in edges.items()
    }
    return StoredRun(
        name=name,
        verdict=Verdict.DIVERGENT,
        findings=(),
        edges=named,
        kl_mean=None,
        top1=None,
        document={},
    )


def test_findings_are_marked_also_below_the_limit() -> None:
    healthy = run("a", up=(Verdict.ALIGNED, 0.95), down=(Verdict.ALIGNED, 0.5))
    gain = run("b", up=(Verdict.ALIGNED, 0.95), down=(Verdict.DIVERGENT, 0.9))
    assert [trace["name"] for trace in runs_figure([healthy, healthy])["data"]] == ["a", "a"]
    figure = runs_figure([healthy, gain])
    json.dumps(figure, allow_nan=False)  # a page holds strict JSON
    _, shown, marks = figure["data"]
    assert (marks["name"], marks["x"], marks["y"]) == ("divergent (1)", [1], [0.9])
    assert [text.partition("<br>")[2] for text in shown["text"]] == ["b: 0.95", "b: 0.90, divergent"]


def test_an_edge_of_the_second_run_alone_stands_where_that_one_judged_it() -> None:
    aligned = (Verdict.ALIGNED, 0.5)
    first = run("a", embed=aligned, head=aligned)
    second = run("b", embed=aligned, up=(Verdict.DIVERGENT, 7.0), head=aligned)
    figure = runs_figure([first, second])
    one, two, marks = figure["data"]
    assert (one["x"], two["x"], marks["x"]) == ([0, 2], [0, 1, 2], [1])
