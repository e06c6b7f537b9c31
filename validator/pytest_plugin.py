"""The pytest plugin: options, the marker, and the fixtures `validation` and `target`.

    def test_layers(validation):
        validation.check()

Every pytest run of an environment that has validator loads this module, so it imports nothing heavy: torch
comes with the first test that asks for a fixture.
"""

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from validator.errors import UsageError
from validator.testing.records import Record
from validator.testing.section import attach, require_compared, section_lines
from validator.testing.settings import KEYS, NO_TARGET, Settings, configured, read_settings

if TYPE_CHECKING:
    from validator.target import Target
    from validator.testing.validation import Validation

__all__ = ["asked_by"]

_SETTINGS = pytest.StashKey[Settings | UsageError]()
_RECORD = pytest.StashKey[Record]()
_TARGETS = pytest.StashKey[dict[tuple[Any, ...], Any]]()
_SHARED = pytest.StashKey[dict[tuple[Any, ...], Any]]()
_MARKER = (
    "validator(target=..., nproc=..., dtype=..., ...): what this test of a port runs with, in place of the "
    "command line's and pyproject.toml's"
)
_HELP = {
    "target": (
        "FILE",
        "the port to test: a Python file with reference, candidate and inputs; or a checkpoint",
    ),
    "nproc": ("N", "ranks to launch the candidate on"),
    "device": ("D", "the candidate's device, such as cuda"),
    "dtype": ("T", "the candidate's dtype, such as bfloat16"),
    "tp": ("N", "tensor-parallel size, for a checkpoint folder"),
    "recipe": ("R", "what the device may round: fused, eager, tf32, ..."),
    "baselines": ("FOLDER", "stored reference runs (default: baselines)"),
    "reports": ("FOLDER", "write the results there as JSON"),
    "card_counts": ("1,2,...", "numbers of ranks that suites compare (default: 1,2)"),
    "samples": ("FILE[,FILE]", "prompts with scores: of both sides, or lm-eval's of reference and candidate"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, all of which start with `--validator-`."""
    group = parser.getgroup("validator", "whether a port computes what its reference computes")
    for key, (metavar, text) in _HELP.items():
        group.addoption(_option(key), dest=_dest(key), metavar=metavar, help=text)
    group.addoption(
        _option("long"), dest=_dest("long"), action="store_const", const=True, help="run the long versions"
    )
    group.addoption(
        _option("update_baselines"),
        dest=_dest("update_baselines"),
        action="store_true",
        help="write baselines that are missing or differ; nothing else writes one",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Read the settings, so that a bad one ends the run before any test.

    Without an option of ours the run may be none of ours: what is wrong in a file is then told by the first
    test that asks for a fixture.
    """
    config.addinivalue_line("markers", _MARKER)
    config.stash[_TARGETS], config.stash[_SHARED] = {}, {}
    options = {key: config.getoption(_dest(key)) for key in KEYS}
    is_updating = bool(config.getoption(_dest("update_baselines")))
    try:
        settings = read_settings(
            configured(config.rootpath, is_root=True),
            options,
            name=_option,
            folder=config.invocation_params.dir,
        )
    except UsageError as error:
        if is_updating or any(value is not None for value in options.values()):
            raise pytest.UsageError(str(error)) from None
        config.stash[_SETTINGS] = error
    else:
        config.stash[_SETTINGS] = settings.updating(is_updating)


@pytest.fixture
def target(request: pytest.FixtureRequest) -> "Target":
    """The configured target, loaded; loaded once where several tests ask for it with the same options."""
    _record(request.node)
    settings = _settings(request.node)
    from validator.target import load_target

    if settings.target is None:
        raise UsageError(NO_TARGET)
    key = (settings.target, settings.dtype, settings.device, settings.tp)
    targets = request.config.stash[_TARGETS]
    if key not in targets:
        targets[key] = load_target(
            settings.target, dtype=settings.dtype, device=settings.device, tp=settings.tp
        )
    loaded: Target = targets[key]
    return loaded


@pytest.fixture
def validation(request: pytest.FixtureRequest, tmp_path: Path) -> "Validation":
    """Compares, keeps figures, and fails a test with a finding in place of a traceback."""
    record = _record(request.node)
    record.judges = True
    settings = _settings(request.node)
    from validator.testing.validation import Validation

    return Validation(
        settings=settings,
        folder=tmp_path,
        record=record,
        nodeid=request.node.nodeid,
        shared=request.config.stash[_SHARED],
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """End a test of a port that would pass, and has compared nothing."""
    yield
    record = item.stash.get(_RECORD, None)
    if record is not None:
        require_compared(record)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put on a report what the test of a port said."""
    report = yield
    record = item.stash.get(_RECORD, None)
    if record is not None:
        attach(report, item, call, record)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the tests of a port in a section of their own; `validator run` has a summary in its place."""
    if terminalreporter.config.pluginmanager.has_plugin("validator.testing.recorder"):
        return
    reports = [
        report
        for kind in ("passed", "failed", "error", "skipped", "xfailed", "xpassed")
        for report in terminalreporter.stats.get(kind, [])
    ]
    lines = section_lines(reports)
    if lines:
        terminalreporter.write_sep("=", "validator")
        for line in lines:
            terminalreporter.write_line(line)


def asked_by(item: pytest.Item) -> str:
    """Return what a test asks, in plain words: its docstring's first line and its parameters, or its name."""
    text = (getattr(getattr(item, "obj", None), "__doc__", None) or "").strip().partition("\n")[0].strip()
    if not text:
        return item.name.removeprefix("test_").replace("_", " ")
    parameters = getattr(item, "callspec", None)
    return text if parameters is None else f"{text.rstrip('.')} ({parameters.id})"


def _record(item: pytest.Item) -> Record:
    if _RECORD not in item.stash:
        item.stash[_RECORD] = Record(asked=asked_by(item))
    return item.stash[_RECORD]


def _settings(item: pytest.Item) -> Settings:
    """Return the settings of a test: those of the run, with what its markers say, the closest last."""
    settings = item.config.stash[_SETTINGS]
    if isinstance(settings, UsageError):
        raise UsageError(str(settings))
    where = f"@pytest.mark.validator of {item.nodeid}"
    for marker in reversed(list(item.iter_markers("validator"))):
        if marker.args:
            raise UsageError(
                f"{where} has {marker.args[0]!r} without a name; write target={marker.args[0]!r}"
            )
        settings = read_settings(
            settings, marker.kwargs, name=lambda key: f"{key} in {where}", folder=item.config.rootpath
        )
    _record(item).settings = str(settings)
    return settings


def _option(key: str) -> str:
    return f"--validator-{key.replace('_', '-')}"


def _dest(key: str) -> str:
    return f"validator_{key}"
