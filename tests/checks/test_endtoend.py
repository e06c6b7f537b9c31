"""The candidate's next-token distribution against the reference's."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.align.build import Recorder, run_model
from validator.align.builder import build_trace
from validator.align.traces import Trace
from validator.capturing.records import RankCapture
from validator.checks.endtoend import end_to_end
from validator.numerics.distributions import compare_logits
from validator.numerics.formats import format_of

BATCH, TOKENS, VOCABULARY = 2, 12, 40


def logits(seed: int = 0) -> Tensor:
    return torch.randn(BATCH, TOKENS, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 2


def capture(made: Any, path: str = "logits") -> RankCapture:
    recorder = Recorder()
    ids = torch.zeros(BATCH, TOKENS, dtype=torch.int64)
    with recorder.call("", {"input_ids": ids}) as out:
        recorder.leaf("head", torch.ones(BATCH, TOKENS, 4), made)
        out[path] = made
    return recorder.capture()


def sides(ref: Tensor, cand: Tensor) -> tuple[RankCapture, Trace]:
    ours = capture(ref)
    return ours, build_trace(cand=[capture(cand)], ref=ours)


def figures(ref: Tensor, cand: Tensor, real: Tensor | None = None) -> dict[str, Any]:
    ours, trace = sides(ref, cand)
    found = end_to_end(ref=ours, trace=trace, real=real)
    assert found is not None
    return dict(found)


def test_equal_logits_are_the_same_distribution() -> None:
    found = figures(logits(), logits())
    assert found["kl"]["mean"] == pytest.approx(0, abs=1e-12)
    assert found["top1_agreement"] == 1.0


def test_the_figures_are_those_of_the_two_runs() -> None:
    ref, cand = logits(), logits() + 0.1 * logits(1)
    difference = cand.double() - ref.double()
    sigma = float((difference - difference.mean(-1, keepdim=True)).square().mean(-1).sqrt().median())
    known = compare_logits(
        ref=ref.reshape(-1, VOCABULARY),
        cand=cand.reshape(-1, VOCABULARY),
        cand_format=format_of(torch.float32),
        top_k=5,
        groups=torch.arange(BATCH).repeat_interleave(TOKENS),
        logit_sigma=sigma,
    ).to_json()
    assert figures(ref, cand) == known


def test_padded_positions_do_not_count() -> None:
    ref, cand = logits(), logits()
    cand[1, 8:] = 100 * logits(3)[1, 8:]
    real = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    real[1, 8:] = False
    assert figures(ref, cand)["top1_agreement"] < 1
    assert figures(ref, cand, real) == figures(ref[:, :], ref, real)


def test_a_mask_of_another_shape_is_not_used() -> None:
    ref = logits()
    assert figures(ref, ref, torch.ones(BATCH, TOKENS + 1, dtype=torch.bool)) == figures(ref, ref)


def test_a_model_without_logits_has_no_figures() -> None:
    ours = capture(logits(), path="last_hidden_state")
    trace = build_trace(cand=[capture(logits(), path="last_hidden_state")], ref=ours)
    assert end_to_end(ref=ours, trace=trace, real=None) is None


def test_a_reference_without_logits_has_no_figures() -> None:
    _, trace = sides(logits(), logits())
    assert end_to_end(ref=capture(logits(), path="other"), trace=trace, real=None) is None


def test_a_small_vocabulary_is_no_obstacle() -> None:
    ref = logits()[..., :3].contiguous()
    assert figures(ref, ref)["top1_agreement"] == 1.0


def test_logits_put_together_from_ranks_are_compared_whole() -> None:
    ours = run_model()[0]
    trace = build_trace(cand=run_model(world=2), ref=ours)
    found = end_to_end(ref=ours, trace=trace, real=None)
    assert found is not None
    assert found["top1_agreement"] == 1.0
