import torch

from validator.numerics.shrinkage import SHRINKAGE, shrunk_sigma


def test_a_row_of_one_variance_keeps_it() -> None:
    variance = torch.full((3, 5), 4.0, dtype=torch.float64)
    sigma = shrunk_sigma(variance, torch.full_like(variance, 0.5), 12)
    torch.testing.assert_close(sigma, torch.full_like(variance, 2.0))


def test_an_element_that_came_out_quiet_gets_its_share_of_the_rows_mean() -> None:
    variance = torch.tensor([[0.0, 2.0]], dtype=torch.float64)
    sigma = shrunk_sigma(variance, torch.ones_like(variance), 12)
    mean = 1.0
    torch.testing.assert_close(sigma[0, 0].item() ** 2, SHRINKAGE * mean / (12 + SHRINKAGE))
    torch.testing.assert_close(sigma[0, 1].item() ** 2, (12 * 2.0 + SHRINKAGE * mean) / (12 + SHRINKAGE))


def test_errors_are_averaged_in_units_of_the_elements_own_size() -> None:
    unit = torch.tensor([[1.0, 8.0]], dtype=torch.float64)
    sigma = shrunk_sigma(unit.square() * 3, unit, 8)
    torch.testing.assert_close(sigma, unit * 3**0.5)


def test_nan_counts_as_no_error_and_a_scalar_is_its_own_row() -> None:
    assert shrunk_sigma(torch.tensor(4.0).double(), torch.tensor(1.0).double(), 8).item() == 2.0
    nan = torch.tensor([[torch.nan, 1.0]], dtype=torch.float64)
    assert shrunk_sigma(nan, torch.ones_like(nan), 8).isfinite().all()


def test_an_infinite_variance_stays_infinite_and_leaves_its_row_alone() -> None:
    variance = torch.tensor([[torch.inf, 1.0, 1.0]], dtype=torch.float64)
    sigma = shrunk_sigma(variance, torch.ones_like(variance), 12)
    assert sigma[0, 0] == torch.inf
    torch.testing.assert_close(sigma[0, 1:], torch.ones(2, dtype=torch.float64))
