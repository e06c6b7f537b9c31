import json
import math
from typing import Any

import pytest
import torch

from validator.errors import ComparisonError
from validator.numerics import distributions
from validator.numerics.distributions import DistributionFigures, compare_logits
from validator.numerics.formats import format_of

BF16 = format_of("bfloat16")


def logits_of(positions: int, vocabulary: int, seed: int = 0, scale: float = 4.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(positions, vocabulary, dtype=torch.float64, generator=generator)


def stored(logits: torch.Tensor) -> torch.Tensor:
    return logits.to(torch.bfloat16)


def compare(ref: torch.Tensor, cand: torch.Tensor, **options: Any) -> DistributionFigures:
    return compare_logits(ref=ref, cand=cand, cand_format=BF16, **options)


def test_every_figure_agrees_with_brute_force() -> None:
    ref = logits_of(50, 30)
    cand = ref + logits_of(50, 30, seed=1, scale=0.7)
    targets = torch.arange(50) % 30
    targets[::9] = -100
    figures = compare(ref, cand, top_k=4, targets=targets, groups=torch.arange(50) // 10)
    p, q = ref.softmax(-1), cand.softmax(-1)
    m = (p + q) / 2
    kl = (p * (p / q).log()).sum(-1)
    for spread, values in (
        (figures.kl, kl),
        (figures.kl_reverse, (q * (q / p).log()).sum(-1)),
        (figures.js, ((p * (p / m).log()).sum(-1) + (q * (q / m).log()).sum(-1)) / 2),
        (figures.total_variation, (p - q).abs().sum(-1) / 2),
    ):
        assert spread.mean == pytest.approx(float(values.mean()), rel=1e-12)
        assert spread.max == pytest.approx(float(values.max()), rel=1e-12)
        ordered = sorted(values.tolist())
        # The nearest rank of 50: the 25th, 45th, 50th, 50th.
        assert [spread.p50, spread.p90, spread.p99, spread.p999] == pytest.approx(
            [ordered[24], ordered[44], ordered[49], ordered[49]], rel=1e-11
        )
    overlap = [
        len(set(a.argsort()[-4:].tolist()) & set(b.argsort()[-4:].tolist())) / 4
        for a, b in zip(ref, cand, strict=True)
    ]
    assert figures.top_k_overlap == pytest.approx(sum(overlap) / 50)
    flips = int((ref.argmax(-1) != cand.argmax(-1)).sum())
    assert flips > 0
    assert (figures.flips.count, figures.top1_agreement) == (flips, 1 - flips / 50)
    rows = torch.nonzero(targets != -100).squeeze(-1)
    preferred = p.argmax(-1, keepdim=True)
    change = q.gather(-1, preferred) - p.gather(-1, preferred)
    assert figures.rms_probability_change == pytest.approx(float(change.square().mean().sqrt()), rel=1e-12)
    nll_ref, nll_cand = -p[rows, targets[rows]].log().mean(), -q[rows, targets[rows]].log().mean()
    assert figures.perplexity is not None
    assert figures.perplexity.targets == rows.numel()
    assert figures.perplexity.ratio == pytest.approx(float((nll_cand - nll_ref).exp()), rel=1e-12)
    assert figures.perplexity.ratio_se is not None
    change = q[rows, targets[rows]] - p[rows, targets[rows]]
    assert figures.perplexity.rms_probability_change == pytest.approx(
        float(change.square().mean().sqrt()), rel=1e-12
    )
    worst = kl.argsort(descending=True)[:10].tolist()
    assert [item.position for item in figures.worst] == worst
    assert [item.kl for item in figures.worst] == pytest.approx(kl[worst].tolist(), rel=1e-11)


def test_identical_logits_are_at_no_distance() -> None:
    ref = stored(logits_of(20, 40))
    figures = compare(ref, ref, targets=torch.zeros(20, dtype=torch.int32))
    assert (figures.kl.max, figures.kl_reverse.max, figures.total_variation.max) == (0.0, 0.0, 0.0)
    assert figures.js.max == pytest.approx(0.0, abs=1e-30)
    assert (figures.top1_agreement, figures.top_k_overlap, figures.rms_probability_change) == (1.0, 1.0, 0.0)
    assert figures.flips.count == 0
    assert figures.perplexity is not None
    assert (figures.perplexity.ratio, figures.perplexity.ratio_se) == (1.0, 0.0)


def test_blocks_do_not_show_in_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    ref, sigma = logits_of(37, 20), torch.rand(37, dtype=torch.float64)
    ref[5] = torch.nan
    cand = stored(ref + 0.3)
    cand[11, 3] = torch.nan
    options = {"targets": torch.arange(37) % 20, "groups": torch.arange(37) // 5, "logit_sigma": sigma}
    whole = compare(ref, cand, **options)
    monkeypatch.setattr(distributions, "_BLOCK_ELEMENTS", 20 * 4)
    assert compare(ref, cand, **options) == whole


def test_the_noise_floor_predicts_the_kl_of_storage_rounding() -> None:
    exact = logits_of(400, 300, scale=5.0)
    one_side = compare(exact, stored(exact))
    assert one_side.kl.mean == pytest.approx(one_side.kl_noise_floor, rel=0.15)
    assert one_side.kl_storage_floor == one_side.kl_noise_floor
    # Two independent roundings of nearly the same logits: twice the variance.
    noise = logits_of(400, 300, seed=3, scale=0.05)
    both = compare(stored(exact), stored(exact + noise))
    assert both.kl_noise_floor == pytest.approx(2 * one_side.kl_noise_floor, rel=0.05)


def test_the_noise_floor_predicts_the_kl_of_given_noise() -> None:
    ref = logits_of(2000, 50)
    figures = compare(ref, ref + logits_of(2000, 50, seed=1, scale=0.01), logit_sigma=0.01)
    assert figures.kl.mean == pytest.approx(figures.kl_noise_floor, rel=0.05)
    # What storing the candidate in bfloat16 makes of it is told apart.
    assert figures.kl_storage_floor == pytest.approx(compare(ref, ref).kl_noise_floor, rel=0.01)


def test_errors_of_means_are_clustered_by_sequence() -> None:
    ref = logits_of(40, 20).repeat_interleave(25, dim=0)
    cand = ref + logits_of(40, 20, seed=1, scale=1.0).repeat_interleave(25, dim=0)
    sequences = torch.arange(40).repeat_interleave(25)
    clustered, naive = compare(ref, cand, groups=sequences), compare(ref, cand)
    once = compare(ref[::25], cand[::25])
    assert clustered.kl_se == pytest.approx(once.kl_se)
    assert clustered.top1_agreement_se == pytest.approx(once.top1_agreement_se)
    assert once.kl_se is not None
    assert naive.kl_se == pytest.approx(once.kl_se / 5, rel=0.05)
    assert compare(ref, cand, groups=torch.zeros(1000, dtype=torch.int64)).kl_se is None


def test_the_margins_of_flipped_tokens_are_the_references_own() -> None:
    ref = torch.tensor([[3.0, 1.0, 0.0], [2.0, 1.75, 0.0], [1.0, 4.0, 2.0]], dtype=torch.float64)
    cand = ref.clone()
    cand[0, 2], cand[1, 1] = 9.0, 2.5
    figures = compare(ref, cand, logit_sigma=0.25, top_k=2)
    sigma = math.sqrt(2) * 0.25
    assert [(t.position, t.ref, t.cand, t.margin, t.sigmas) for t in figures.flips.tokens] == [
        (0, 0, 2, 3.0, pytest.approx(3.0 / sigma)),
        (1, 0, 1, 0.25, pytest.approx(0.25 / sigma)),
    ]
    assert figures.margin_p50 == 2.0


def test_a_reference_that_was_stored_narrower_than_its_dtype_can_be_declared() -> None:
    rounded = stored(logits_of(30, 50))
    assert compare(rounded.double(), rounded, ref_format=BF16) == compare(rounded, rounded)
    assert compare(rounded.double(), rounded).kl_noise_floor < compare(rounded, rounded).kl_noise_floor


def test_sigma_may_be_one_number_one_a_position_or_one_a_logit() -> None:
    ref = logits_of(10, 20)
    cand = ref + logits_of(10, 20, seed=1, scale=0.5)
    one = compare(ref, cand, logit_sigma=0.5)
    assert one == compare(ref, cand, logit_sigma=torch.full((10,), 0.5))
    assert one == compare(ref, cand, logit_sigma=torch.full((10, 20), 0.5, dtype=torch.float64))
    assert one.kl_noise_floor == pytest.approx(25 * compare(ref, cand, logit_sigma=0.1).kl_noise_floor)


def close_races(positions: int, vocabulary: int, greatest_margin: float) -> torch.Tensor:
    """Logits whose runner-up is everywhere within `greatest_margin` of the first token."""
    ref = logits_of(positions, vocabulary, scale=2.0)
    margin = torch.rand(positions, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    first, second = ref.topk(2).indices.T
    rows = torch.arange(positions)
    ref[rows, second] = ref[rows, first] - greatest_margin * margin
    return ref


def test_flips_by_storage_rounding_are_all_explained_but_their_number_is_not_judged() -> None:
    ref = close_races(3000, 50, greatest_margin=0.08)
    figures = compare(ref, stored(ref))
    assert figures.flips.count > 50
    assert figures.flips.explained == figures.flips.count
    assert figures.flips.unexplained_positions == ()
    assert figures.flips.p_value is None


def test_flips_by_declared_noise_are_as_many_as_expected() -> None:
    ref = close_races(3000, 50, greatest_margin=0.08)
    figures = compare(ref, ref + 0.02 * logits_of(3000, 50, seed=8, scale=1.0), logit_sigma=0.02)
    assert figures.flips.explained == figures.flips.count > 50
    assert figures.flips.p_value is not None
    assert figures.flips.p_value > 1e-3
    assert figures.flips.count == pytest.approx(figures.flips.expected, rel=0.2)


def test_more_flips_than_noise_gives_are_seen_though_each_could_be_explained() -> None:
    ref = logits_of(500, 10)
    first, second = ref.topk(2).indices.T
    rows = torch.arange(500)
    ref[rows, second] = ref[rows, first] - 0.04
    cand = ref.clone()
    cand[rows, second] += 0.05  # always the same way: no noise
    figures = compare(ref, cand, logit_sigma=0.02)
    assert figures.flips.explained == figures.flips.count == 500
    assert figures.flips.p_value is not None
    assert figures.flips.p_value < 1e-12


def test_a_flip_to_a_hopeless_token_is_not_explained_by_a_close_runner_up() -> None:
    ref = torch.tensor([[5.0, 5.0, -3.0], [5.0, 1.0, 0.0]], dtype=torch.float64)
    cand = torch.tensor([[5.0, 5.0, 6.0], [5.0, 1.0, 0.0]], dtype=torch.float64)
    figures = compare(ref, cand, top_k=1)
    assert (figures.flips.count, figures.flips.explained) == (1, 0)
    assert figures.flips.unexplained_positions == (0,)


def test_a_candidate_without_a_distribution_is_as_far_as_can_be() -> None:
    ref, cand = logits_of(4, 10), logits_of(4, 10)
    cand[1, 3], cand[2, 0], cand[3] = torch.nan, torch.inf, -torch.inf
    # Noise enough to explain any margin: it must not explain these.
    figures = compare(ref, cand, targets=torch.zeros(4, dtype=torch.int64), logit_sigma=100.0)
    assert (figures.positions, figures.undefined) == (4, 3)
    assert (figures.kl.p50, figures.kl.max, figures.kl_reverse.mean) == (math.inf, math.inf, math.inf)
    assert (figures.js.max, figures.total_variation.mean) == (math.log(2), 0.75)
    assert (figures.top1_agreement, figures.top_k_overlap) == (0.25, 0.25)
    assert (figures.flips.count, figures.flips.explained) == (3, 0)
    assert figures.flips.unexplained_positions == (1, 2, 3)
    assert figures.perplexity is not None
    assert figures.perplexity.ratio == math.inf


def test_a_token_that_only_the_candidate_masks_is_reported_at_its_position() -> None:
    ref, cand = logits_of(6, 10), logits_of(6, 10)
    cand[4, 2] = -torch.inf
    figures = compare(ref, cand)
    assert (figures.worst[0].position, figures.worst[0].kl) == (4, math.inf)
    assert figures.kl.p50 == 0.0


def test_tokens_that_both_sides_mask_change_nothing() -> None:
    ref = logits_of(30, 20)
    cand = ref + logits_of(30, 20, seed=1, scale=0.1)
    masked = torch.full((30, 15), -torch.inf, dtype=torch.float64)
    wide_ref, wide_cand = torch.cat((ref, masked), dim=1), torch.cat((cand, masked), dim=1)
    narrow, wide = compare(ref, cand).to_json(), compare(wide_ref, wide_cand).to_json()
    assert narrow["kl"] == pytest.approx(wide["kl"], rel=1e-12)
    assert (narrow["flips"]["count"], narrow["flips"]["explained"]) == (
        wide["flips"]["count"],
        wide["flips"]["explained"],
    )
    assert narrow["flips"]["expected"] == pytest.approx(wide["flips"]["expected"], rel=1e-12)
    assert narrow["kl_noise_floor"] == pytest.approx(wide["kl_noise_floor"], rel=1e-12)


def test_positions_without_a_distribution_in_the_reference_are_left_out_by_name() -> None:
    ref, cand = logits_of(5, 10), logits_of(5, 10) + logits_of(5, 10, seed=1, scale=0.1)
    ref[0], ref[2] = torch.nan, -torch.inf
    figures = compare(ref, cand, targets=torch.zeros(5, dtype=torch.int64), groups=torch.arange(5))
    kept = compare(ref[[1, 3, 4]], cand[[1, 3, 4]])
    assert figures.positions == 3
    assert figures.kl == kept.kl
    assert sorted(item.position for item in figures.worst) == [1, 3, 4]


def test_targets_that_are_all_absent_leave_nothing_to_say_of_them() -> None:
    figures = compare(logits_of(3, 10), logits_of(3, 10), targets=torch.full((3,), -100))
    assert figures.perplexity is None


def test_figures_are_json_even_where_they_are_infinite() -> None:
    ref, cand = logits_of(3, 10), logits_of(3, 10)
    cand[0] = torch.nan
    text = json.dumps(compare(ref, cand, targets=torch.tensor([1, -100, 2])).to_json(), allow_nan=False)
    loaded = json.loads(text)
    assert loaded["kl"]["max"] == "inf"
    assert loaded["flips"]["unexplained_positions"] == [0]
    assert loaded["worst"][0] == {"position": 0, "kl": "inf"}
    assert set(loaded["kl"]) == {"mean", "p50", "p90", "p99", "p999", "max"}


def test_a_vocabulary_of_one_token_is_no_special_case() -> None:
    figures = compare(torch.zeros(2, 1), torch.ones(2, 1), top_k=1)
    assert (figures.kl.max, figures.flips.count, figures.flips.expected) == (0.0, 0, 0.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cand": torch.zeros(4, 9)}, r"\[4, 8\].*\[4, 9\]"),
        ({"ref": torch.zeros(2, 4, 8), "cand": torch.zeros(2, 4, 8)}, "Flatten batch and sequence"),
        ({"ref": torch.zeros(0, 8), "cand": torch.zeros(0, 8)}, "nothing to compare"),
        ({"top_k": 9}, r"top_k is 9.*vocabulary's 8"),
        ({"top_k": 0}, "top_k is 0"),
        ({"groups": torch.zeros(3, dtype=torch.int64)}, r"groups.*\[3\].*4 positions"),
        ({"targets": torch.zeros(4)}, r"targets is torch\.float32"),
        ({"targets": torch.tensor([0, 8, -100, 1])}, "target 8 is no token of a vocabulary of 8"),
        ({"logit_sigma": torch.ones(8)}, r"logit_sigma has shape \[8\]"),
        ({"ref": torch.zeros(4, 8, dtype=torch.int64)}, r"ref is torch\.int64"),
        ({"cand": torch.zeros(4, 8, dtype=torch.int64)}, r"cand is torch\.int64"),
        ({"ref": torch.full((4, 8), math.nan)}, "no distribution at any of its 4 positions"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_what_can_not_be_compared_is_refused_with_its_values(change: dict[str, Any], message: str) -> None:
    arguments = {"ref": torch.zeros(4, 8), "cand": torch.zeros(4, 8), "cand_format": BF16, **change}
    with pytest.raises(ComparisonError, match=message):
        compare_logits(**arguments)
