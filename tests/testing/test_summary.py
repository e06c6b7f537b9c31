import io

from rich.console import Console

from validator.testing.answers import Answer, Suite, Summary
from validator.testing.records import Ending, Figure
from validator.testing.settings import Settings
from validator.testing.summary import summary_markdown, summary_screen

ANSWERS = (
    Answer(
        id="a",
        asked="Texts are as likely as the reference finds them.",
        ending=Ending.PASSED,
        figures=(Figure(name="perplexity", value=3.21456, unit="nat", limit=3.4),),
    ),
    Answer(
        id="b",
        asked="Every layer computes what the reference computes.",
        ending=Ending.FAILED,
        message="divergent: first at model.layers.2.mlp, rank 1\nmore",
        module="model.layers.2.mlp",
        rank=1,
    ),
    Answer(id="c", asked="[red]Odd|names\x1b[0m <b>", ending=Ending.NOT_APPLICABLE, message="no cache"),
)


def summary(answers: tuple[Answer, ...] = ANSWERS) -> Summary:
    return Summary(
        settings=Settings(target="port.py", nproc=2),
        suites=(Suite(name="alignment", path="s.py", answers=answers),),
    )


def screen(run: Summary, width: int = 120) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(summary_screen(run))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def test_the_screen_has_a_line_a_test_and_the_verdict_at_its_end() -> None:
    lines = screen(summary()).splitlines()
    assert lines[0] == "port.py, nproc 2"
    rows = [line.split() for line in lines]
    assert ["asked", "result", "figures"] in rows
    (passed,) = [line for line in lines if " passed " in line]
    assert passed.startswith("Texts are as likely as the reference finds them.")
    assert passed.endswith("perplexity 3.215 nat (limit 3.4 nat)")
    (failed,) = [line for line in lines if "  failed  " in line]
    assert failed.endswith("divergent: first at model.layers.2.mlp, rank 1")
    assert " ".join(lines[-2:]) == (
        "The port does not hold: 1 of 2 tests failed (1 not applicable), first 'Every layer computes what "
        "the reference computes' at model.layers.2.mlp, rank 1."
    )


def test_names_are_shown_and_never_obeyed() -> None:
    text = screen(summary())
    assert "[red]Odd|names\\x1b[0m <b>" in text
    assert "\x1b" not in text
    markdown = summary_markdown(summary())
    assert "| \\[red\\]Odd\\|names\\\\x1b\\[0m &lt;b&gt; | not applicable | no cache |" in markdown


def test_markdown_has_a_row_a_test_under_the_verdict() -> None:
    lines = summary_markdown(summary()).splitlines()
    assert lines[0].startswith("## The port does not hold: 1 of 2 tests failed")
    assert "### alignment" in lines
    assert (
        "| Texts are as likely as the reference finds them. | passed | perplexity 3.215 nat (limit 3.4 nat) |"
        in lines
    )


def test_an_expected_failure_is_a_row_of_its_own_and_never_not_applicable() -> None:
    known = Answer(
        id="d", asked="Is the cache right?", ending=Ending.EXPECTED_FAILURE, message="wrong keys", compared=1
    )
    run = summary((ANSWERS[0], known))
    (row,) = [line for line in screen(run).splitlines() if line.startswith("Is the cache right?")]
    assert row.split("  ")[-1] == "wrong keys"
    assert " expected failure " in row
    assert "| Is the cache right? | expected failure | wrong keys |" in summary_markdown(run)


def test_a_suite_of_no_test_says_so() -> None:
    assert "no test ran" in screen(summary(()))


def test_a_narrow_terminal_loses_nothing() -> None:
    words = set(screen(summary(), width=50).split())
    assert {"perplexity", "3.215", "model.layers.2.mlp,"} <= words
