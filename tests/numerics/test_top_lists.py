import math

import pytest
import torch

from validator.errors import ComparisonError
from validator.numerics.top_lists import ABSENT, TopLogprobs


def test_rows_of_unequal_length_are_filled_up_and_ranked() -> None:
    made = TopLogprobs.from_rows([{7: -1.0, 3: -0.7}, {5: -0.2}])
    assert made.lengths.tolist() == [2, 1]
    tokens, logprobs = made.ranked()
    assert tokens.tolist() == [[3, 7], [5, ABSENT]]
    assert logprobs.tolist() == [[-0.7, -1.0], [-0.2, -math.inf]]
    assert made.cap().tolist() == [-1.0, -0.2]


def test_a_sampled_token_that_was_appended_does_not_lower_the_cap() -> None:
    rows = [{1: -0.7, 2: -1.2, 99: -8.0}]
    assert TopLogprobs.from_rows(rows, top=2).cap().tolist() == [-1.2]
    assert TopLogprobs.from_rows(rows).cap().tolist() == [-8.0]


def test_the_lower_token_comes_first_among_equals_as_argmax_has_it() -> None:
    tokens, _ = TopLogprobs.from_rows([{9: -1.5, 4: -1.5, 6: -1.0}]).ranked()
    assert tokens.tolist() == [[6, 4, 9]]


def test_a_masked_token_is_listed_before_what_is_absent() -> None:
    made = TopLogprobs.from_rows([{4: -math.inf, 2: -0.1}, {1: -0.5, 2: -1.5, 3: -2.5}])
    assert made.ranked()[0][0].tolist() == [2, 4, ABSENT]
    assert made.cap()[0] == -math.inf


def test_the_greatest_of_logits_are_those_of_their_softmax() -> None:
    logits = torch.randn(4, 30, generator=torch.Generator().manual_seed(0))
    made = TopLogprobs.from_logits(logits, 30)
    tokens, logprobs = made.ranked()
    assert torch.equal(logprobs, logits.double().log_softmax(-1).gather(-1, tokens))
    assert torch.allclose(logprobs.exp().sum(-1), torch.ones(4, dtype=torch.float64))


def test_float32_logprobs_of_a_whole_vocabulary_are_within_the_default_tolerance() -> None:
    logits = 20 * torch.randn(200, 500, generator=torch.Generator().manual_seed(1))
    greatest = logits.log_softmax(-1).topk(500)
    TopLogprobs(tokens=greatest.indices, logprobs=greatest.values)
    exact = logits.double().log_softmax(-1).gather(-1, greatest.indices)
    large = exact > -64
    assert float((exact - greatest.values)[large].abs().max()) < 1e-5


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([{0: -0.1, 1: -0.2}], {}, "position 0 add up to 1.7.*these are logits"),
        ([{0: -0.69, 1: -0.69}], {"tolerance": 1e-4}, "above 1 by more than the tolerance 0.0001"),
        ([{0: -0.5}, {0: math.nan}], {}, r"position 1 has log-probabilities \[nan\]"),
        ([{0: -math.inf}], {}, "one of them must be finite"),
        ([{-5: -1.0}], {}, "token -5 is no token"),
        ([{1: -1.0}], {"top": 0}, "top is 0"),
        ([{1: -1.0}], {"tolerance": -1.0}, r"tolerance is -1\.0"),
        ([], {}, r"shape \[0, 0\]"),
        ([{1: -1.0}, {}], {}, "position 1 has log-probabilities"),
    ],
    ids=["logits", "coarse", "nan", "masked", "negative-token", "top", "tolerance", "none", "empty-row"],
)
def test_what_is_no_list_of_logprobs_is_refused(
    rows: list[dict[int, float]], options: dict[str, float], message: str
) -> None:
    with pytest.raises(ComparisonError, match=message):
        TopLogprobs.from_rows(rows, **options)


def test_coarse_rounding_is_legal_where_it_is_declared() -> None:
    TopLogprobs.from_rows([{0: -0.69, 1: -0.69}], tolerance=5e-3)


def test_a_token_listed_twice_is_refused_with_its_row() -> None:
    with pytest.raises(ComparisonError, match=r"position 0 lists a token twice: \[3, 3\]"):
        TopLogprobs(tokens=torch.tensor([[3, 3]]), logprobs=torch.tensor([[-1.0, -2.0]]))
    with pytest.raises(ComparisonError, match=r"tokens are torch\.float32"):
        TopLogprobs(tokens=torch.ones(1, 1), logprobs=-torch.ones(1, 1))
    with pytest.raises(ComparisonError, match=r"tokens have shape \[1, 2\] and logprobs \[2, 1\]"):
        TopLogprobs(tokens=torch.tensor([[3, 4]]), logprobs=torch.tensor([[-1.0], [-2.0]]))
