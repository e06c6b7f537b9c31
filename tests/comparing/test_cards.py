"""Two runs on permuted cards: a fault that moves with a card, one that stays with a rank, and none."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import jsonschema
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import validator
from tests.ranks import RankPool
from validator.capturing import recording
from validator.capturing.metadata import describe_rank
from validator.capturing.reader import open_capture
from validator.capturing.session import capture_run
from validator.comparing.cards import Cards, Culprit, judge_cards
from validator.report.json_report import schema

CARDS = ("GPU-x", "GPU-y", "GPU-z")
MOVED_ROUND = ("GPU-z", "GPU-x", "GPU-y")
EXCHANGED = ("GPU-y", "GPU-x", "GPU-z")


class Net(nn.Module):
    """Each rank's own product, and their sum, so that a fault of one rank reaches all."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(dist.get_rank())
        self.up = nn.Linear(8, 8)
        self.down = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x)
        dist.all_reduce(y)
        return self.down(y)


def run(rank: int, world_size: int, path: str, cards: Sequence[str], faulty: Sequence[int]) -> None:
    def describe(rank: int) -> dict[str, object]:
        card = {"type": "cuda", "index": 0, "uuid": cards[rank]}
        return describe_rank(rank) | {"devices": [card]}

    model = Net()
    if rank in faulty:
        model.up.register_forward_hook(lambda module, args, output: output * 1.01)
    x = torch.linspace(-1, 1, 16).view(2, 8)
    with mock.patch.object(recording, "describe_rank", describe):
        capture_run(lambda: model(x), model, path, proof=False)


@pytest.mark.parametrize(
    ("cards", "faulty", "expected"),
    [
        # Card y is bad: it has rank 1 first, and then the rank that the permutation put on it.
        (
            MOVED_ROUND,
            ([1], [2]),
            Cards(culprit=Culprit.CARD, cards=("cuda GPU-y",), ranks=(1, 2), where="up"),
        ),
        (
            EXCHANGED,
            ([1], [0]),
            Cards(culprit=Culprit.CARD, cards=("cuda GPU-x", "cuda GPU-y"), ranks=(0, 1), where="up"),
        ),
        # The program is bad on rank 1, at times or always.
        (MOVED_ROUND, ([1], []), Cards(culprit=Culprit.RANK, ranks=(1,), where="up")),
        (MOVED_ROUND, ([1], [1]), Cards(culprit=Culprit.NEITHER)),
        (MOVED_ROUND, ([], []), Cards(culprit=Culprit.NEITHER)),
        # Differences on all three ranks fit no card.
        (MOVED_ROUND, ([0, 1, 2], []), Cards(culprit=Culprit.UNCLEAR, ranks=(0, 1, 2), where="up")),
        (CARDS, ([1], [2]), None),
    ],
    ids=[
        "bad card",
        "bad card, exchanged",
        "bad rank at times",
        "bad rank",
        "healthy",
        "all differ",
        "cards did not move",
    ],
)
def test_a_difference_goes_with_the_card_or_stays_with_the_rank(
    cards: Sequence[str],
    faulty: tuple[list[int], list[int]],
    expected: Cards | None,
    rank_pool: Callable[[int], RankPool],
    tmp_path: Path,
) -> None:
    rank_pool(3).run(run, str(tmp_path / "a"), CARDS, faulty[0])
    rank_pool(3).run(run, str(tmp_path / "b"), cards, faulty[1])
    assert judge_cards(open_capture(tmp_path / "a"), open_capture(tmp_path / "b")) == expected


def test_the_comparison_says_which_card(rank_pool: Callable[[int], RankPool], tmp_path: Path) -> None:
    rank_pool(3).run(run, str(tmp_path / "a"), CARDS, [1])
    rank_pool(3).run(run, str(tmp_path / "b"), MOVED_ROUND, [2])
    result = validator.compare(ref=tmp_path / "a", cand=tmp_path / "b")
    text = "the difference moves with a card, cuda GPU-y: it arises on ranks 1, 2, first at up"
    assert text in str(result)
    document = json.loads(json.dumps(result.to_json()))
    jsonschema.validate(document, schema())
    assert document["cards"]["summary"] == text


def test_without_devices_the_host_is_the_card(rank_pool: Callable[[int], RankPool], tmp_path: Path) -> None:
    for name in ("a", "b"):
        rank_pool(3).run(on_the_processor, str(tmp_path / name))
    opened = [open_capture(tmp_path / name) for name in ("a", "b")]
    assert judge_cards(*opened) is None


def on_the_processor(rank: int, world_size: int, path: str) -> None:
    model = Net()
    capture_run(lambda: model(torch.ones(1, 8)), model, path, proof=False)
