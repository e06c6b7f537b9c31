import pytest
import torch

from tests.checks.test_endtoend import BATCH, TOKENS, capture, figures, logits, sides
from validator.align.builder import build_trace
from validator.checks import output_positions
from validator.checks.output_positions import output_profile


@pytest.mark.parametrize("elements", [1, 100, 1 << 20], ids=["rows", "blocks", "one-block"])
def test_the_positions_are_those_behind_the_figures(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_positions, "_BLOCK_ELEMENTS", elements)
    ref, cand = logits(), logits() + 0.1 * logits(1)
    ours, trace = sides(ref, cand)
    found, known = output_profile(ref=ours, trace=trace, real=None), figures(ref, cand)
    assert found is not None
    assert found.places == tuple((sequence, token) for sequence in range(BATCH) for token in range(TOKENS))
    assert max(found.kl) == pytest.approx(known["kl"]["max"], rel=1e-12)
    assert sum(found.kl) / len(found.kl) == pytest.approx(known["kl"]["mean"], rel=1e-12)
    assert [list(position.place) for position in found.worst] == [row["position"] for row in known["worst"]]


def test_the_likeliest_tokens_of_both_sides_stand_side_by_side() -> None:
    ref, cand = logits(), logits()
    cand[1, 3, 7] += 20.0
    ours, trace = sides(ref, cand)
    found = output_profile(ref=ours, trace=trace, real=None)
    assert found is not None
    worst = found.worst[0]
    assert worst.place == (1, 3)
    probabilities = torch.softmax(ref[1, 3].double(), -1).sort(descending=True)
    assert [token for token, _ in worst.reference] == probabilities.indices[:5].tolist()
    assert worst.candidate[0][0] == 7
    assert worst.candidate[0][1] > 0.99


def test_positions_without_a_distribution_are_infinitely_far_and_padding_is_left_out() -> None:
    ref, cand = logits(), logits()
    cand[0, 2] = torch.nan
    real = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    real[1, 5:] = False
    ours, trace = sides(ref, cand)
    found = output_profile(ref=ours, trace=trace, real={("", 0): real})
    assert found is not None
    assert len(found.kl) == TOKENS + 5
    assert found.worst[0].place == (0, 2)
    assert (found.worst[0].kl, found.worst[0].candidate) == (float("inf"), ())


def test_a_model_without_logits_has_no_positions() -> None:
    ours = capture(logits(), "scores")
    trace = build_trace(cand=[capture(logits(), "scores")], ref=ours)
    assert output_profile(ref=ours, trace=trace, real=None) is None
