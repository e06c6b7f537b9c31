"""The page as a document; what a browser makes of it is in `tests/browser`."""

import base64
import gzip
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from tests.report.conftest import EPSILON, finding
from validator.checks.findings import Outcome, Unchecked
from validator.checks.profiles import OutputProfile
from validator.report.page.data import page_data
from validator.report.page.packing import part
from validator.report.page.rendering import SearchPath, to_html
from validator.report.palette import PALETTE, VERMILLION

HOSTILE = "<script>alert(1)</script>\"'&\u2028\u202e🦙 </textarea>{{ 7 * 7 }}"


class Document(HTMLParser):
    """Elements with their attributes, and the text outside of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._inside: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside.append(tag)

    def handle_data(self, data: str) -> None:
        if self._inside[-1:] == ["script"]:
            self.scripts.append(data)
        elif self._inside[-1:] != ["style"]:
            self.text += data

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def unpacked(page: str, name: str) -> str:
    found = re.search(rf'id="packed-{name}">([A-Za-z0-9+/=]*)</script>', page)
    assert found is not None
    return gzip.decompress(base64.b64decode(found[1])).decode()


def hostile(outcome: Outcome) -> Outcome:
    """The same with names that try everything wherever a user can choose one."""
    module = f"model.layers.2.{HOSTILE}{'x' * 300}"
    found = replace(
        outcome.findings[0],
        module=module,
        candidate_module=HOSTILE,
        summary=HOSTILE,
        path=HOSTILE,
        into=HOSTILE,
        op=HOSTILE,
    )
    return replace(
        outcome,
        findings=(found,),
        judgements=tuple(
            replace(j, module=module, candidate_module=HOSTILE, path=HOSTILE, into=HOSTILE, note=HOSTILE)
            for j in outcome.judgements
        ),
        run={
            "command": HOSTILE,
            "reference": {HOSTILE: HOSTILE},
            "candidate": {"source": HOSTILE, "seeds": [HOSTILE]},
        },
        unchecked=(Unchecked(module=HOSTILE, why=HOSTILE),),
        unobservable=(replace(EPSILON, module=HOSTILE, what=HOSTILE, why=HOSTILE, propose=HOSTILE),),
        notes=(HOSTILE,),
        why_inconclusive=(HOSTILE,),
    )


@pytest.mark.parametrize("name", ["aligned", "divergent", "undeclared", "inconclusive"])
def test_the_verdict_is_the_first_heading(name: str, request: pytest.FixtureRequest) -> None:
    outcome = request.getfixturevalue(name)
    page = to_html(outcome)
    (heading,) = re.findall(r"<h1[^>]*>(.*?)</h1>", page, re.DOTALL)
    assert heading.startswith(outcome.verdict.replace("_", " ") + ":")


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("inconclusive", "Why it is inconclusive"),
        ("divergent", "Why an absence of findings would prove nothing"),
        ("undeclared", "Why an absence of findings would prove nothing"),
    ],
)
def test_reasons_are_called_what_they_are(name: str, title: str, request: pytest.FixtureRequest) -> None:
    outcome = replace(request.getfixturevalue(name), why_inconclusive=("no check judged lm_head",))
    page = to_html(outcome)
    heading = re.search(r'<h2 id="why-title">(.*?)</h2>', page)
    assert heading is not None
    assert heading.group(1) == title
    assert "<li>no check judged lm_head</li>" in page
    assert "why-title" not in to_html(replace(outcome, why_inconclusive=()))


def test_modules_of_the_tree_say_how_many_edges_they_have(divergent: Outcome) -> None:
    page = to_html(divergent)
    assert '<summary>(the model itself) <span class="badge divergent">divergent</span>' in page
    assert '<span class="quiet">12 edges</span></summary>' in page
    assert '<span class="quiet">1 edge</span></summary>' in page


def test_every_finding_has_an_anchor_and_a_link_to_it(divergent: Outcome) -> None:
    document = Document(to_html(divergent))
    anchors = [a["id"] for a in document.all("article")]
    assert anchors == ["finding-1", "finding-2"]
    links = {a["href"] for a in document.all("a")}
    assert {f"#{anchor}" for anchor in anchors} <= links
    assert "first divergence (function check" in document.text


def test_all_links_lead_to_places_in_the_page(divergent: Outcome) -> None:
    document = Document(to_html(divergent))
    ids = {attributes.get("id") for _, attributes in document.elements}
    links = {a["href"] for a in document.all("a")} - {
        f"#edge={n}" for n in range(12)
    }  # which a script follows
    assert links <= {f"#{name}" for name in ids}


def test_nothing_is_asked_of_a_network(divergent: Outcome) -> None:
    document = Document(to_html(divergent))
    for _, attributes in document.elements:
        assert "src" not in attributes
        assert not (attributes.get("href") or "#").startswith(("http", "//"))
    (policy,) = (a["content"] for a in document.all("meta") if a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; base-uri 'none'; form-action 'none';")
    assert "http" not in policy


def test_only_our_scripts_may_run(divergent: Outcome) -> None:
    page = to_html(divergent)
    document = Document(page)
    (nonce,) = (a["nonce"] for a in document.all("script") if "nonce" in a)
    assert f"script-src 'nonce-{nonce}'" in page
    assert [a.get("type") for a in document.all("script")] == ["text/plain", "text/plain", None]
    assert nonce not in to_html(divergent)  # another page, another number


def test_names_with_html_in_them_are_text(divergent: Outcome) -> None:
    page = to_html(hostile(divergent))
    document = Document(page)
    assert len(document.all("script")) == 3
    assert not any("alert" in script for script in document.scripts)
    assert "alert(1)" in document.text
    assert "{{ 7 * 7 }}" in document.text
    assert "\u202e" not in page  # would turn the text behind it
    assert "\u2028" not in page
    data = unpacked(page, "data")
    assert "\u202e" not in json.dumps(json.loads(data), ensure_ascii=False)
    assert json.loads(data)["edges"][0]["name"].startswith("model.layers.2.<script>")
    assert not any("<script" in json.dumps(figure) for figure in json.loads(data)["figures"].values())


def test_the_page_holds_its_data_and_its_library(divergent: Outcome) -> None:
    page = to_html(divergent)
    assert json.loads(unpacked(page, "data")) == json.loads(json.dumps(page_data(divergent)))
    assert "plotly.js" in unpacked(page, "plotly")[:200]
    assert len(page) < 2_300_000


def test_values_of_the_plots_are_in_the_page_without_scripts(divergent: Outcome) -> None:
    document = Document(to_html(divergent))
    links = [a["href"] for a in document.all("a")]
    assert links.count("#edge=7") >= 1
    assert {f"#edge={n}" for n in range(12)} <= set(links)
    assert "As a table: Error over the band, edge by edge." in document.text


def test_what_can_be_scrolled_can_be_scrolled_by_keyboard_and_has_a_name(divergent: Outcome) -> None:
    tables = [a for a in Document(to_html(divergent)).all("div") if a.get("class") == "scroll"]
    assert len({a["aria-label"] for a in tables}) == len(tables) >= 3
    assert {(a["tabindex"], a["role"]) for a in tables} == {("0", "region")}


def test_headings_leave_out_no_level(divergent: Outcome) -> None:
    levels = [int(tag[1]) for tag, _ in Document(to_html(divergent)).elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(below - above <= 1 for above, below in pairwise(levels))


def test_verdicts_have_the_colours_of_the_plots(divergent: Outcome) -> None:
    assert f".divergent {{ --verdict: {VERMILLION}; }}" in to_html(divergent)
    assert not any(colour.lower() in part("style.css").lower() for colour in PALETTE)


def luminance(colour: str) -> float:
    """Relative luminance of `#rrggbb` (WCAG 2.2)."""
    parts = (int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5))
    red, green, blue = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_stands_out_from_its_ground_and_so_does_the_mark_of_the_focus(theme: int) -> None:
    found = re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\);", part("style.css"))
    colours = {name: pair[theme] for name, *pair in found}
    for ground in ("paper", "panel"):
        for text in ("ink", "quiet", "link", "outside"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)  # WCAG 2.2 AA, 1.4.3
    assert contrast(colours["ink"], colours["line"]) >= 4.5  # of the edge that is shown, in the tree


def test_what_was_unchecked_and_unobservable_is_said(inconclusive: Outcome, aligned: Outcome) -> None:
    text = Document(to_html(inconclusive)).text
    assert "model.layers.0.attn has parameters and was judged by no check" in text
    assert "model.layers.4.attn" in text
    assert "the candidate alone has model.extra" in text
    text = Document(to_html(aligned)).text
    assert "epsilon 1e-06 x10" in text
    assert "model.norm, model.layers.0.norm" in text


def test_a_search_shows_its_path(divergent: Outcome) -> None:
    search = SearchPath(
        columns=("step", "runs"), rows=(("boundaries", "1"), (HOSTILE, "2")), lines=("cost: 1",)
    )
    text = Document(to_html(divergent, search=search)).text
    assert "boundaries" in text
    assert "cost: 1" in text
    assert "alert(1)" in text
    assert 'id="search"' not in to_html(divergent)


def test_without_profiles_the_page_says_how_to_get_them(divergent: Outcome) -> None:
    assert "profiles=True" in Document(to_html(divergent)).text


def test_a_model_without_logits_has_no_output_section(inconclusive: Outcome) -> None:
    assert 'id="output"' not in to_html(inconclusive)


@pytest.mark.parametrize(("floor", "is_drawn"), [(6e-4, True), (0.0, False)])
def test_a_line_of_noise_is_spoken_of_where_one_is_drawn(
    floor: float, is_drawn: bool, aligned: Outcome
) -> None:
    figures = {**(aligned.distribution or {}), "kl_noise_floor": floor}
    output = OutputProfile(places=((0, 0),), kl=(1e-4,), worst=())
    page = to_html(replace(aligned, distribution=figures, output=output))
    assert ("The dashed line" in page) is is_drawn


def test_figures_of_the_output_that_are_missing_are_left_out(aligned: Outcome) -> None:
    figures = {**(aligned.distribution or {}), "kl_noise_floor": None}
    output = OutputProfile(places=((0, 0),), kl=(1e-4,), worst=())
    text = Document(to_html(replace(aligned, distribution=figures, output=output))).text
    assert "same token at 99.8%" in text
    assert "noise like that of the logits" not in text
    text = Document(to_html(replace(aligned, distribution={"kl": {"mean": 1.0, "max": 2.0}}))).text
    assert "ref to cand mean 1.0, max 2.0" in text


def test_a_module_in_hundreds_of_others_is_shown_by_the_rest_of_its_name(divergent: Outcome) -> None:
    deep = replace(divergent.judgements[1], module=".".join(f"m{n}" for n in range(300)))
    document = Document(to_html(replace(divergent, judgements=(deep, *divergent.judgements[2:]))))
    assert "m27" in document.text
    assert ".".join(f"m{n}" for n in range(29, 300)) in document.text
    assert sum(a.get("data-edge") == "0" for a in document.all("button")) == 1


def test_a_finding_that_is_no_edge_of_the_run_is_shown_all_the_same(divergent: Outcome) -> None:
    outcome = replace(divergent, findings=(finding("elsewhere"),))
    assert "elsewhere: first divergence" in Document(to_html(outcome)).text
