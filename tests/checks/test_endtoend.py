"""The candidate's next-token distribution against the reference's."""

from typing import Any

import jsonschema
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
from validator.report.json_report import schema

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
    found = end_to_end(ref=ours, trace=trace, real=None if real is None else {("", 0): real})
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
    targets = torch.zeros(BATCH, TOKENS, dtype=torch.int64)
    targets[:, -1] = -100
    known = compare_logits(
        ref=ref.reshape(-1, VOCABULARY),
        cand=cand.reshape(-1, VOCABULARY),
        cand_format=format_of(torch.float32),
        top_k=5,
        groups=torch.arange(BATCH).repeat_interleave(TOKENS),
        targets=targets.reshape(-1),
        logit_sigma=sigma,
    ).to_json()
    found = figures(ref, cand)
    assert found.pop("logit_sigma") == sigma
    for name in ("worst", "flips"):
        known.pop(name), found.pop(name)
    assert found == known
    assert found["perplexity"]["targets"] == BATCH * (TOKENS - 1)
    assert found["kl_storage_floor"] < found["kl_noise_floor"]


def test_a_flip_is_shown_at_its_place_with_the_references_own_margin() -> None:
    ref = logits()
    cand = ref + 0.01 * logits(1)
    first, second = ref[1, 3].topk(2).indices.tolist()
    cand[1, 3, second] = cand[1, 3, first] + 1
    found = figures(ref, cand)
    flips = found["flips"]
    assert (flips["count"], flips["explained"], flips["unexplained_positions"]) == (1, 0, [[1, 3]])
    assert flips["p_value"] < 1
    (shown,) = flips["tokens"]
    assert (shown["position"], shown["ref"], shown["cand"]) == ([1, 3], first, second)
    assert shown["margin"] == pytest.approx(float(ref[1, 3, first] - ref[1, 3, second]))
    assert found["worst"][0]["position"] == [1, 3]
    assert found["margin_p50"] > 0


def test_healthy_noise_flips_about_as_many_tokens_as_it_is_expected_to() -> None:
    ref = logits()
    found = figures(ref, ref + 0.2 * logits(1))["flips"]
    assert found["count"] == found["explained"]
    assert found["p_value"] > 1e-3


def test_places_are_those_of_the_whole_batch_though_padding_is_left_out() -> None:
    ref = logits()
    cand = ref.clone()
    cand[1, 10] = -ref[1, 10]
    real = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    real[0, 5:] = False
    found = figures(ref, cand, real)
    assert found["worst"][0]["position"] == [1, 10]
    # Five real positions of the first sequence have four next tokens.
    assert found["perplexity"]["targets"] == 4 + TOKENS - 1


def test_masked_and_broken_logits_do_not_hide_the_noise_of_the_others() -> None:
    ref = logits()
    cand = ref + 0.1 * logits(1)
    sigma = figures(ref, cand)["logit_sigma"]
    ref[..., 7], cand[..., 7] = -torch.inf, -torch.inf
    cand[0, 2, 5] = torch.nan
    found = figures(ref, cand)
    assert found["logit_sigma"] == pytest.approx(sigma, rel=0.1)
    assert found["undefined"] == 1
    assert figures(ref, torch.full_like(ref, torch.nan))["logit_sigma"] is None


def test_the_schema_of_reports_describes_every_figure() -> None:
    broken = logits() + 0.5 * logits(1)
    broken[0, 2, 5] = torch.nan
    described = {
        **schema()["$defs"]["distribution"],
        "$defs": schema()["$defs"],
        "additionalProperties": False,
    }
    for cand in (logits(), broken):
        found = figures(logits(), cand)
        jsonschema.validate(found, described)
        assert set(found) == set(described["properties"])
        assert set(found["flips"]) == set(schema()["$defs"]["flips"]["properties"])


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
