"""The plugin in a real pytest, in a process of its own."""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.small_port import write_port
from tests.testing.test_validation import FAULTY

pytest_plugins = ["pytester"]

PORTS = '''
import pytest


def test_healthy(validation):
    """Every edge of the healthy port is aligned."""
    validation.check()
    validation.figure("perplexity", 3.25, unit="nat", limit=3.5)


@pytest.mark.validator(target="faulty.py")
def test_faulty(validation):
    """Every edge of the faulty port is aligned."""
    here = "a line of this file"
    validation.check()


@pytest.mark.validator(target="faulty.py")
def test_own_marker_goes_before_the_command_line(target, validation):
    validation.require(target.source == validation.settings.target == "faulty.py", "another target")


def test_loaded_once(target, request):
    assert request.getfixturevalue("target") is target
    assert target.inputs()["input_ids"].shape == (2, 32)
'''

LIGHT = """
import sys

import pytest

from validator.errors import TargetError


def test_passes(validation):
    validation.figure("slope", 0.125, unit="B/token", limit=1)
    validation.figure("steps", 100)
    validation.require(0.125 < 1, "the cache grows")


def test_only_measures(validation):
    validation.figure("slope", float("nan"))


@pytest.mark.xfail(reason="issue 12")
def test_known(validation):
    validation.fail("The cache holds the wrong keys.", module="model.layers.1")


@pytest.mark.xfail
def test_known_to_crash(validation):
    raise RuntimeError("planted")


@pytest.mark.xfail(reason="issue 13", run=False)
def test_known_and_not_run(validation): ...


def test_fails(validation):
    validation.require(1 > 2, "The cache grows.", module="model.layers.1", rank=3, evidence={"slope": 2.5})


def test_undecided(validation):
    validation.inconclusive("The control did not fail.")


def test_not_applicable(validation):
    validation.not_applicable("the port has no cache")


def test_mistake(validation):
    raise TargetError("candidate() fails: out of memory")


def test_bug(validation):
    {}["planted"]


def test_assertion(validation):
    assert 1 > 2


def test_control(validation):
    with pytest.raises(pytest.fail.Exception):
        validation.fail("planted")
    assert 2 > 3


@pytest.fixture
def broken_later(validation):
    yield
    raise TargetError("it can't be ended")


def test_broken_when_taken_down(broken_later, validation):
    validation.require(True, "holds")


def test_looks_at_nothing(validation):
    pass


def test_not_ours():
    assert 1 > 2


def test_nothing_heavy_was_needed():
    assert not {"torch", "numpy", "pandas", "h5py"} & set(sys.modules)
"""

OURS_AND_NOT = """
def test_not_ours(): ...


def test_ours(validation):
    validation.require(True, "holds")
"""

SECTION = """\
no target
test_light.py::test_assertion: assert 1 > 2
test_light.py::test_broken_when_taken_down: passed
test_light.py::test_broken_when_taken_down: could not run: it can't be ended
test_light.py::test_bug: could not run: KeyError: 'planted'
test_light.py::test_control: assert 2 > 3
test_light.py::test_fails: The cache grows.
test_light.py::test_known: expected failure: issue 12: The cache holds the wrong
  keys.
test_light.py::test_known_to_crash: expected failure: RuntimeError: planted
test_light.py::test_looks_at_nothing: could not run: it passed, but compared
  nothing: call check(), baseline(), assert_aligned() or require() of
  `validation`; a figure alone judges nothing
test_light.py::test_mistake: could not run: candidate() fails: out of memory
test_light.py::test_not_applicable: not applicable: the port has no cache
test_light.py::test_only_measures: could not run: it passed, but compared
  nothing: call check(), baseline(), assert_aligned() or require() of
  `validation`; a figure alone judges nothing
  slope nan
test_light.py::test_passes: passed
  slope 0.125 B/token (limit 1 B/token), steps 100
test_light.py::test_undecided: inconclusive: The control did not fail.
""".splitlines()


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    environment = {**os.environ, "COLUMNS": "80"}
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        environment.pop(name, None)
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)


