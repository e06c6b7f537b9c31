"""The page of a healthy and of a faulty run on 4 ranks in a real browser: each control, and what is shown."""

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Opened
from tests.report.page.test_rendering import hostile
from validator.api import check_target
from validator.checks.findings import Outcome, Verdict
from validator.digits import number, ratio
from validator.report.figures.drawing import edge_label, over_band
from validator.report.figures.layers import LAYER_METRICS
from validator.report.page.packing import packed
from validator.report.result import Result

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

LAYER_METRIC = next(iter(LAYER_METRICS))

BEYOND = """() => {
  const right = document.body.getBoundingClientRect().right + 1;
  const wide = [...document.querySelectorAll("main *")].filter(
    (one) => !one.closest("svg, .modebar-container") && one.getBoundingClientRect().right > right);
  const drawn = [...document.querySelectorAll(".plot")].filter((place) => {
    const svg = place.querySelector(".main-svg").getBoundingClientRect(), box = place.getBoundingClientRect();
    return Math.abs(svg.width - box.width) > 2 || Math.abs(svg.height - box.height) > 2;
  });
  return [...wide, ...drawn].map((one) => one.outerHTML.slice(0, 200));
}"""
"""What reaches beyond the page, and plots that are drawn larger or smaller than their places."""

Open = Callable[..., Opened]
Written = tuple[Path, Result]


def written(target: str, folder: Path) -> Written:
    result = check_target(str(EXAMPLES / target), nproc=4, profiles=True)
    result.write_html(folder / "page.html")
    return folder / "page.html", result


