import math

import pytest
import torch
from torch import Tensor

from validator.errors import MismatchError, UsageError
from validator.swapping.logits import Logits, positions_of, stitched
from validator.swapping.metrics import Kind, Metric, Scale, parse_metric
from validator.swapping.noise import explained

B, S, V = 2, 6, 11
IDS = torch.arange(B * S).remainder(V).view(B, S)


def logits(seed: int = 0, *, ids: Tensor = IDS, mask: Tensor | None = None) -> Logits:
    values = 2 * torch.randn(B, S, V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Logits(values=values, ids=ids, mask=mask)


def changed(run: Logits, places: dict[tuple[int, int, int], float]) -> Logits:
    values = run.values.clone()
    for place, by in places.items():
        values[place] += by
    return Logits(values=values, ids=run.ids, mask=run.mask)


def scale(text: str, ref: Logits, cand: Logits) -> Scale:
    return Scale(parse_metric(text), ref=ref, cand=cand, positions=positions_of(ref, cand))


def test_kl_is_that_of_the_definition() -> None:
    ref, cand = logits(0), logits(1)
    p, q = ref.values.log_softmax(-1), cand.values.log_softmax(-1)
    kl = (p.exp() * (p - q)).sum(-1)
    assert scale("kl", ref, cand).value(cand) == pytest.approx(float(kl.mean()), rel=1e-12)
    assert scale("kl-max", ref, cand).value(cand) == pytest.approx(float(kl.max()), rel=1e-12)


@pytest.mark.parametrize("text", ["kl", "kl-max", "perplexity", "flips"])
def test_the_reference_itself_is_nowhere_from_the_reference(text: str) -> None:
    ref = logits()
    assert scale(text, ref, logits(1)).value(ref) == 0.0


def test_perplexity_counts_in_the_direction_of_the_candidate() -> None:
    ref, cand = logits(0), logits(1)
    forth, back = scale("perplexity", ref, cand), scale("perplexity", cand, ref)
    ids = IDS[:, 1:, None]
    means = [float(-run.values[:, :-1].log_softmax(-1).gather(-1, ids).mean()) for run in (ref, cand)]
    assert forth.value(cand) == pytest.approx(abs(math.expm1(means[1] - means[0])), rel=1e-9)
    assert forth.value(cand) > 0
    assert back.value(ref) > 0


def test_a_flip_is_counted_and_its_margin_measured() -> None:
    ref = logits()
    best, second = ref.values[1, 3].topk(2).indices.tolist()
    margin = float(ref.values[1, 3, best] - ref.values[1, 3, second])
    cand = changed(ref, {(1, 3, second): 1.5 * margin})
    assert scale("flips", ref, cand).value(cand) == 1.0
    token = scale("token:1,3", ref, cand)
    assert token.tokens == (best, second)
    assert token.flip_limit == pytest.approx(margin)
    assert token.value(cand) == pytest.approx(1.5 * margin)
    assert token.value(changed(ref, {(1, 3, best): -0.25 * margin})) == pytest.approx(0.25 * margin)


def test_a_run_without_a_distribution_is_infinitely_far() -> None:
    ref = logits()
    broken = changed(ref, {(0, 2, 4): math.nan})
    assert scale("kl", ref, broken).value(broken) == math.inf
    assert scale("flips", ref, broken).value(broken) == 1.0


def test_padding_is_not_compared() -> None:
    mask = torch.ones(B, S, dtype=torch.bool)
    mask[0, :2] = False
    ref = logits(mask=mask)
    cand = changed(ref, {(0, 1, 4): 30.0})
    assert positions_of(ref, cand).chosen.sum() == B * S - 2
    assert scale("kl", ref, cand).value(cand) == 0.0


def test_text_that_a_run_wrote_itself_is_compared_up_to_where_it_parts() -> None:
    ids = IDS.clone()
    ids[1, 4] += 1
    positions = positions_of(logits(), logits(ids=ids))
    assert positions.chosen.tolist() == [[True] * S, [True] * 4 + [False] * 2]


def parted(run: Logits, *, tokens: int = S) -> Logits:
    """Return a run that reads another token at position 4 of the second sequence; behind it it is far off."""
    ids, values = IDS.clone(), run.values.clone()
    ids[1, 4] += 1
    values[1, 4:] *= -5
    return Logits(values=values[:, :tokens], ids=ids[:, :tokens], mask=None)


@pytest.mark.parametrize("text", ["kl", "kl-max", "perplexity", "flips"])
@pytest.mark.parametrize("tokens", [S, S - 1])
def test_a_hybrid_that_writes_other_text_is_measured_up_to_where_it_parts(text: str, tokens: int) -> None:
    ref, cand = logits(), logits(1)
    measured = scale(text, ref, cand)
    assert measured.value(parted(ref, tokens=tokens)) == 0.0
    other = changed(ref, {(1, 3, int(ref.values[1, 3].argmin())): 30.0})
    assert measured.value(parted(other, tokens=tokens)) != 0.0


def test_a_token_behind_other_text_is_not_asked_about() -> None:
    ref = logits()
    second = int(ref.values[1, 5].topk(2).indices[1])
    cand = changed(ref, {(1, 5, second): 10.0})
    token = scale("token:1,5", ref, cand)
    assert token.value(parted(cand)) == 0.0
    assert token.value(cand) == pytest.approx(10.0)
    before = changed(ref, {(1, 3, int(ref.values[1, 3].argmin())): 30.0})
    row = scale("token:1,3", ref, before)
    assert row.value(parted(before)) == pytest.approx(row.value(before))


def test_noise_that_changes_the_text_explains_no_more_than_what_it_does_before_that() -> None:
    ref, cand = logits(), logits(1)
    generator = torch.Generator().manual_seed(2)
    noisy = [
        Logits(
            values=ref.values + 0.01 * torch.randn(B, S, V, generator=generator, dtype=torch.float64),
            ids=IDS,
            mask=None,
        )
        for _ in range(8)
    ]
    with_one_parted = [parted(noisy[0]), *noisy[1:]]
    for text in ("kl", "kl-max", "perplexity", "token:1,5"):
        measured = scale(text, ref, cand)
        known = explained(measured, noisy)
        assert explained(measured, with_one_parted) == pytest.approx(known, rel=0.5)
        assert measured.value(cand) > known


def test_steps_stand_one_after_the_other() -> None:
    whole = logits()
    mask = torch.ones(B, S, dtype=torch.int64)
    mask[0, 0] = 0
    calls = [
        (
            {"input_ids": IDS[:, part], "attention_mask": mask[:, : part.stop]},
            {"logits": whole.values[:, part]},
        )
        for part in (slice(0, 4), slice(4, 5), slice(5, 6))
    ]
    joined = stitched(calls)
    assert joined.ids is not None
    assert joined.mask is not None
    assert torch.equal(joined.values, whole.values)
    assert torch.equal(joined.ids, IDS)
    assert torch.equal(joined.mask, mask.bool())


def test_of_a_prompt_whose_last_logits_alone_are_kept_the_last_token_counts() -> None:
    whole = logits()
    calls = [
        ({"input_ids": IDS[:, :4]}, {"logits": whole.values[:, 3:4]}),
        ({"input_ids": IDS[:, 4:5]}, {"logits": whole.values[:, 4:5]}),
    ]
    joined = stitched(calls)
    assert joined.ids is not None
    assert torch.equal(joined.ids, IDS[:, 3:5])


def test_what_returns_no_logits_is_refused() -> None:
    with pytest.raises(MismatchError, match="and the model returned last_hidden_state"):
        stitched([({}, {"last_hidden_state": torch.zeros(2, 3)})])


@pytest.mark.parametrize(
    ("text", "metric"),
    [
        ("kl", Metric(kind=Kind.KL)),
        ("token:7", Metric(kind=Kind.TOKEN, position=(0, 7))),
        ("token:1,7", Metric(kind=Kind.TOKEN, position=(1, 7))),
    ],
)
def test_metrics_are_read(text: str, metric: Metric) -> None:
    assert parse_metric(text) == metric


@pytest.mark.parametrize("text", ["", "KL", "token", "token:", "token:-1", "token:1.2", "mse"])
def test_what_is_no_metric_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="there are kl, kl-max, perplexity, flips and token:POSITION"):
        parse_metric(text)


def test_a_token_that_did_not_flip_is_refused_with_those_that_did() -> None:
    ref = logits()
    cand = changed(ref, {(1, 3, int(ref.values[1, 3].argmin())): 30.0})
    with pytest.raises(UsageError, match=r"both sides prefer token \d+ there; flipped are 1,3$"):
        scale("token:0,0", ref, cand)
    with pytest.raises(UsageError, match=r"no such position among the 12 .* flipped are 1,3$"):
        scale("token:99", ref, cand)


def test_perplexity_needs_tokens() -> None:
    ref = Logits(values=logits().values, ids=None, mask=None)
    with pytest.raises(UsageError, match="--metric perplexity needs input_ids"):
        scale("perplexity", ref, ref)
