"""The proof that hooks changed nothing, with modules that they do change."""

import math

import pytest
import torch
from torch import nn

from validator.capturing.manifest import Proof, ProofStatus
from validator.capturing.proof import judge, worst
from validator.capturing.reader import open_capture
from validator.capturing.session import capture, capture_run


class Shy(nn.Module):
    """Behaves differently when it is looked at."""

    def forward(self, x):
        return x * 1.001 if self._forward_hooks else x


class Noisy(nn.Module):
    """Gives other last bits in each run, whoever looks."""

    def __init__(self):
        super().__init__()
        self.runs = 0

    def forward(self, x):
        self.runs += 1
        return x + torch.rand(4096, generator=torch.Generator().manual_seed(self.runs)) * 1e-6


def proof_of(tmp_path, model, run=None):
    x = torch.linspace(0, 1, 4096)
    summary = capture_run(run or (lambda: model(x)), model, tmp_path / "run.h5")
    assert open_capture(tmp_path / "run.h5").manifest.proof == summary.proof
    return summary.proof


def test_a_healthy_run_is_identical(tmp_path):
    proof = proof_of(tmp_path, nn.Sequential(nn.Linear(4096, 8), nn.GELU()))
    assert proof.status is ProofStatus.IDENTICAL
    assert proof.difference == 0.0


def test_a_module_that_notices_hooks_has_changed(tmp_path):
    proof = proof_of(tmp_path, nn.Sequential(Shy()))
    assert proof.status is ProofStatus.CHANGED
    assert proof.difference == pytest.approx(0.001, rel=1e-3)
    assert proof.spread == 0.0
    assert "differ by up to 0.001" in proof.reason


def test_a_noisy_run_is_within_its_own_spread(tmp_path):
    proof = proof_of(tmp_path, Noisy())
    assert proof.status is ProofStatus.WITHIN_SPREAD
    assert 0 < proof.difference <= proof.spread < 2e-6


def test_a_noisy_module_that_notices_hooks_has_changed(tmp_path):
    proof = proof_of(tmp_path, nn.Sequential(Noisy(), Shy()))
    assert proof.status is ProofStatus.CHANGED
    assert proof.difference > proof.spread > 0


def test_both_runs_draw_the_same_random_numbers(tmp_path):
    proof = proof_of(tmp_path, nn.Dropout(0.5).train())
    assert proof.status is ProofStatus.IDENTICAL


def test_a_run_that_returns_no_tensor_proves_nothing(tmp_path):
    model = nn.Identity()
    assert proof_of(tmp_path, model, lambda: model(torch.ones(2)) is None).status is ProofStatus.SKIPPED


def test_a_context_manager_records_that_the_proof_was_skipped(tmp_path):
    model = nn.Identity()
    with capture(model, tmp_path / "run.h5"):
        model(torch.ones(2))
    assert open_capture(tmp_path / "run.h5").manifest.proof.status is ProofStatus.SKIPPED


def test_the_proof_can_be_left_out(tmp_path):
    model = Noisy()
    summary = capture_run(lambda: model(torch.zeros(4096)), model, tmp_path / "run.h5", proof=False)
    assert summary.proof.status is ProofStatus.SKIPPED
    assert model.runs == 1


def test_a_run_that_raises_leaves_no_hooks_and_no_complete_capture(tmp_path):
    model = nn.Linear(2, 2)
    calls = []

    def run():
        calls.append(1)
        model(torch.ones(1, 2))
        if len(calls) == 2:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        capture_run(run, model, tmp_path / "run.h5")
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert [p.name for p in tmp_path.iterdir()] == ["run.h5.partial"]


def test_runs_are_without_autograd(tmp_path):
    model = nn.Linear(2, 2)
    outputs = []
    capture_run(lambda: outputs.append(model(torch.ones(1, 2))) or outputs[-1], model, tmp_path / "run.h5")
    assert [output.requires_grad for output in outputs] == [False, False]


ONES = {"": torch.ones(2)}


@pytest.mark.parametrize(
    ("hooked", "difference"),
    [
        ({"": torch.ones(3)}, math.inf),
        ({"": torch.ones(2, dtype=torch.float64)}, math.inf),
        ({"other": torch.ones(2)}, math.inf),
        ({}, math.inf),
        ({"": torch.tensor([1.0, math.nan])}, math.inf),
        ({"": torch.tensor([1.0, -math.inf])}, math.inf),
        ({"": torch.tensor([1.0, 3.0])}, 2.0),
    ],
    ids=["shape", "dtype", "path", "missing", "nan", "inf", "value"],
)
def test_any_difference_is_one(hooked, difference):
    proof = judge(hooked=hooked, plain=[ONES, ONES, ONES])
    assert proof.status is ProofStatus.CHANGED
    assert proof.difference == difference


def test_equal_infinities_and_nans_are_no_difference():
    special = torch.tensor([math.inf, math.nan, 1.0])
    plain = [{"": special}, {"": torch.tensor([math.inf, math.nan, 2.0])}]
    assert judge(hooked={"": special.clone()}, plain=plain[:1]).status is ProofStatus.IDENTICAL
    proof = judge(hooked={"": torch.tensor([math.inf, math.nan, 1.5])}, plain=plain)
    assert (proof.difference, proof.spread) == (0.5, 1.0)


def test_a_run_without_finite_spread_proves_nothing_about_a_different_one():
    plain = [ONES, {"": torch.ones(3)}]
    assert judge(hooked={"": torch.zeros(2)}, plain=plain).status is ProofStatus.CHANGED


def test_negative_zero_is_another_value():
    proof = judge(hooked={"": torch.tensor([-0.0])}, plain=[{"": torch.tensor([0.0])}] * 3)
    assert proof.status is not ProofStatus.IDENTICAL


def test_the_worst_rank_speaks_for_all():
    proofs = [Proof(status=status, reason="") for status in ProofStatus]
    assert worst(proofs).status is ProofStatus.CHANGED
    assert worst(proofs[:3]).status is ProofStatus.SKIPPED
