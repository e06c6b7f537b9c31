"""The script of a notebook's plot, with a stand-in for plotly: what it does when things fail."""

from collections.abc import Iterator
from typing import Any

import pytest
from plotly.offline import get_plotlyjs

from tests.browser.conftest import BUTTONS, contrasts_of_buttons, watched
from validator.report.notebook.plot_widget import CODE

# Notes what it is asked to draw; a figure of no data can't be drawn.
LIBRARY = """
window.Plotly = { mine: true };
module.exports = {
  react: async (place, data, layout) => {
    if (!data.length) throw new Error("no data.");
    place.on = () => {};
    window.drawn.push({ version: "VERSION", data, ink: layout.font.color });
  },
  purge: () => {},
  Plots: { resize: () => {} },
};
"""
PAGE = """
window.drawn = [];
window.plot = async (version, source, isHidden, data = ["first"]) => {
  const holder = { get: (name) => ({ version, source })[name] };
  const state = { library: "IPY_MODEL_1", figure: { data, layout: {} } };
  const told = new Set();
  const model = {
    get: (name) => state[name],
    on: (_, listener) => told.add(listener),
    off: (_, listener) => told.delete(listener),
    send: () => {},
    widget_manager: { get_model: async () => holder },
  };
  const el = document.body.appendChild(document.createElement("div"));
  el.hidden = isHidden;
  const close = await script.render({ model, el });
  window.set = (data) => {
    state.figure = { data, layout: {} };
    told.forEach((listener) => listener());
  };
  window.last = el;
  window.close = close;
};
"""


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context()
    context.set_default_timeout(60_000)
    opened = watched(context)
    opened.page.goto("about:blank")
    opened.page.evaluate(
        """async ([code, setup]) => {
          const address = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
          window.script = (await import(address)).default;
          Function(setup)();
        }""",
        [CODE, PAGE],
    )
    yield opened.page
    context.close()
    assert [said for said in opened.complaints if not said.startswith(("log: ", "info: "))] == []


def plot(page: Any, version: str = "1", source: str = LIBRARY, *, is_hidden: bool = False) -> None:
    page.evaluate("given => plot(...given)", [version, source.replace("VERSION", version), is_hidden])


def wait_for(page: Any, drawn: list[tuple[str, list[str]]]) -> None:
    page.wait_for_function(
        "expected => JSON.stringify(drawn.map((d) => [d.version, d.data])) === JSON.stringify(expected)",
        arg=[list(one) for one in drawn],
    )


def frame_passes(page: Any) -> None:
    """Wait until the page was laid out anew, and those who watch sizes were told."""
    page.evaluate("() => new Promise(told => requestAnimationFrame(() => setTimeout(told)))")


def test_a_library_that_does_not_load_is_told_of_and_the_next_plot_tries_again(page: Any) -> None:
    plot(page, source="throw new Error('cut short.');")
    assert page.evaluate("last.textContent") == (
        "This plot can't be drawn: cut short. Running its cell again may help."
    )
    plot(page)
    wait_for(page, [("1", ["first"])])
    assert page.evaluate("last.textContent") == ""


def test_a_page_loads_each_version_once_and_keeps_its_own_plotly(page: Any) -> None:
    page.evaluate("() => { window.Plotly = 'of the page'; }")
    plot(page)
    plot(page, source="throw new Error('this version is loaded already');")
    wait_for(page, [("1", ["first"])] * 2)
    plot(page, "2")
    wait_for(page, [("1", ["first"])] * 2 + [("2", ["first"])])
    assert page.evaluate("Plotly") == "of the page"


def test_a_figure_that_can_not_be_drawn_is_told_of_and_the_next_one_is_drawn(page: Any) -> None:
    plot(page)
    wait_for(page, [("1", ["first"])])
    page.evaluate("set([])")
    page.get_by_text("This plot can't be drawn: no data.", exact=False).wait_for()
    page.evaluate("set(['next'])")
    wait_for(page, [("1", ["first"]), ("1", ["next"])])
    page.wait_for_function("last.textContent === ''")