def section(out: str, title: str) -> list[str]:
    """Return the lines under a title of pytest's, up to the next one."""
    lines = out.splitlines()
    start = next(i for i, line in enumerate(lines) if re.fullmatch(rf"[=_]+ {title} [=_]+", line))
    end = next(i for i, line in enumerate(lines[start + 1 :]) if re.match(r"[=_-]{3,}", line))
    return lines[start + 1 : start + 1 + end]


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder in which a healthy and a faulty port were tested, and what pytest printed."""
    folder = tmp_path_factory.mktemp("ports")
    write_port(folder)
    write_port(folder, FAULTY, "faulty.py")
    (folder / "pyproject.toml").write_text('[tool.validator]\ntarget = "nothing.py"\nnproc = 7\n')
    (folder / "test_ports.py").write_text(PORTS)
    options = ["--validator-target=port.py", "--validator-nproc=1", "--validator-reports=out"]
    done = run_pytest(folder, *options, "--junit-xml=j.xml", "--strict-markers")
    assert done.returncode == 1, done.stdout + done.stderr
    return folder, done.stdout


def test_only_the_faulty_port_fails_and_options_go_before_the_config(ports: tuple[Path, str]) -> None:
    assert "1 failed, 3 passed" in ports[1]


def test_a_failure_is_the_finding_without_a_traceback_on_one_screen(ports: tuple[Path, str]) -> None:
    shown = section(ports[1], "test_faulty")
    assert shown[0].startswith("divergent: first at (the model itself), into head")
    assert any(line.startswith("  worst ") or line.startswith("  gain ") for line in shown)
    assert len(shown) <= 24
    assert max(map(len, shown)) <= 80
    for word in ("Traceback", "a line of this file", "test_ports.py", ">   ", "E   "):
        assert word not in "\n".join(shown)


def test_the_run_has_one_section_of_ours(ports: tuple[Path, str]) -> None:
    assert len(re.findall(r"^=+ validator =+$", ports[1], re.MULTILINE)) == 1
    text = " ".join(line.strip() for line in section(ports[1], "validator"))
    assert "test_ports.py::test_healthy: passed perplexity 3.25 nat (limit 3.5 nat)" in text
    assert "test_ports.py::test_faulty: divergent: first at (the model itself), into head" in text


def test_the_junit_file_has_verdicts_and_figures_as_properties(ports: tuple[Path, str]) -> None:
    cases = {case.get("name"): case for case in ElementTree.parse(ports[0] / "j.xml").iter("testcase")}
    found = {
        name: {p.get("name"): p.get("value") for p in case.iter("property")} for name, case in cases.items()
    }
    assert found["test_healthy"] == {
        "validator.ending": "passed",
        "validator.verdict": "aligned",
        "validator.perplexity": "3.25",
    }
    assert found["test_faulty"] == {
        "validator.ending": "failed",
        "validator.verdict": "divergent",
        "validator.module": "",
    }
    (failure,) = cases["test_faulty"].iter("failure")
    assert (failure.text or "").startswith("divergent: first at ")


def test_reports_are_written_as_json(ports: tuple[Path, str]) -> None:
    names = sorted(path.name.rpartition("-")[0] for path in (ports[0] / "out").iterdir())
    assert names == ["test-ports-test-faulty", "test-ports-test-healthy"]


@pytest.mark.parametrize("options", [[], ["-n", "2"]], ids=["one-process", "xdist"])
def test_every_way_to_end_is_told_the_same_with_workers_and_without(
    pytester: pytest.Pytester, options: list[str]
) -> None:
    pytester.makepyfile(test_light=LIGHT)
    done = run_pytest(pytester.path, *options, "--junit-xml=j.xml", "-rs")
    assert section(done.stdout, "validator") == SECTION
    line = LIGHT.strip().splitlines().index("def test_not_applicable(validation):") + 1
    assert f"SKIPPED [1] test_light.py:{line}: the port has no cache" in done.stdout
    assert "9 failed, 3 passed, 1 skipped, 3 xfailed, 1 error" in done.stdout
    shown = [line for line in section(done.stdout, "test_fails") if not line.startswith("[gw")]
    assert shown == [
        "The cache grows.",
        "  module  model.layers.1",
        "  rank    3",
        "  slope   2.5",
    ]
    assert section(done.stdout, "test_mistake")[-1:] == ["candidate() fails: out of memory"]
    assert "KeyError: 'planted'" in "\n".join(section(done.stdout, "test_bug"))
    text = (pytester.path / "j.xml").read_text()
    assert '<property name="validator.slope" value="0.125" />' in text
    assert '<property name="validator.rank" value="3" />' in text
    assert text.count('<property name="validator.ending" value="expected_failure" />') == 2


def test_a_subtest_may_compare_nothing_where_its_test_does(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_parts="""
        def test_both(validation, subtests):
            with subtests.test("before"):
                pass
            with subtests.test("compares"):
                validation.require(True, "holds")

        def test_neither(validation, subtests):
            with subtests.test("nothing"):
                pass
        """
    )
    done = run_pytest(pytester.path)
    assert "1 failed, 1 passed" in done.stdout
    text = " ".join(line.strip() for line in section(done.stdout, "validator"))
    assert "test_parts.py::test_both: passed" in text
    assert "test_parts.py::test_neither: could not run: it passed, but compared nothing" in text


@pytest.mark.parametrize(
    ("config", "option", "message"),
    [
        ("", "--validator-nproc=two", "--validator-nproc is 'two'; it must be a whole number, 1 or more"),
        ("", "--validator-card-counts=1,1", "--validator-card-counts is '1,1'; it must be different numbers"),
        ("nproc = 0", "--validator-target=port.py", "nproc in [tool.validator] of "),
        ("nprocs = 2", "--validator-update-baselines", "Do you mean nproc?"),
    ],
    ids=["number", "list", "config", "key"],
)
def test_a_bad_setting_of_a_run_with_our_options_is_one_message_before_any_test(
    pytester: pytest.Pytester, config: str, option: str, message: str
) -> None:
    pytester.makepyfile(test_light="def test_a(): ...")
    pytester.makepyprojecttoml(f"[tool.validator]\n{config}\n")
    done = run_pytest(pytester.path, option)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert done.stdout == ""
    (line,) = done.stderr.split("\n\n")[0].splitlines()
    assert line.startswith("ERROR: ")
    assert message in line


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (b"[tool.validator]\nthreshold = 3\n", "no such setting: threshold in [tool.validator] of "),
        (b"# validator \xe9\n", None),
        (b"[tool.validator]\nname = {{ name }}\n", None),
    ],
    ids=["other-tool", "latin-1", "template"],
)
def test_a_file_above_the_root_stops_no_run_and_only_its_table_concerns_tests_of_ports(
    pytester: pytest.Pytester, config: bytes, message: str | None
) -> None:
    (pytester.path / "pyproject.toml").write_bytes(config)
    root = pytester.mkdir("root")
    (root / "pytest.ini").write_text("[pytest]\n")
    (root / "test_light.py").write_text(OURS_AND_NOT)
    done = run_pytest(root)
    assert done.stderr == ""
    if message is None:
        assert "2 passed" in done.stdout
    else:
        assert "1 passed, 1 error" in done.stdout
        assert f"test_light.py::test_ours: could not run: {message}" in " ".join(done.stdout.split())
        assert "Traceback" not in done.stdout


def test_a_file_of_the_root_that_is_wrong_is_told_by_the_test_that_needs_it(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyprojecttoml("[tool.validator]\nnproc = 0\n")
    pytester.makepyfile(test_light=OURS_AND_NOT)
    done = run_pytest(pytester.path)
    assert "1 passed, 1 error" in done.stdout
    text = " ".join(line.strip() for line in section(done.stdout, "validator"))
    assert "test_ours: could not run: nproc in [tool.validator] of " in text


def test_markers_and_targets_that_are_wrong_are_messages_of_their_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_wrong="""
        import pytest

        def test_no_target(target): ...

        @pytest.mark.validator(target="nothing.py")
        def test_missing(target): ...

        @pytest.mark.validator("port.py")
        def test_nameless(validation): ...

        @pytest.mark.validator(nproc=0)
        def test_value(validation): ...
        """
    )
    done = run_pytest(pytester.path, "--validator-target=")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    done = run_pytest(pytester.path)
    text = " ".join(line.strip() for line in section(done.stdout, "validator"))
    for message in (
        "test_no_target: could not run: no target is named, so there is nothing to test. Give --target ",
        "test_missing: could not run: no such target: 'nothing.py'",
        "has 'port.py' without a name; write target='port.py'",
        "nproc in @pytest.mark.validator of test_wrong.py::test_value is 0; it must be a whole number",
    ):
        assert message in text
    assert "Traceback" not in done.stdout
    assert "site-packages" not in done.stdout
