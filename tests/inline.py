"""Runs of pytest inside this process, by pytester, that leave what they imported imported."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

__all__ = ["modules_stay_fixture"]


@pytest.fixture(autouse=True, name="modules_stay")
def modules_stay_fixture(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep modules in `sys.modules` that a run of pytester imported first.

    pytester forgets them after each run and at its end, for two runs may have test files of one name. But a
    library still holds the classes that it imported: later tests would find classes without a module, or
    import it again and have each class twice.
    """
    if "pytester" not in request.fixturenames:
        yield
        return
    kept = _Kept()
    run = pytest.Pytester.inline_run

    def inline_run(
        pytester: pytest.Pytester, *args: Any, plugins: Any = (), **kwargs: Any
    ) -> pytest.HookRecorder:
        kept.folder = pytester.path
        try:
            return run(pytester, *args, plugins=[*plugins, kept], **kwargs)
        finally:
            kept.put_back()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pytest.Pytester, "inline_run", inline_run)
        yield
    kept.put_back()  # this fixture is autouse: pytester, which forgets once more, has ended before it


class _Kept:
    def __init__(self) -> None:
        self.folder = Path()
        self.modules: dict[str, Any] = {}

    def pytest_unconfigure(self) -> None:
        for name, module in sys.modules.items():
            file = getattr(module, "__file__", None)
            if file is None or not Path(file).is_relative_to(self.folder):
                self.modules[name] = module

    def put_back(self) -> None:
        for name, module in self.modules.items():
            sys.modules.setdefault(name, module)