@pytest.fixture(scope="module")
def faulty(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Written:
    return written("tiny_dense_faulty.py", tmp_path_factory.mktemp("faulty"))


@pytest.fixture(scope="module")
def healthy(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Written:
    return written("tiny_dense.py", tmp_path_factory.mktemp("healthy"))


def first_of(result: Result) -> tuple[int, str]:
    """Return position and label of the judgement that the first divergence is of."""
    first = result.first_divergence
    assert first is not None
    (found,) = (
        (n, edge_label(j))
        for n, j in enumerate(result.outcome.judgements)
        if j.order == first.order and j.verdict == first.verdict
    )
    return found


@pytest.mark.parametrize(
    ("width", "color_scheme"),
    [
        (1400, "light"),
        (375, "dark"),
        pytest.param(1400, "dark", marks=pytest.mark.slow),
        pytest.param(375, "light", marks=pytest.mark.slow),
    ],
)
def test_it_opens_without_a_complaint_a_request_or_a_sideways_scroll(
    open_page: Open, faulty: Written, width: int, color_scheme: str
) -> None:
    path, _ = faulty
    opened = open_page(path, width=width, color_scheme=color_scheme)
    for place in (
        "#plot-edges",
        "#plot-layers",
        "#edge-figures .plot >> nth=0",
        "#plot-kl",
        "#plot-positions",
    ):
        opened.page.locator(place).scroll_into_view_if_needed()
        opened.page.wait_for_function(
            "place => place.dataset.drawn", arg=opened.page.locator(place).element_handle()
        )
    note = opened.page.locator("#plot-edges .annotation-text").bounding_box()
    assert 0 < note["x"] < note["x"] + note["width"] < width
    opened.page.evaluate("for (const folded of document.querySelectorAll('details')) folded.open = true")
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.complaints == []
    assert opened.requests == [path.as_uri()]


def test_the_first_sentence_and_the_panel_are_of_the_first_divergence(
    open_page: Open, faulty: Written
) -> None:
    path, result = faulty
    opened = open_page(path)
    first = result.to_json()["first_divergence"]
    heading = opened.page.locator("h1").inner_text()
    assert heading.startswith("divergent: first at ")
    assert first["module"] in heading
    assert f"rank {first['rank']}" in heading
    assert opened.edge_name() == first_of(result)[1]
    assert first["summary"] in opened.page.locator("#edge-findings").inner_text()


def test_a_healthy_run_has_no_mark_and_no_finding(open_page: Open, healthy: Written) -> None:
    path, result = healthy
    opened = open_page(path)
    assert opened.page.locator("h1").inner_text().startswith("aligned: ")
    assert "annotations" not in opened.plot("#plot-edges")["layout"]
    assert opened.page.locator("#findings").inner_text().split() == ["Findings", "None."]
    assert opened.page.locator("button.edge.divergent").count() == 0
    assert opened.page.locator("#edge-figures .plot").count() >= 3  # of the edge that is nearest to its band
    assert opened.page.locator("button.edge").count() == len(result.outcome.judgements)
    assert opened.complaints == []


def test_the_points_are_the_edges_of_the_result(open_page: Open, faulty: Written) -> None:
    path, result = faulty
    shown = open_page(path).plot("#plot-edges")
    heights = {n: y for trace in shown["data"] for n, y in zip(trace["customdata"], trace["y"], strict=True)}
    assert len(heights) == len(result.outcome.judgements)
    for n, judgement in enumerate(result.outcome.judgements):
        value = over_band(judgement)
        if 1e-2 < value < math.inf:
            assert heights[n] == pytest.approx(value, rel=6e-3)
    (note,) = shown["layout"]["annotations"]
    assert note["x"] == first_of(result)[0]


def test_a_point_that_is_clicked_is_shown(open_page: Open, faulty: Written) -> None:
    path, result = faulty
    opened = open_page(path, at="#edge=0")
    first, name = first_of(result)
    assert opened.edge_name() == edge_label(result.outcome.judgements[0])
    opened.plot("#plot-edges")
    x, y = opened.page.evaluate(
        """n => {
          const figure = document.getElementById("plot-edges"), layout = figure._fullLayout;
          const trace = figure.data.find(trace => trace.customdata.includes(n));
          const place = figure.getBoundingClientRect(), at = trace.customdata.indexOf(n);
          return [place.left + layout.xaxis._offset + layout.xaxis.d2p(trace.x[at]),
                  place.top + layout.yaxis._offset + layout.yaxis.d2p(trace.y[at])];
        }""",
        first,
    )
    opened.page.mouse.move(x, y, steps=3)
    opened.page.mouse.click(x, y)
    opened.page.wait_for_function(
        "name => document.getElementById('edge-name').textContent === name", arg=name
    )
    assert opened.page.url.endswith(f"#edge={first}")


def _names(opened: Opened, axis: str) -> list[str]:
    """The names along the heat map of layers, which is short enough to have them all."""
    shown = opened.plot("#plot-layers")
    names: list[str] = shown["layout"][axis]["ticktext"]
    assert shown["data"][0][axis[0]] == list(range(len(names)))
    return names


def test_each_metric_has_its_heat_map(open_page: Open, faulty: Written) -> None:
    path, result = faulty
    opened = open_page(path)
    assert set(_names(opened, "yaxis")) == set(LAYER_METRICS)
    for metric in LAYER_METRICS:
        opened.page.select_option("#metric", metric)
        assert "mlp.down_proj" in _names(opened, "yaxis")
        assert _names(opened, "xaxis") == ["0", "1", "2", "3", "no layer"]
    opened.page.select_option("#metric", next(iter(LAYER_METRICS)))
    (heat,) = opened.plot("#plot-layers")["data"]
    assert heat["customdata"][_names(opened, "yaxis").index("mlp.down_proj")][2] == first_of(result)[0]


def test_edges_are_chosen_from_the_list_and_one_after_the_other(open_page: Open, faulty: Written) -> None:
    path, result = faulty
    opened = open_page(path)
    names = [edge_label(judgement) for judgement in result.outcome.judgements]
    assert opened.page.locator("#choice option").all_inner_texts() == names
    opened.page.select_option("#choice", "60")
    assert opened.edge_name() == names[60]
    opened.page.click("#next")
    assert opened.edge_name() == names[61]
    opened.page.click("#previous")
    opened.page.click("#previous")
    assert opened.edge_name() == names[59]
    assert opened.complaints == []


def test_the_tree_opens_at_the_guilty_module_and_works_by_keyboard(open_page: Open, faulty: Written) -> None:
    path, result = faulty
    opened = open_page(path)
    page = opened.page
    first, _ = first_of(result)
    assert page.locator(f'button.edge[data-edge="{first}"]').is_visible()
    closed = page.locator("summary", has_text="lm_head")
    inside = closed.locator("xpath=..").locator("button.edge").first
    assert not inside.is_visible()
    closed.focus()
    page.keyboard.press("Enter")
    assert inside.is_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert opened.edge_name().startswith("lm_head")
    assert inside.get_attribute("aria-current") == "true"
    assert page.locator("button.edge[aria-current]").count() == 1


def test_the_panel_shows_what_the_profile_holds(open_page: Open, faulty: Written) -> None:
    path, result = faulty
    opened = open_page(path)
    first, _ = first_of(result)
    judgement = result.outcome.judgements[first]
    assert judgement.profile is not None
    window = judgement.profile.window
    assert window is not None
    for line in judgement.profile.lines:
        largest = opened.plot(f'[data-figure="along {line.axis}"]')["data"][0]
        assert len(largest["x"]) == len(line.starts)
        assert max(largest["y"]) == pytest.approx(max(line.largest), rel=6e-3)
    bins = [count for trace in opened.plot('[data-figure="ulp"]')["data"] for (count,) in trace["customdata"]]
    assert sum(bins) == sum(judgement.profile.ulp_counts)
    row, column = (place - start for place, start in zip(window.worst[-2:], window.start[-2:], strict=True))
    worst = opened.page.locator("td.worst").all_inner_texts()
    assert worst == [
        f"{window.candidate[row][column]:.9g}",
        f"{window.oracle[row][column]:.9g}",
        f"{window.allowed[row][column]:.3g}",
    ]
    assert "outside" in (opened.page.locator("td.worst").first.get_attribute("class") or "")


def test_the_output_is_shown_position_by_position(open_page: Open, faulty: Written) -> None:
    path, result = faulty
    opened = open_page(path)
    output, figures = result.outcome.output, result.outcome.distribution
    assert output is not None
    assert figures is not None
    lines = opened.plot("#plot-kl")["data"]
    assert sum(len(line["x"]) for line in lines) == figures["positions"] == len(output.kl)
    assert max(max(line["y"]) for line in lines) == pytest.approx(figures["kl"]["max"], rel=6e-3)
    rows = opened.page.locator("#output > .scroll tbody tr")
    assert rows.count() == len(output.worst)
    assert [row["position"] for row in figures["worst"]] == [
        list(position.place) for position in output.worst
    ]
    token, probability = output.worst[0].candidate[0]
    assert f"{token} {probability:.4f}" in rows.first.locator("td").last.inner_text()


def test_the_theme_is_switched_and_the_figures_with_it(open_page: Open, faulty: Written) -> None:
    path, _ = faulty
    opened = open_page(path, color_scheme="light")

    def colours() -> tuple[str, str]:
        background = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
        return background, opened.plot("#plot-edges")["layout"]["font"]["color"]

    light = colours()
    opened.page.click("#theme")
    dark = colours()
    assert light[0] == "rgb(255, 255, 255)"
    assert light[0] != dark[0]
    assert light[1] != dark[1]
    opened.page.click("#theme")
    assert colours() == light


def test_on_paper_the_controls_are_gone_and_the_colours_are_light(open_page: Open, faulty: Written) -> None:
    path, _ = faulty
    opened = open_page(path, color_scheme="dark")
    opened.page.emulate_media(media="print")
    assert not opened.page.locator("#theme").is_visible()
    assert not opened.page.locator("#choice").is_visible()
    assert opened.page.locator("#findings").is_visible()
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_before_it_is_printed_all_figures_are_drawn_in_light_colours(
    open_page: Open, faulty: Written
) -> None:
    path, _ = faulty
    light = open_page(path).plot("#plot-edges")["layout"]["font"]["color"]
    opened = open_page(path, color_scheme="dark")
    dark = opened.plot("#plot-edges")["layout"]["font"]["color"]
    opened.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert opened.page.locator(".plot:not([data-drawn])").count() == 0
    widths = opened.page.evaluate("[...document.querySelectorAll('.main-svg')].map(svg => svg.clientWidth)")
    assert 0 < max(widths) <= 700  # 185 mm
    opened.page.emulate_media(media="print", color_scheme="dark")
    assert opened.page.evaluate(BEYOND) == []
    assert opened.plot("#plot-positions")["layout"]["font"]["color"] == light
    opened.page.emulate_media(media="screen", color_scheme="dark")
    opened.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert opened.plot("#plot-positions")["layout"]["font"]["color"] == dark != light


def test_links_lead_to_the_findings(open_page: Open, faulty: Written) -> None:
    path, _ = faulty
    opened = open_page(path)
    opened.page.locator("#edge-findings a").click()
    assert opened.page.url.endswith("#finding-1")
    box = opened.page.locator("#finding-1").bounding_box()
    assert 0 <= box["y"] < 900


def test_a_click_on_a_layer_shows_its_worst_edge(open_page: Open, faulty: Written) -> None:
    path, result = faulty
    first, name = first_of(result)
    opened = open_page(path, at="#edge=0")
    assert opened.edge_name() != name
    heat = opened.plot("#plot-layers")["data"][0]
    row, column = next(
        (m, n) for m, line in enumerate(heat["customdata"]) for n, edge in enumerate(line) if edge == first
    )
    x, y = opened.page.evaluate(
        """([row, column]) => {
          const figure = document.getElementById("plot-layers"), layout = figure._fullLayout;
          const place = figure.getBoundingClientRect();
          return [place.left + layout.xaxis._offset + layout.xaxis.l2p(column),
                  place.top + layout.yaxis._offset + layout.yaxis.l2p(row)];
        }""",
        [row, column],
    )
    opened.page.mouse.move(x, y, steps=3)
    opened.page.mouse.click(x, y)
    opened.page.wait_for_function(
        "name => document.getElementById('edge-name').textContent === name", arg=name
    )
    opened.page.select_option("#metric", LAYER_METRIC)
    assert "mlp.down_proj" in _names(opened, "yaxis")
    opened.page.select_option("#metric", "layers")
    assert set(_names(opened, "yaxis")) == set(LAYER_METRICS)
    assert opened.complaints == []


def test_names_with_html_in_them_are_never_run(open_page: Open, faulty: Written, tmp_path: Path) -> None:
    _, result = faulty
    outcome = hostile(replace(result.outcome, findings=result.findings[:1]))
    Result(outcome).write_html(tmp_path / "hostile.html")
    opened = open_page(tmp_path / "hostile.html", at="#edge=0")
    for place in ("#plot-edges", "#plot-layers", "#plot-kl", "#plot-positions"):
        opened.plot(place)
    for metric in LAYER_METRICS:
        opened.page.select_option("#metric", metric)
        opened.plot("#plot-layers")
    assert "<script>alert(1)</script>" in opened.edge_name()
    assert "<script>alert(1)</script>" in opened.page.locator("#choice option").first.inner_text()
    assert "<script>alert(1)</script>" in opened.page.locator("nav a[title]").first.get_attribute("title")
    assert "\u202e" not in opened.page.content()  # in attributes neither
    assert opened.page.locator("script").count() == 4  # ours, and the library that one of them puts in
    assert opened.page.locator("#plot-edges a, #plot-layers a, #plot-layers script").count() == 0
    assert opened.complaints == []


def test_a_run_in_which_nothing_was_judged_has_no_controls_of_edges(open_page: Open, tmp_path: Path) -> None:
    empty = Outcome(
        verdict=Verdict.INCONCLUSIVE, findings=(), judgements=(), why_inconclusive=("nothing ran",)
    )
    Result(empty).write_html(tmp_path / "empty.html")
    opened = open_page(tmp_path / "empty.html")
    assert "nothing ran" in opened.page.locator("main").inner_text()
    assert opened.page.locator("select, #next, .plot, .tree").count() == 0
    assert opened.page.locator("#status").inner_text() == ""
    links = opened.page.locator("nav a").evaluate_all("links => links.map(link => link.hash)")
    assert links == ["#findings", "#run", "#coverage"]
    assert opened.page.url == (tmp_path / "empty.html").as_uri()
    assert opened.complaints == []


@pytest.mark.parametrize("at", ["#edge=9999", "#edge=abc", "#edge=-1", "#edge=", "#edge=1e1"])
def test_an_address_of_no_edge_shows_the_first_divergence(at: str, open_page: Open, faulty: Written) -> None:
    path, result = faulty
    opened = open_page(path, at=at)
    assert opened.edge_name() == first_of(result)[1]
    assert opened.page.locator("#edge-rows div").count() > 5
    assert opened.complaints == []


def test_another_address_shows_another_edge(open_page: Open, faulty: Written) -> None:
    path, result = faulty
    opened = open_page(path)
    for edge in (3, 5):
        opened.page.evaluate("edge => { location.hash = `#edge=${edge}` }", edge)
        name = edge_label(result.outcome.judgements[edge])
        opened.page.wait_for_function(
            "name => document.getElementById('edge-name').textContent === name", arg=name
        )
    opened.page.evaluate(
        """() => new Promise(told => {
          addEventListener("hashchange", told, { once: true });
          location.hash = "#edge=9999";
        })"""
    )
    assert opened.edge_name() == name


def with_packed(path: Path, name: str, packed: str) -> Path:
    """Return a page like that at a path with something else in it than its data, or than plotly."""
    page, put = re.subn(rf'(id="packed-{name}">)[^<]*', rf"\g<1>{packed}", path.read_text())
    assert put == 1
    return written_text(path.with_name("broken.html"), page)


def written_text(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def without_decompression(path: Path) -> Path:
    page = path.read_text()
    assert page.count('"use strict";') == 1
    old = '"use strict"; delete globalThis.DecompressionStream;'
    return written_text(path.with_name("broken.html"), page.replace('"use strict";', old))


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        pytest.param(lambda path: with_packed(path, "data", packed("[")), "this file is damaged", id="data"),
        pytest.param(lambda path: with_packed(path, "data", "AAAA"), "this file is damaged", id="compressed"),
        pytest.param(
            lambda path: with_packed(path, "plotly", packed("")), "plotly did not start", id="plotly"
        ),
        pytest.param(without_decompression, "a browser of 2023 or later", id="old browser"),
    ],
)
def test_where_plots_cant_be_shown_one_sentence_says_why_and_nothing_dead_is_left(
    broken: Callable[[Path], Path], why: str, open_page: Open, faulty: Written
) -> None:
    path, _ = faulty
    opened = open_page(broken(path), until="html[data-failed]")
    status = opened.page.locator("#status").inner_text()
    assert status.startswith("The plots can't be shown: ")
    assert why in status
    assert status.count(". ") == 1
    for dead in ("#theme", "#metric", "#choice", "#next", "#plot-edges"):
        assert not opened.page.locator(dead).is_visible()
    assert opened.page.locator("h1").inner_text().startswith("divergent: first at ")
    opened.page.locator("#edges summary").click()
    assert opened.page.locator("#edges table").is_visible()
    assert opened.complaints == []


def test_a_plot_that_cant_be_drawn_says_so_in_its_place(open_page: Open, faulty: Written) -> None:
    path, result = faulty
    library = "var Plotly = {react() { throw new Error('no drawing here'); }, purge() {}};"
    opened = open_page(with_packed(path, "plotly", packed(library)))
    opened.page.get_by_text("This plot can't be drawn: no drawing here.").first.wait_for()
    opened.page.select_option("#choice", "0")
    assert opened.edge_name() == edge_label(result.outcome.judgements[0])
    assert opened.complaints == []


def test_without_scripts_the_verdict_and_the_values_can_be_read_and_no_control_is_dead(
    open_page: Open, faulty: Written
) -> None:
    path, result = faulty
    page = open_page(path, scripts=False, until="h1").page
    assert page.locator("h1").inner_text().startswith("divergent: first at ")
    assert "Plots need scripts" in page.locator("header").inner_text()
    for dead in ("#theme", "#metric", "#choice", "#plot-edges", "#status"):
        assert not page.locator(dead).is_visible()
    page.locator("#edges summary").click()
    assert page.locator("#edges tbody tr").count() == len(result.outcome.judgements)


def test_each_link_of_the_head_leads_to_its_part(open_page: Open, faulty: Written) -> None:
    opened = open_page(faulty[0])
    links = opened.page.locator("nav a")
    assert links.all_inner_texts() == [
        *("Edges", "Layers", "Model", "Output", "Positions", "Finding 1", "Run", "Coverage")
    ]
    for link in links.all():
        target = link.get_attribute("href")
        link.click()
        assert opened.page.url.endswith(target)
        box = opened.page.locator(target).bounding_box()
        assert -1 <= box["y"] < 900


def cells(opened: Opened, part: str) -> list[list[str]]:
    """The rows of the table of a figure, which is opened."""
    details = opened.page.locator(f"{part} details.values")
    assert not details.locator("table").is_visible()
    details.locator("summary").click()
    details.locator("table").wait_for()  # made by an event that comes after the click
    rows: list[list[str]] = details.locator("tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return rows


def test_tables_have_the_values_of_the_plots(open_page: Open, faulty: Written) -> None:
    path, result = faulty
    document = json.loads(json.dumps(result.to_json()))
    opened = open_page(path)
    head, *edges = cells(opened, "#edges")
    assert head == ["edge", "verdict", "error / band"]
    assert [verdict for _, verdict, _ in edges] == [
        edge["verdict"].replace("_", " ") for edge in document["edges"]
    ]
    for (_, _, error), edge in zip(edges, document["edges"], strict=True):
        assert edge["max_over_band"] is None or error == ratio(edge["max_over_band"])
    head, *layers = cells(opened, "#layers")
    assert head == ["layer", *LAYER_METRICS]
    assert [layer for layer, *_ in layers] == ["0", "1", "2", "3", "no layer"]
    first = first_of(result)[0]
    assert layers[2][1] == edges[first][2]
    head, *tokens = cells(opened, "#output")
    largest = max(float(kl) for _, *sequences in tokens for kl in sequences)
    assert number(largest) == number(document["distribution"]["kl"]["max"])
    head, *tokens = cells(opened, "#positions")
    assert head == ["token", "layer 0", "layer 1", "layer 2", "layer 3", "no layer"]
    assert [token for token, *_ in tokens] == [str(n) for n in range(128)]
    assert max(float(row[3]) for row in tokens) == float(layers[2][1])


def test_figures_of_an_edge_are_tables_which_are_made_when_they_are_opened(
    open_page: Open, faulty: Written
) -> None:
    path, result = faulty
    opened = open_page(path)
    profile = result.outcome.judgements[first_of(result)[0]].profile
    assert profile is not None
    assert opened.page.locator("#edge-figures table").count() == 0

    def table(name: str) -> list[list[str]]:
        return cells(opened, f'#edge-figures figure:has([data-figure="{name}"])')

    for line in profile.lines:
        head, *rows = table(f"along {line.axis}")
        assert head == [line.axis, "largest error / band", "rms error / band"]
        assert len(rows) == len(line.starts)
        assert max(float(row[1]) for row in rows) == pytest.approx(max(line.largest), rel=0.06)
    head, *bins = table("ulp")
    assert head == ["candidate - oracle, ulp", "elements"]
    assert [int(count) for _, count in bins] == _trimmed(profile.ulp_counts)
    head, *points = table("values")
    assert head[1:] == ["oracle", "candidate", "error / band"]
    assert points[0][0] == "outside"
    assert float(points[0][3]) == pytest.approx(max(profile.sample.error), rel=0.06)
    assert opened.complaints == []


def test_the_table_of_the_layers_is_of_the_metric_that_is_shown(open_page: Open, faulty: Written) -> None:
    path, result = faulty
    first, name = first_of(result)
    opened = open_page(path, at="#edge=0")
    opened.page.select_option("#metric", LAYER_METRIC)
    assert not opened.page.locator("#layers > details.values").is_visible()
    head, *rows = cells(opened, "#metric-values")
    assert head == ["layer, module", LAYER_METRIC, "worst edge"]
    assert any(row[0] == "layer 2, mlp.down_proj" and row[2] == name for row in rows)
    opened.page.locator(f'#metric-values a[href="#edge={first}"]').click()
    assert opened.edge_name() == name
    opened.page.select_option("#metric", "layers")
    assert opened.page.locator("#layers > details.values").is_visible()
    assert opened.page.locator("#metric-values *").count() == 0


def _trimmed(counts: Sequence[int]) -> list[int]:
    """Leave out what is empty at both ends alike."""
    shown = list(counts)
    while len(shown) > 3 and shown[0] == shown[-1] == 0:
        shown = shown[1:-1]
    return shown


def tab_to(opened: Opened, selector: str) -> None:
    """Press the tabulator key until an element has the focus, and see that it shows."""
    for _ in range(60):
        opened.page.keyboard.press("Tab")
        if opened.page.evaluate("selector => document.activeElement.matches(selector)", selector):
            assert opened.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
            return
    pytest.fail(f"60 times the tabulator key did not lead to {selector}")


def test_tables_and_edges_are_reached_by_keyboard_alone(open_page: Open, faulty: Written) -> None:
    path, result = faulty
    opened = open_page(path)
    tab_to(opened, "#edges summary")
    opened.page.keyboard.press("Enter")
    tab_to(opened, "#edges .scroll")
    opened.page.keyboard.press("ArrowDown")
    opened.page.wait_for_function("() => document.querySelector('#edges .scroll').scrollTop > 0")
    tab_to(opened, '#edges a[href="#edge=2"]')
    opened.page.keyboard.press("Enter")
    assert opened.edge_name() == edge_label(result.outcome.judgements[2])
    assert opened.page.evaluate("document.activeElement.id") == "edge-title"
    tab_to(opened, "#choice")
    tab_to(opened, "#next")
    opened.page.keyboard.press("Enter")
    assert opened.edge_name() == edge_label(result.outcome.judgements[3])
    tab_to(opened, "#output summary")
    opened.page.keyboard.press("Enter")
    opened.page.locator("#output details.values table").wait_for()
    assert opened.complaints == []


def test_a_cell_of_the_table_of_layers_leads_to_its_worst_edge(open_page: Open, faulty: Written) -> None:
    path, result = faulty
    first, name = first_of(result)
    opened = open_page(path, at="#edge=0")
    opened.page.locator("#layers summary").click()
    opened.page.locator(f'#layers a[href="#edge={first}"]').first.click()
    assert opened.edge_name() == name
    opened.page.evaluate("window.scrollTo(0, 0)")
    opened.page.locator(
        f'#layers a[href="#edge={first}"]'
    ).first.click()  # again: the panel is sought out again
    assert 0 <= opened.page.locator("#edge").bounding_box()["y"] < 900


def test_what_is_shown_is_what_the_json_says(open_page: Open, faulty: Written) -> None:
    path, result = faulty
    opened = open_page(path)
    document = json.loads(json.dumps(result.to_json()))
    text = opened.page.locator("#coverage").inner_text()
    for check, n in document["checked"].items():
        if isinstance(n, int) and n:
            assert f"{check} {n}" in text
    assert opened.page.locator("article").count() == len(document["findings"])
    assert document["run"]["command"] in opened.page.locator("#run").inner_text()
