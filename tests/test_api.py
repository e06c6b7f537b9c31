"""`validator.capture` and `validator.check` from Python, and the result that they give."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import validator
from validator import Recipe, ValidatorError
from validator.checks.findings import Verdict
from validator.errors import CaptureError, MismatchError, UsageError


class Block(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.up = nn.Linear(64, 128)
        self.down = nn.Linear(128, 64)
        self.factor = factor

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.factor * self.down(torch.relu(self.up(hidden)))


class Net(nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(32, 64)
        self.block = Block(factor)
        self.head = nn.Linear(64, 32, bias=False)

    def forward(self, input_ids: Tensor, scale: float = 1.0, extra: Any = None) -> Tensor:
        return scale * self.head(self.block(self.embed(input_ids)))


class Renamed(nn.Module):
    """The same model under other names."""

    def __init__(self) -> None:
        super().__init__()
        net = Net()
        self.tokens, self.layer, self.lm_head = net.embed, net.block, net.head

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.lm_head(self.layer(self.tokens(input_ids)))


class Unlike(nn.Module):
    """Another model altogether."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.table(input_ids % 7)


def ids() -> Tensor:
    return torch.arange(64).remainder(32).view(2, 32)


def healthy() -> nn.Module:
    return Net().to(torch.bfloat16)


def faulty() -> nn.Module:
    """The residual branch of the block counts 2% more: no module's weights or outputs are to blame."""
    return Net(factor=1.02).to(torch.bfloat16)


def test_two_models_that_agree_are_aligned() -> None:
    result = validator.check(reference=Net(), candidate=healthy(), inputs={"input_ids": ids()})
    assert (result.verdict, result.first_divergence, result.exit_code) == (Verdict.ALIGNED, None, 0)
    assert str(result).startswith("aligned: ")


def test_two_models_that_do_not_are_divergent_where_the_code_differs() -> None:
    result = validator.check(reference=Net(), candidate=faulty(), inputs={"input_ids": ids()})
    first = result.first_divergence
    assert first is not None
    assert (first.module, first.into) == ("block", None)
    assert result.exit_code == 1
    assert str(result).startswith("divergent: first at block\n")
    assert "block" in result._repr_html_()


def test_a_page_shows_what_each_edge_looks_like_where_that_was_asked_for(tmp_path: Path) -> None:
    inputs = {"input_ids": ids()}
    result = validator.check(reference=Net(), candidate=faulty(), inputs=inputs, profiles=True)
    result.write_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "divergent: first at block" in page
    assert "profiles=True" not in page
    assert list(result.to_frame().columns) == list(
        validator.check(reference=Net(), candidate=faulty(), inputs=inputs).to_frame().columns
    )


def test_the_frame_has_one_row_for_each_judged_edge() -> None:
    result = validator.check(reference=Net(), candidate=faulty(), inputs={"input_ids": ids()})
    frame = result.to_frame()
    modules = frame[frame["check"] != "parameter"]["module"]
    assert set(modules) == {"", "embed", "block", "block.up", "block.down", "head"}
    assert set(frame[frame["verdict"] == "divergent"]["module"]) == {"block"}
    assert not frame.duplicated(["module", "check", "into", "path", "call"]).any()
    counts = {check: int(n) for check, n in frame["check"].value_counts().items()}
    assert counts == {
        check: n for check, n in result.to_json()["checked"].items() if n and isinstance(n, int)
    }


@pytest.mark.parametrize("name", ["candidate.h5", "candidate"])
def test_a_capture_is_judged_with_the_inputs_that_it_holds(tmp_path: Path, name: str) -> None:
    model = faulty()
    with validator.capture(model, tmp_path / name):
        model(input_ids=ids(), scale=0.5)
    result = validator.check(reference=Net(), candidate=tmp_path / name)
    assert result.first_divergence is not None
    assert result.first_divergence.module == "block"


def test_every_call_inside_the_block_is_judged(tmp_path: Path) -> None:
    model = healthy()
    with validator.capture(model, tmp_path / "candidate.h5"):
        model(input_ids=ids())
        model(input_ids=ids().flip(1), scale=0.5)
    result = validator.check(reference=Net(), candidate=str(tmp_path / "candidate.h5"))
    assert result.verdict is Verdict.ALIGNED
    assert set(result.to_frame()["call"]) == {0, 1}


