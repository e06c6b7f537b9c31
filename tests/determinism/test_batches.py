"""Batches made of a target's inputs."""

import pytest
import torch

from validator.determinism.batches import NotBatchedError, batch_of, sequences_of

IDS = torch.arange(12).view(2, 6)


def test_sequences_come_in_the_order_that_is_asked_for_with_all_that_belongs_to_them() -> None:
    mask = torch.tensor([[1], [2]]).expand(2, 6)
    inputs = {"input_ids": IDS, "attention_mask": mask, "use_cache": False, "cos": torch.ones(1, 6)}
    batch = batch_of(inputs, (1, 0, 1))
    assert batch["input_ids"].tolist() == IDS[[1, 0, 1]].tolist()
    assert batch["attention_mask"][:, 0].tolist() == [2, 1, 2]
    assert batch["cos"].shape == (1, 6)
    assert batch["use_cache"] is False


def test_further_sequences_are_those_of_the_target_with_their_tokens_moved_round() -> None:
    batch = batch_of({"input_ids": IDS[:1]}, (0, 1, 2))["input_ids"]
    assert batch[0].tolist() == IDS[0].tolist()
    assert len({tuple(row) for row in batch.tolist()}) == 3
    assert all(sorted(row) == IDS[0].tolist() for row in batch.tolist())


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"tokens": IDS}, "no input_ids"),
        ({"input_ids": IDS, "pixel_values": torch.ones(7, 3)}, r"pixel_values \[7, 3\]"),
        ({"input_ids": IDS, "past": object()}, "past, a object"),
    ],
    ids=["no tokens", "another number of rows", "an object"],
)
def test_inputs_of_which_no_other_batch_can_be_made_are_told_with_the_reason(
    inputs: dict[str, object], said: str
) -> None:
    with pytest.raises(NotBatchedError, match=said):
        sequences_of(inputs)
