"""What a correction must leave, and large edges."""

import pytest
import torch

from tests.checks.signatures.build import BF16, kind, named, subject, values
from validator.checks.signatures import Subject, edge_signature
from validator.checks.signatures.subject import THINNED
from validator.numerics.ulp import ulp


def test_a_correction_that_leaves_most_of_the_difference_explains_nothing() -> None:
    y = values()
    cand = y.clone()
    cand[0, 0, 0] += 30 * float(ulp(y[0, 0, 0], BF16))
    edge = subject(y, cand, noise=20)
    assert int(edge.outside.sum()) == 1
    assert edge.residual(1.001 * y, slack=2) is None


def test_a_factor_that_few_elements_show_is_one_where_rounding_leaves_no_more() -> None:
    y = values(64, 16, 32)
    assert kind(y, 1.0005 * y, noise=0.0) == "factor"


def test_padding_is_left_out() -> None:
    y = values()
    cand = 1.5 * y
    judged = torch.ones(y.shape, dtype=torch.bool)
    judged[:, 12:] = False
    cand[:, 12:] = 77.0
    assert kind(y, cand, judged=judged) == "factor"
    assert kind(y, cand) != "factor"


LARGE = (1, 3 * THINNED // 1024, 1024)


def test_a_large_edge_is_refuted_on_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    residual = Subject.residual

    def counted(edge: Subject, *args: object, **options: object) -> float | None:
        sizes.append(edge.exact.numel())
        return residual(edge, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Subject, "residual", counted)
    y = values(*LARGE)
    edge_signature(subject(y, y + 0.3 * values(*LARGE, seed=1)))
    assert sizes
    assert max(sizes) <= THINNED


def test_a_large_edge_is_held_to_what_its_part_shows() -> None:
    y = values(*LARGE)
    assert named(y, 1.5 * y) == ("factor", {"factor": pytest.approx(1.5, rel=1e-3)})
    cand = 1.5 * y
    cand[0, 1, 5] = 3.0  # in no row of the part
    assert kind(y, cand) is None


def test_a_large_edge_of_which_little_is_guilty() -> None:
    y = values(*LARGE)
    cand = y.clone()
    cand[0, 1001] *= 2
    assert named(y, cand) == ("factor", {"factor": pytest.approx(2, rel=1e-2), "within": "token 1001"})
