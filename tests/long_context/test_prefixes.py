"""Two texts that share a prefix may differ by the noise that each of their positions has."""

import pytest
import torch
from torch import Tensor

from validator.long_context.noise import Band
from validator.long_context.prefixes import SharedPrefix, judge_shared_prefix

PREFIX, END, VOCABULARY = 8, 16, 64
SIGMA = torch.ones(PREFIX + END, dtype=torch.float64)
SIGMA[PREFIX : PREFIX + 4] = 0.01  # quiet positions, a hundred times below the median
SIGMA[-1] = 100.0  # and a loud one


def shared(apart: Tensor) -> SharedPrefix:
    """Return texts whose logits differ, with and without reuse, by so much at each position."""
    generator = torch.Generator().manual_seed(0)
    again = torch.randn(END, VOCABULARY, generator=generator)
    signs = torch.randn(END, VOCABULARY, generator=generator).sign()
    return SharedPrefix(
        prefix=torch.arange(PREFIX),
        tokens=(torch.arange(END), torch.arange(END) + 30),
        again=(again, again),
        reused=(again, again + apart[:, None] * signs),
        changed=(False, None),
    )


def judged(apart: Tensor, *, has_chosen: bool = False) -> tuple[tuple[str, ...], list[list[int]]]:
    """Return what is wrong, and which texts' noise was measured."""
    asked = []

    def measured(text: Tensor) -> Band:
        asked.append(text.tolist())
        return Band(logits=torch.zeros(len(text), VOCABULARY), sigma=SIGMA, has_chosen=has_chosen)

    return judge_shared_prefix(shared(apart), measured), asked


def test_equal_bits_are_right_and_need_no_noise() -> None:
    assert judged(torch.zeros(END)) == ((), [])


def test_differences_within_each_position_s_own_noise_are_right() -> None:
    # The last is a hundred times what the median position may differ by.
    problems, asked = judged(2.0 * SIGMA[PREFIX:])
    assert problems == ()
    assert asked == [[*range(PREFIX), *range(30, 30 + END)]]


def test_a_difference_beyond_a_quiet_position_s_noise_is_found_below_the_median_s() -> None:
    apart = torch.zeros(END)
    apart[2] = 1.0
    (text,), _ = judged(apart)
    assert "text 2, which goes on from the cache of a shared prefix of 8 tokens, parts from" in text
    assert "first at its token 2: by 1, and two runs' rounding makes 0.0141" in text


@pytest.mark.parametrize(("positions", "is_wrong"), [(1, False), (9, True)])
def test_behind_a_router_single_positions_may_part(positions: int, is_wrong: bool) -> None:
    apart = torch.zeros(END)
    apart[4 : 4 + positions] = 50.0
    assert bool(judged(apart, has_chosen=True)[0]) is is_wrong
