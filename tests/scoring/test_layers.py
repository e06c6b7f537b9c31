"""What the layers say of a candidate that went astray stands beside the finding, and never in its place."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from validator.checks.findings import Check, Verdict
from validator.errors import MismatchError
from validator.scoring import layers
from validator.scoring.layers import blame

IDS = torch.tensor([[1, 2, 3]])


def result(*findings: str, why: str = "", run: dict[str, str] | None = None) -> Any:
    """Return a result with findings in these modules, inconclusive where a reason is given."""
    made = [finding(name) for name in findings]
    verdict = Verdict.INCONCLUSIVE if why else Verdict.DIVERGENT if findings else Verdict.ALIGNED
    return SimpleNamespace(
        first_divergence=None,
        findings=tuple(made),
        verdict=verdict,
        outcome=SimpleNamespace(why_inconclusive=(why,) if why else (), run=run or {}),
    )


def finding(module: str) -> Any:
    """Return what is read of a finding."""
    return SimpleNamespace(
        module=module, candidate_module=module, check=Check.FUNCTION, summary=f"{module} is wrong"
    )


def failing(*_: Any, **__: Any) -> Any:
    raise MismatchError("the two sides have other vocabularies")


def said(monkeypatch: pytest.MonkeyPatch, own: Any, on_ids: Any, ids: Any = IDS) -> tuple[str, str | None]:
    """Return what is said, given what the check on the target's inputs and that on the tokens give."""
    checks = [each if callable(each) else lambda *_, each=each, **__: each for each in (own, on_ids)]
    monkeypatch.setattr(layers, "check_tokens", checks[1])
    return blame("port.py", ids, checks[0])


def test_what_to_do_next_is_the_command_that_looks_at_the_module_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = result("lm_head", run={"command": "validator check port.py"})
    text, module = said(monkeypatch, own, failing)
    assert module == "lm_head"
    assert text.endswith("\nNext: validator check port.py --include 'lm_head*' --keep run")


def test_the_first_finding_is_named_with_the_inputs_that_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, result("a", "b"), failing) == (
        "The layers, on the target's inputs: a is wrong",
        "a",
    )
    assert said(monkeypatch, result(), result("b")) == ("The layers, on these very tokens: b is wrong", "b")


def test_layers_that_are_right_leave_the_logits_and_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    for ids in (IDS, None):
        text, module = said(monkeypatch, result(), result(), ids)
        assert text.startswith("No layer is wrong: look at what is done with the logits")
        assert module is None


def test_a_check_that_fails_is_a_note_and_the_next_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, failing, result("b")) == ("The layers, on these very tokens: b is wrong", "b")
    text, module = said(monkeypatch, result(), failing)
    assert text == (
        "The layers could not be checked on these very tokens: the two sides have other vocabularies."
    )
    assert module is None


def test_a_check_that_is_inconclusive_finds_no_layer_right(monkeypatch: pytest.MonkeyPatch) -> None:
    text, _ = said(monkeypatch, result(why="the proof failed"), result())
    assert text == "The check of the layers on the target's inputs is inconclusive: the proof failed."


def test_another_error_than_the_user_s_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        said(monkeypatch, broken, result())
