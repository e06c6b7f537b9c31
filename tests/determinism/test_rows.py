"""Sequences that two batches share are compared, tensor by tensor."""

from pathlib import Path

import torch
from torch import Tensor, nn

from validator.capturing.reader import open_capture
from validator.capturing.records import RankCapture
from validator.capturing.session import capture
from validator.determinism.rows import RowComparison, compare_rows

TOKENS = 4
IDS = torch.arange(3 * TOKENS).view(3, TOKENS)


class Packed(nn.Module):
    """Takes the tokens of all sequences end to end, and counts them."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cumsum(x, 0) * self.factor + 1, torch.full((5, 2), float(len(x)))

    factor = 0.0


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 2)
        self.packed = Packed()

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        made: Tensor = x + self.packed(x.reshape(-1, 2))[0].reshape(x.shape)
        return made


class Heads(nn.Module):
    """Makes a table of as many heads as there are sequences."""

    def forward(self, input_ids: Tensor) -> Tensor:
        return torch.arange(len(input_ids) * 10.0).view(-1, 5, 2)


def captured(folder: Path, name: str, rows: list[int], factor: float = 0.0) -> RankCapture:
    torch.manual_seed(0)
    model = Net().eval()
    model.packed.factor = factor
    return run(model, folder, name, rows)


def run(model: nn.Module, folder: Path, name: str, rows: list[int]) -> RankCapture:
    with torch.no_grad(), capture(model, folder / f"{name}.h5"):
        model(IDS[rows])
    return open_capture(folder / f"{name}.h5").rank(0)


def compared(folder: Path, factor: float) -> RowComparison:
    one, other = captured(folder, "a", [0, 1, 2], factor), captured(folder, "b", [1], factor)
    return compare_rows([one], [other], sizes=(3, 1), tokens=TOKENS, shared=((1, 0),))


def test_sequences_are_the_same_in_rows_and_in_packed_tokens(tmp_path: Path) -> None:
    found = compared(tmp_path, 0.0)
    assert found.first is None
    paths = {(place[0], place[1]) for place in found.places}
    assert ("inputs", "packed") in paths
    assert ("outputs", "embed") in paths


def test_a_tensor_without_a_part_for_each_sequence_is_left_out(tmp_path: Path) -> None:
    found = compared(tmp_path, 0.0)
    assert found.left_out == 1
    assert not any(
        place[0] == "outputs" and place[1] == "packed" and place[-1] == "1" for place in found.places
    )


def test_the_first_module_that_mixes_sequences_is_named(tmp_path: Path) -> None:
    first = compared(tmp_path, 1.0).first
    assert first is not None
    assert (first.module, first.side, first.culprit) == ("packed", "outputs", "packed")
    assert first.elements == TOKENS * 2


def test_sequences_at_other_positions_are_found_there(tmp_path: Path) -> None:
    one, other = captured(tmp_path, "a", [0, 1, 2]), captured(tmp_path, "b", [1, 2, 0])
    right, wrong = ((1, 0), (2, 1), (0, 2)), ((0, 0),)
    (tmp_path / "sizes").mkdir()
    places = compared(tmp_path / "sizes", 0.0).places
    for shared, same in ((right, True), (wrong, False)):
        found = compare_rows([one], [other], sizes=(3, 3), tokens=TOKENS, shared=shared, places=places)
        assert (found.first is None) is same


def test_batches_of_one_size_do_not_tell_a_dim_of_sequences_from_another_of_that_size(tmp_path: Path) -> None:
    one, other = (run(Heads(), tmp_path, name, rows) for name, rows in (("a", [0, 1, 2]), ("b", [1, 2, 0])))
    found = compare_rows([one], [other], sizes=(3, 3), tokens=TOKENS, shared=((1, 0), (2, 1), (0, 2)))
    assert found.first is None
    assert not any(place[0] == "outputs" for place in found.places)
