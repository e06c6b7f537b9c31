"""What a run can't have is refused before any test, and nothing else is."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from validator import launch
from validator.errors import ValidatorError
from validator.testing.runnable import card_counts_here, require_runnable
from validator.testing.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "port.py").write_text("")
    (tmp_path / "scores.jsonl").write_text("")
    return Settings(
        target=str(tmp_path / "port.py"),
        device="cpu",
        nproc=4,
        dtype="bfloat16",
        recipe="fused",
        samples=(tmp_path / "scores.jsonl",),
        reports=tmp_path / "new" / "reports",
        card_counts=(1, 8),
        names_card_counts=True,
    )


def test_what_is_there_is_not_refused_and_no_folder_is_made(settings: Settings, tmp_path: Path) -> None:
    require_runnable(settings)
    require_runnable(Settings())
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"target": "no/port.py"}, "no such target: 'no/port.py'"),
        ({"recipe": "nonsense"}, "--recipe 'nonsense' is not known"),
        ({"dtype": "int8"}, "--dtype 'int8' is no floating format"),
        ({"device": "warp"}, "--device 'warp' is no device that torch knows"),
        ({"device": "meta"}, "--device 'meta' is no device that torch knows"),
        ({"samples": (Path("no.jsonl"),)}, "--samples 'no.jsonl' is no file"),
        ({"reports": Path(__file__) / "reports"}, r"--reports '.*test_runnable.py/reports' can't be written"),
    ],
)
def test_what_is_not_there_is_refused_with_its_option(
    settings: Settings, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidatorError, match=message):
        require_runnable(replace(settings, **wrong))


def test_more_ranks_than_devices_are_refused_where_they_are_named_and_left_out_else(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "device_count", lambda device: 4)
    on_device = replace(settings, device="cuda")
    with pytest.raises(ValidatorError, match=r"--card-counts 8 with --device cuda needs 8 .* has 4"):
        require_runnable(on_device)
    with pytest.raises(ValidatorError, match=r"--nproc 5 with --device cuda needs 5 .* has 4"):
        require_runnable(replace(on_device, nproc=5))
    by_default = replace(on_device, names_card_counts=False)
    require_runnable(by_default)
    assert card_counts_here(by_default) == (1,)
    assert card_counts_here(on_device) == card_counts_here(replace(by_default, device=None)) == (1, 8)