def test_what_changed_while_it_was_hidden_is_drawn_when_it_is_seen(page: Any) -> None:
    plot(page)
    wait_for(page, [("1", ["first"])])
    page.evaluate("() => { last.hidden = true; set(['next']); }")
    frame_passes(page)
    assert page.evaluate("drawn.length") == 1
    page.evaluate("() => { last.hidden = false; }")
    wait_for(page, [("1", ["first"]), ("1", ["next"])])


def test_what_changed_while_it_was_hidden_for_less_than_a_frame_is_drawn(page: Any) -> None:
    plot(page)
    wait_for(page, [("1", ["first"])])
    frame_passes(page)
    page.evaluate("() => { last.hidden = true; set(['next']); last.hidden = false; }")
    wait_for(page, [("1", ["first"]), ("1", ["next"])])


def test_a_plot_that_is_hidden_waits_and_asks_for_nothing_meanwhile(page: Any) -> None:
    page.evaluate(
        """() => {
          window.sizes = 0;
          window.ResizeObserver = class extends ResizeObserver {
            constructor(told) {
              super(() => { window.sizes += 1; told(); });
            }
          };
        }"""
    )
    plot(page)
    wait_for(page, [("1", ["first"])])
    frame_passes(page)
    page.evaluate("() => { sizes = 0; last.hidden = true; set(['next']); }")
    for _ in range(5):
        frame_passes(page)
    assert 1 <= page.evaluate("sizes") <= 2
    page.evaluate("() => { last.hidden = false; }")
    wait_for(page, [("1", ["first"]), ("1", ["next"])])


def test_a_plot_that_is_hidden_at_first_is_drawn_when_it_is_seen(page: Any) -> None:
    plot(page, is_hidden=True)
    frame_passes(page)
    assert page.evaluate("drawn.length") == 0
    page.evaluate("() => { last.hidden = false; }")
    wait_for(page, [("1", ["first"])])


def test_another_theme_is_taken_on(page: Any) -> None:
    plot(page)
    wait_for(page, [("1", ["first"])])
    page.evaluate(
        "() => { document.body.style.color = 'rgb(1, 2, 3)'; document.body.dataset.jpThemeLight = 'false'; }"
    )
    wait_for(page, [("1", ["first"])] * 2)
    assert page.evaluate("drawn[1].ink") == "rgb(1, 2, 3)"


def test_a_plot_that_was_removed_draws_no_more(page: Any) -> None:
    plot(page)
    wait_for(page, [("1", ["first"])])
    page.evaluate("() => { close(); set(['next']); document.body.dataset.jpThemeLight = 'true'; }")
    plot(page, "2")  # after which all that was to be told is told
    wait_for(page, [("1", ["first"]), ("2", ["first"])])


@pytest.mark.parametrize(
    ("ground", "ink"),
    [("rgb(255, 255, 255)", "rgba(0, 0, 0, 0.87)"), ("rgb(17, 17, 17)", "rgb(255, 255, 255)")],
    ids=["light", "dark"],
)
def test_the_buttons_of_a_plot_can_be_read_and_leave_the_keyboard_and_the_network_alone(
    page: Any, ground: str, ink: str
) -> None:
    page.evaluate(
        "([ground, ink]) => Object.assign(document.body.style, { background: ground, color: ink })",
        [ground, ink],
    )
    page.evaluate("source => plot('real', source, false, [{ y: [1, 2] }])", get_plotlyjs())
    page.locator(".js-plotly-plot .modebar-btn").first.wait_for(state="attached")
    frame_passes(page)
    names = page.locator(".modebar-btn").evaluate_all("all => all.map(one => one.dataset.title)")
    assert names == BUTTONS
    assert page.evaluate("[...last.querySelectorAll('*')].filter(one => one.tabIndex >= 0).length") == 0
    assert min(contrasts_of_buttons(page, ".js-plotly-plot")) >= 3
    page.locator(".js-plotly-plot").hover()
    with page.expect_download() as download:
        page.locator(".modebar-btn").first.click()
    assert download.value.suggested_filename.endswith(".png")
    for button in page.locator(".modebar-btn").all()[1:]:
        button.click()
    frame_passes(page)
