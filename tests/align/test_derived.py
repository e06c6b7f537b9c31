"""Derived tensors: what they read as, and checksums that are true and asked for late."""

from dataclasses import replace

import pytest
import torch

from tests.align.build import tensor_ref
from validator.align.derived import (
    concatenated,
    joined_parameter,
    selected_parameter,
    sliced,
    sliced_parameter,
    stacked,
    stacked_parameter,
    summed,
    taken,
    taken_rows,
    transposed,
)
from validator.capturing.digest import row_hashes
from validator.capturing.records import Parameter, TensorRef
from validator.errors import CaptureError


def random(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


X, Y = random(4, 6), random(4, 6, seed=1)

DERIVED = {
    "slice": (lambda: sliced(tensor_ref(X), dim=-1, start=2, stop=5), X[:, 2:5]),
    "empty slice": (lambda: sliced(tensor_ref(X), dim=0, start=4, stop=4), X[4:]),
    "slice of a slice": (
        lambda: sliced(sliced(tensor_ref(X), dim=0, start=1, stop=4), dim=1, start=0, stop=2),
        X[1:4, :2],
    ),
    "concatenation": (lambda: concatenated([tensor_ref(X), tensor_ref(Y)], dim=-1), torch.cat([X, Y], 1)),
    "stack": (lambda: stacked([tensor_ref(X), tensor_ref(Y)]), torch.stack([X, Y])),
    "indices": (lambda: taken(tensor_ref(X), dim=-1, indices=[4, 1, 2]), X[:, [4, 1, 2]]),
    "indices in a row": (lambda: taken(tensor_ref(X), dim=0, indices=[1, 2]), X[1:3]),
    "no indices": (lambda: taken(tensor_ref(X), dim=0, indices=[]), X[:0]),
    "transposed": (lambda: transposed(tensor_ref(X)), X.T.contiguous()),
    "sum": (lambda: summed(tensor_ref(X), tensor_ref(Y)), X + Y),
    "sum of two formats": (lambda: summed(tensor_ref(X), tensor_ref(Y.float())), X + Y.float()),
}


@pytest.mark.parametrize("name", DERIVED)
def test_a_derived_tensor_is_described_and_read_as_a_stored_one(name: str) -> None:
    make, want = DERIVED[name]
    ref, stored = make(), tensor_ref(want)
    assert (ref.meta.shape, ref.meta.dtype) == (stored.meta.shape, stored.meta.dtype)
    assert torch.equal(ref.read(), want)
    assert ref.read().is_contiguous()
    assert ref.meta.checksum == stored.meta.checksum


def test_the_sum_is_the_exact_one_rounded_once() -> None:
    exact = X.double() + Y.double()
    assert torch.equal(summed(tensor_ref(X), tensor_ref(Y)).read(), exact.to(torch.bfloat16))


def test_nothing_is_read_before_values_or_checksum_are_asked_for() -> None:
    reads = 0

    def read() -> torch.Tensor:
        nonlocal reads
        reads += 1
        return X.clone()

    counted = TensorRef(meta=tensor_ref(X).meta, read=read)
    total = summed(sliced(counted, dim=1, start=0, stop=3), sliced(counted, dim=1, start=3, stop=6))
    assert total.meta.shape == (4, 3)
    assert reads == 0
    assert total.meta.checksum == total.meta.checksum
    assert reads == 2


def test_one_flipped_bit_changes_the_checksum() -> None:
    flipped = X.clone()
    flipped.view(torch.int16)[1, 3] ^= 1
    before = sliced(tensor_ref(X), dim=1, start=2, stop=5).meta
    after = sliced(tensor_ref(flipped), dim=1, start=2, stop=5).meta
    elsewhere = sliced(tensor_ref(flipped), dim=1, start=0, stop=3).meta
    assert before.checksum != after.checksum
    assert elsewhere.checksum == sliced(tensor_ref(X), dim=1, start=0, stop=3).meta.checksum


def test_a_description_can_be_changed_and_keeps_its_checksum() -> None:
    meta = sliced(tensor_ref(X), dim=1, start=2, stop=5).meta
    assert replace(meta, global_shape=(8, 3)).checksum == meta.checksum


def hashed(name: str, tensor: torch.Tensor) -> Parameter:
    """Return a parameter that was too large to store."""

    def read() -> torch.Tensor:
        raise CaptureError("not stored")

    ref = TensorRef(meta=tensor_ref(tensor).meta, read=read)
    return Parameter(name=name, kind="parameter", ref=ref, row_hashes=row_hashes(tensor)[0])


def test_hashes_of_rows_are_sliced_and_joined_in_place_of_values() -> None:
    part = sliced_parameter(hashed("qkv", X), "q", dim=0, start=1, stop=3)
    assert part.row_hashes == row_hashes(X[1:3])[0]
    assert taken_rows(hashed("qkv", X), "q", [3, 0]).row_hashes == row_hashes(X[[3, 0]])[0]
    both = joined_parameter([hashed("q", X), hashed("k", Y)], "qkv")
    assert both.row_hashes == row_hashes(torch.cat([X, Y]))[0]
    other = sliced_parameter(hashed("qkv", Y), "q", dim=0, start=1, stop=3)
    assert part.ref.meta.checksum != other.ref.meta.checksum


def test_hashes_of_rows_are_none_of_columns() -> None:
    part = sliced_parameter(hashed("qkv", X), "q", dim=1, start=1, stop=3)
    assert part.row_hashes is None
    same = sliced_parameter(hashed("qkv", X), "q", dim=1, start=1, stop=3)
    assert part.ref.meta.checksum == same.ref.meta.checksum
    with pytest.raises(CaptureError):
        part.ref.read()


def test_parameters_are_stacked_and_joined_along_any_dim() -> None:
    one, other = (Parameter(name=n, kind="parameter", ref=tensor_ref(t)) for n, t in (("a", X), ("b", Y)))
    assert torch.equal(stacked_parameter([one, other], "c").ref.read(), torch.stack([X, Y]))
    assert torch.equal(joined_parameter([one, other], "c", dim=1).ref.read(), torch.cat([X, Y], 1))
    assert torch.equal(selected_parameter(one, "c", 2).ref.read(), X[2])
    assert stacked_parameter([hashed("a", X), hashed("b", Y)], "c").row_hashes is None
