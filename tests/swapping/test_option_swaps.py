import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import torch

from tests.small_port import write_port
from validator.errors import UsageError
from validator.numerics.formats import weights_dtype
from validator.report.json_report import schema
from validator.report.swaps import SwapResult
from validator.swapping.logits import logits_of
from validator.swapping.option_runs import CandidateRun, Ran, run_candidate
from validator.swapping.option_swaps import swap_options
from validator.swapping.options import Setting, environment
from validator.target import load_target

CHANGES = """
SCALE = 1.3 if os.environ.get("PORT_TURBO") == "1" else 1.0  # read when the file is loaded


def candidate(fast=False, harmless=False):
    model = Net().to(torch.bfloat16)
    with torch.no_grad():
        model.head.weight.mul_(SCALE)
        if fast:
            model.up.weight.mul_(1.3)
    return model
"""
OPTIONS = """
[turbo]
environment = "PORT_TURBO"
on = "1"

[fast]
argument = "fast"
on = true

[harmless]
argument = "harmless"
on = true
"""


def write_options(folder: Path, text: str = OPTIONS) -> Path:
    path = folder / "options.toml"
    path.write_text(text, encoding="utf-8")
    return path


def run_here(run: CandidateRun, setting: Setting) -> Ran:
    """Run a candidate in this process: the small port reads its variable whenever its file is loaded."""
    with environment(setting.variables):
        target = replace(load_target(run.source), options=setting.arguments)
        model = target.candidate()
        logits = logits_of(model, lambda: model(**target.inputs()))
    return Ran(logits=logits, weights=weights_dtype(model))


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("validator.swapping.option_swaps.run_candidate", run_here)


def test_a_fresh_process_is_given_variables_and_arguments(tmp_path: Path) -> None:
    run = CandidateRun(source=str(write_port(tmp_path, CHANGES)))
    setting = Setting(variables={"PORT_TURBO": "1"}, arguments={"fast": True})
    given, here = run_candidate(run, setting), run_here(run, setting)
    assert torch.equal(given.logits.values, here.logits.values)
    assert given.logits.ids is not None
    assert given.weights == torch.bfloat16
    plain = run_here(run, Setting(variables={}, arguments={}))
    assert not torch.equal(plain.logits.values, given.logits.values)


@pytest.mark.usefixtures("in_this_process")
def test_the_variable_and_the_argument_that_bring_a_divergence_are_found(tmp_path: Path) -> None:
    port = write_port(tmp_path, CHANGES)
    result = SwapResult(swap_options(str(port), write_options(tmp_path)))
    (level,) = result.swap.levels
    assert {member.item for member in level.found.members} == {"turbo", "fast"}
    assert (result.verdict, result.exit_code, level.tried) == ("divergent", 1, ("turbo", "fast", "harmless"))
    assert result.swap.noise is not None
    assert result.swap.baseline < result.swap.noise < result.swap.candidate
    assert "2 options of 3" in str(result)
    document = json.loads(json.dumps(result.to_json(), allow_nan=False))
    jsonschema.validate(document, schema(), cls=jsonschema.Draft202012Validator)


@pytest.mark.slow
def test_an_option_that_only_one_rank_of_two_heeds_is_found(tmp_path: Path) -> None:
    port = write_port(
        tmp_path,
        """
import torch.distributed as dist

class Sharded(Net):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, input_ids):
        partial = super().forward(input_ids) * (self.scale / dist.get_world_size())
        dist.all_reduce(partial)
        return partial


def candidate(fast=False, harmless=False):
    return Sharded(1.3 if fast and dist.get_rank() == 1 else 1.0).to(torch.bfloat16)
""",
    )
    options = write_options(
        tmp_path,
        '[fast]\nargument = "fast"\non = true\n[harmless]\nargument = "harmless"\non = true',
    )
    result = SwapResult(swap_options(str(port), options, nproc=2))
    (level,) = result.swap.levels
    assert [member.item for member in level.found.members] == ["fast"]
    assert result.exit_code == 1


@pytest.mark.usefixtures("in_this_process")
def test_options_that_change_nothing_are_not_blamed(tmp_path: Path) -> None:
    port = write_port(tmp_path, CHANGES)
    options = write_options(tmp_path, '[harmless]\nargument = "harmless"\non = true')
    result = SwapResult(swap_options(str(port), options))
    assert (result.exit_code, result.swap.levels) == (0, ())


@pytest.mark.usefixtures("in_this_process")
def test_what_is_wrong_with_all_options_off_is_no_options_fault(tmp_path: Path) -> None:
    port = write_port(tmp_path, CHANGES.replace("else 1.0", "else 1.3"))
    options = write_options(tmp_path, '[harmless]\nargument = "harmless"\non = true')
    result = SwapResult(swap_options(str(port), options))
    assert (result.exit_code, result.swap.found) == (1, ())
    assert str(result).startswith("divergent: none of the options brings a mean KL of")


@pytest.mark.usefixtures("in_this_process")
def test_an_argument_that_candidate_does_not_take_is_named(tmp_path: Path) -> None:
    port = write_port(tmp_path, CHANGES)
    options = write_options(tmp_path, '[kernel]\nargument = "kernal"\non = "flash"')
    with pytest.raises(UsageError) as refused:
        swap_options(str(port), options)
    assert "[kernel] sets the argument 'kernal'" in str(refused.value)
    assert "takes fast, harmless" in str(refused.value)