def test_a_capture_of_some_modules_judges_those_and_is_inconclusive(tmp_path: Path) -> None:
    model = healthy()
    with validator.capture(model, tmp_path / "candidate.h5", include="block.*"):
        model(input_ids=ids())
    result = validator.check(
        reference=Net(), candidate=tmp_path / "candidate.h5", inputs={"input_ids": ids()}
    )
    assert (result.verdict, result.exit_code) == (Verdict.INCONCLUSIVE, 3)
    assert set(result.to_frame()["module"]) == {"block.up", "block.down"}


def test_renamed_modules_are_matched_by_names() -> None:
    result = validator.check(
        reference=Net(),
        candidate=Renamed().to(torch.bfloat16),
        inputs={"input_ids": ids()},
        names={"tokens": "embed", "layer": "block", "lm_head": "head"},
    )
    assert result.verdict is Verdict.ALIGNED


@pytest.mark.parametrize(
    "recipe", ["eager", Recipe(name="wide", accumulate="float64")], ids=["name", "record"]
)
def test_a_recipe_may_be_a_name_or_a_record(recipe: Recipe | str) -> None:
    inputs = {"input_ids": ids()}
    result = validator.check(reference=Net(), candidate=healthy(), inputs=inputs, recipe=recipe)
    assert result.verdict is Verdict.ALIGNED


def test_inputs_are_not_changed_by_models_that_change_theirs() -> None:
    class Careless(Net):
        def forward(self, input_ids: Tensor, scale: float = 1.0, extra: Any = None) -> Tensor:
            logits = super().forward(input_ids, scale, extra)
            input_ids.zero_()
            return logits

    inputs = {"input_ids": ids()}
    validator.check(reference=Careless(), candidate=Careless().to(torch.bfloat16), inputs=inputs)
    assert torch.equal(inputs["input_ids"], ids())


def test_two_models_need_inputs() -> None:
    with pytest.raises(UsageError, match=r"check\(\) of two models needs inputs="):
        validator.check(reference=Net(), candidate=healthy())


def test_inputs_that_a_capture_can_not_give_back_must_be_given(tmp_path: Path) -> None:
    model = healthy()
    with validator.capture(model, tmp_path / "candidate.h5"):
        model(input_ids=ids(), extra={"mask": torch.ones(2, 32)})
    with pytest.raises(CaptureError, match=r"input 'extra/mask' is nested .*: give inputs="):
        validator.check(reference=Net(), candidate=tmp_path / "candidate.h5")


def test_a_capture_without_the_models_own_call_needs_inputs(tmp_path: Path) -> None:
    model = healthy()
    with validator.capture(model, tmp_path / "candidate.h5", include="head"):
        model(input_ids=ids())
    with pytest.raises(CaptureError, match=r"does not hold the model's own call.*: give inputs="):
        validator.check(reference=Net(), candidate=tmp_path / "candidate.h5")


def test_mistakes_are_validator_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'fusd' is not known; there are fused, "):
        validator.check(reference=Net(), candidate=healthy(), inputs={"input_ids": ids()}, recipe="fusd")
    with pytest.raises(CaptureError, match="no such capture"):
        validator.check(reference=Net(), candidate=tmp_path / "absent.h5")
    with pytest.raises(MismatchError, match="share no module name"):
        validator.check(reference=Net(), candidate=Unlike(), inputs={"input_ids": ids()})
    assert issubclass(MismatchError, ValidatorError)


def test_a_model_that_fails_on_the_inputs_keeps_its_own_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'tokens'"):
        validator.check(reference=Net(), candidate=healthy(), inputs={"tokens": ids()})


def test_the_models_are_put_in_eval_mode_and_their_parameters_kept() -> None:
    ref, cand = Net(), healthy()
    before = {name: value.clone() for name, value in ref.state_dict().items()}
    validator.check(reference=ref.train(), candidate=cand.train(), inputs={"input_ids": ids()})
    assert not ref.training
    assert not cand.training
    assert all(torch.equal(value, before[name]) for name, value in ref.state_dict().items())
