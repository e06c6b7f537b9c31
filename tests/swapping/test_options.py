import os
from pathlib import Path

import pytest

from validator.errors import UsageError
from validator.swapping.options import environment, read_switches, setting_of

FILE = """
[compile]
argument = "compile"
off = false
on = true

["fast math"]
environment = "PORT_FAST_MATH"
on = "1"

[threads]
environment = "PORT_THREADS"
off = 1
on = true
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "options.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_run_gets_the_values_of_the_switches_that_are_on(tmp_path: Path) -> None:
    switches = read_switches(written(tmp_path, FILE))
    off, on = setting_of(switches, ()), setting_of(switches, ["fast math", "compile", "threads"])
    assert off.arguments == {"compile": False}
    assert off.variables == {"PORT_FAST_MATH": None, "PORT_THREADS": "1"}
    assert on.arguments == {"compile": True}
    assert on.variables == {"PORT_FAST_MATH": "1", "PORT_THREADS": "1"}


def test_an_argument_without_a_value_is_not_given(tmp_path: Path) -> None:
    switches = read_switches(written(tmp_path, '[kernel]\nargument = "kernel"\non = "flash"'))
    assert setting_of(switches, ()).arguments == {}
    assert setting_of(switches, ["kernel"]).arguments == {"kernel": "flash"}


def test_the_environment_is_as_it_was_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT_A", "before")
    monkeypatch.delenv("PORT_B", raising=False)
    with environment({"PORT_A": None, "PORT_B": "1"}):
        assert ("PORT_A" in os.environ, os.environ["PORT_B"]) == (False, "1")
    assert (os.environ["PORT_A"], "PORT_B" in os.environ) == ("before", False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[compile", "is no TOML"),
        ("", "names no switch"),
        ("compile = true", "compile = True stands outside of any switch"),
        ('[a]\nargument = "x"\nvalue = 1', "has 'value'; a switch has environment, argument, off, on"),
        ("[a]\non = 1", "has neither; give either"),
        ('[a]\nargument = "x"\nenvironment = "X"\non = 1', "environment = 'X' and argument = 'x'"),
        ("[a]\nargument = 3\non = 1", "argument = 3"),
        ('[a]\nargument = "x"\non = [1]', "has on = [1]; give a string, a number or a boolean"),
        ('[a]\nargument = "x"\non = 1\noff = 1', "is 1 both on and off"),
        ('[a]\nargument = "x"', "is not given both on and off"),
        ('[a]\nenvironment = "X=Y"\non = 1', "'X=Y' is no name of an environment variable"),
        ('[a]\nargument = "x"\non = 1\n[b]\nargument = "x"\non = 2', "[a] and [b] both set the argument 'x'"),
    ],
)
def test_a_file_that_is_not_legal_is_refused_with_what_to_write(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as refused:
        read_switches(written(tmp_path, text))
    assert message in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing\.toml' can't be read: No such file"):
        read_switches(tmp_path / "nothing.toml")
