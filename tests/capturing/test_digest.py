"""Statistics and hashes against their definitions."""

import hashlib
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from validator.capturing.digest import checksum, row_hashes, statistics
from validator.capturing.formats_hdf5 import element_bytes


@given(st.lists(st.floats(width=32), max_size=40))
def test_statistics_are_those_of_the_finite_elements(values):
    found = statistics(torch.tensor(values, dtype=torch.float32))
    finite = [v for v in values if math.isfinite(v)]
    assert found.nan == sum(math.isnan(v) for v in values)
    assert found.inf == sum(math.isinf(v) for v in values)
    if not finite:
        assert all(math.isnan(x) for x in (found.min, found.max, found.mean, found.rms))
        return
    assert (found.min, found.max) == (min(finite), max(finite))
    largest = max(map(abs, finite))
    assert found.mean == pytest.approx(math.fsum(finite) / len(finite), rel=1e-12, abs=1e-12 * largest)
    assert found.rms == pytest.approx(math.sqrt(math.fsum(v * v for v in finite) / len(finite)), rel=1e-6)


def test_statistics_add_up_over_blocks():
    values = torch.arange(300_000, dtype=torch.float64)
    found = statistics(values)
    count = len(values)
    assert found.mean == pytest.approx((count - 1) / 2, rel=1e-12)
    assert found.rms == pytest.approx(math.sqrt((count - 1) * (2 * count - 1) / 6), rel=1e-12)


def test_squares_of_large_numbers_do_not_overflow():
    found = statistics(torch.tensor([1e300, -1e300], dtype=torch.float64))
    assert found.rms == pytest.approx(1e300)
    assert found.mean == 0.0


@pytest.mark.parametrize(
    "dtype", [torch.complex64, torch.bits8, torch.uint4, torch.float4_e2m1fn_x2], ids=str
)
def test_numbers_without_an_order_have_no_statistics(dtype):
    assert statistics(torch.zeros(8, dtype=torch.uint8).view(dtype)) is None


def test_an_equal_row_has_an_equal_hash_wherever_it_stands():
    rows = torch.randn(5, 3, dtype=torch.bfloat16)
    shuffled = rows[[4, 0, 3, 1, 2]]
    hashes, whole = row_hashes(rows)
    moved, other = row_hashes(shuffled)
    assert [moved.index(h) for h in hashes] == [1, 3, 4, 2, 0]
    assert whole != other
    assert whole == checksum(element_bytes(rows))
    assert hashes[2] == hashlib.blake2b(element_bytes(rows[2]), digest_size=16).hexdigest()


def test_a_vector_is_one_row():
    vector = torch.arange(4.0)
    assert row_hashes(vector) == ((checksum(element_bytes(vector)),), checksum(element_bytes(vector)))
