"""How a screen is drawn in a terminal."""

import pytest

from validator.report.screen import Column, Kind, Row, Screen, Section, Table, plain_text

TABLE = Table(
    title="layers",
    columns=(
        Column(name="layer", kind=Kind.NAME),
        Column(name="rms", kind=Kind.NUMBER),
        Column(name="more", least_width=100),
    ),
    rows=(("a", "1.5", "x"), ("bcd", "10", "y")),
)


def screen(*sections: Section | Table) -> Screen:
    return Screen(headline="headline", style="bold", sections=sections)


def test_a_table_has_a_title_names_on_the_left_and_numbers_on_the_right() -> None:
    assert plain_text(screen(TABLE)).split("\n") == [
        "headline",
        "",
        "layers",
        " layer  rms",
        " a      1.5",
        " bcd     10",
    ]


@pytest.mark.parametrize(("width", "is_shown"), [(99, False), (100, True)])
def test_a_column_is_shown_where_there_is_room(width: int, is_shown: bool) -> None:
    assert ("more" in plain_text(screen(TABLE), width)) == is_shown


def test_sections_without_rows_are_not_shown() -> None:
    empty = Table(title="nothing", columns=(Column(name="x"),), rows=())
    assert plain_text(screen(Section(title="none", rows=()), empty)) == "headline"


def test_cells_are_no_markup_and_control_characters_are_spelled_out() -> None:
    table = Table(columns=(Column(name="x"),), rows=(("[bold]\x1b[2J",),))
    assert plain_text(screen(table)).endswith(" [bold]\\x1b[2J")


def test_what_is_folded_elsewhere_is_open_in_a_terminal() -> None:
    folded = Section(title="first", rows=(Row(label="what", text="text"),), folded=True)
    assert plain_text(screen(folded)).endswith("first\n  what        text")


def test_in_a_notebook_text_is_returned_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """There rich's consoles show what they are given, whatever file they have."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda *shown: pytest.fail("it was shown"))
    assert plain_text(screen(TABLE)).startswith("headline\n\nlayers\n")


def test_a_row_of_another_width_than_the_head_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a row of 2 cells for 1 columns: \('a', 'b'\)"):
        Table(columns=(Column(name="x"),), rows=(("a", "b"),))


NAMES = ("candidate.parallelism.world_size", "candidate.inputs.input_ids")


def drawn(width: int, *columns: Column, rows: tuple[tuple[str, ...], ...]) -> list[str]:
    return plain_text(screen(Table(columns=columns, rows=rows)), width).splitlines()[2:]


@pytest.mark.parametrize("width", [56, 80, 120, 200])
def test_names_stay_whole_beside_long_texts(width: int) -> None:
    columns = (Column(name="name", kind=Kind.NAME), Column(name="a"), Column(name="b"))
    lines = drawn(width, *columns, rows=tuple((name, "1" * 64, "2" * 64) for name in NAMES))
    assert max(map(len, lines)) <= width
    assert {line.split()[0] for line in lines} >= set(NAMES)
    assert sum(line.count("1") for line in lines) == 64 * len(NAMES)


def test_a_name_of_several_words_is_broken_between_them() -> None:
    columns = (Column(name="edge", kind=Kind.NAME), Column(name="error"))
    lines = drawn(
        60, *columns, rows=(("model.layers.2.mlp, into gate_proj [hidden_states] (wiring)", "0.31"),)
    )
    words = {word for line in lines for word in line.split()}
    assert words == {
        *("edge", "error", "model.layers.2.mlp,", "into", "gate_proj", "[hidden_states]", "(wiring)", "0.31")
    }


def test_names_that_leave_no_room_are_broken() -> None:
    columns = (Column(name="name", kind=Kind.NAME), Column(name="a"))
    lines = drawn(40, *columns, rows=(("n" * 39, "value"),))
    assert max(map(len, lines)) <= 40
    assert sum(line.count("n") for line in lines[1:]) == 39
    assert "value" in "".join(lines).replace(" ", "")


def test_a_column_of_no_names_takes_no_room() -> None:
    columns = (Column(name="", kind=Kind.NAME), Column(name="a"))
    lines = drawn(40, *columns, rows=(("", "1" * 64),))
    assert sum(line.count("1") for line in lines) == 64
    assert max(map(len, lines)) <= 40
