"""The runs that the levels compare."""

import pytest

from validator.determinism.batching import shared_rows
from validator.determinism.variants import batch_variants, chunk_sizes


@pytest.mark.parametrize("tokens", [2, 3, 4, 12, 127])
def test_chunks_make_up_the_prompt_and_are_several(tokens: int) -> None:
    sizes = chunk_sizes(tokens)
    assert sum(sizes) == tokens
    assert len(sizes) == (3 if tokens > 2 else 2)
    assert min(sizes) >= 1


@pytest.mark.parametrize("sequences", [1, 2, 5])
def test_batches_have_another_size_and_every_sequence_another_position(sequences: int) -> None:
    rows = {variant.name: variant.rows or () for variant in batch_variants(sequences)}
    assert len(rows["alone"]) == 1
    assert len(rows["batch"]) == (sequences if sequences > 1 else 3)
    moved = shared_rows(rows["batch"], rows["rolled"])
    assert len(moved) == len(rows["batch"])
    assert all(i != j for i, j in moved)
