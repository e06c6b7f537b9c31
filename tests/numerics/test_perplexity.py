import math

import pytest
import torch

from validator.numerics.perplexity import compare_perplexity


def nll(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_ratio_is_that_of_the_two_perplexities() -> None:
    figures = compare_perplexity(nll_ref=nll(1.0, 2.0, 3.0), nll_cand=nll(1.0, 2.0, 3.6), groups=None)
    assert figures is not None
    assert (figures.targets, figures.ref) == (3, pytest.approx(math.exp(2.0)))
    assert figures.ratio == pytest.approx(math.exp(0.2)) == pytest.approx(figures.cand / figures.ref)
    # Independent positions: the usual standard error of the mean of (0, 0, 0.6), times the ratio.
    assert figures.ratio_se == pytest.approx(math.exp(0.2) * 0.6 / math.sqrt(3) / math.sqrt(3))


def test_positions_that_repeat_each_other_do_not_make_the_ratio_more_certain() -> None:
    difference = torch.randn(20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    once = compare_perplexity(nll_ref=torch.zeros_like(difference), nll_cand=difference, groups=None)
    repeated = difference.repeat_interleave(50)
    sequences = torch.arange(20).repeat_interleave(50) * 7 - 3
    clustered = compare_perplexity(nll_ref=torch.zeros_like(repeated), nll_cand=repeated, groups=sequences)
    naive = compare_perplexity(nll_ref=torch.zeros_like(repeated), nll_cand=repeated, groups=None)
    assert once is not None
    assert clustered is not None
    assert naive is not None
    assert clustered.ratio_se == pytest.approx(once.ratio_se)
    assert naive.ratio_se == pytest.approx(once.ratio_se / math.sqrt(50), rel=0.05)


def test_one_sequence_alone_has_no_standard_error() -> None:
    figures = compare_perplexity(nll_ref=nll(1.0, 2.0), nll_cand=nll(1.5, 2.0), groups=torch.tensor([4, 4]))
    assert figures is not None
    assert figures.ratio_se is None


def test_a_target_that_the_candidate_excludes_makes_the_ratio_infinite() -> None:
    figures = compare_perplexity(nll_ref=nll(1.0, 2.0), nll_cand=nll(1.0, math.inf), groups=None)
    assert figures is not None
    assert (figures.cand, figures.ratio, figures.ratio_se) == (math.inf, math.inf, None)


def test_without_targets_there_is_no_perplexity() -> None:
    assert compare_perplexity(nll_ref=nll(), nll_cand=nll(), groups=None) is None
