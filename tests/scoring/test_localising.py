"""A target is fed with other tokens than its own."""

import torch

from validator.scoring.localising import fed_with

IDS = torch.tensor([[1, 2, 3]])


def test_what_belongs_to_the_targets_own_tokens_is_left_out() -> None:
    own = {
        "input_ids": torch.zeros(2, 5, dtype=torch.int64),
        "position_ids": torch.zeros(2, 5, dtype=torch.int64),
        "use_cache": False,
        "temperature": torch.tensor(1.0),
    }
    fed = fed_with(own, IDS)
    assert set(fed) == {"input_ids", "use_cache", "temperature"}
    assert torch.equal(fed["input_ids"], IDS)


def test_a_mask_is_one_of_all_ones() -> None:
    own = {"input_ids": torch.zeros(2, 5, dtype=torch.int64), "attention_mask": torch.zeros(2, 5)}
    assert torch.equal(fed_with(own, IDS)["attention_mask"], torch.ones_like(IDS))
