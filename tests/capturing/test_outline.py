from fnmatch import fnmatchcase

import pytest
from torch import nn

from validator.capturing.outline import classes_of, glob_of, outline


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(2, 2)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))])


class Other(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(2, 2)


class Net(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.embed = nn.Embedding(2, 2)
        self.layers = nn.ModuleList(layers)
        self.heads = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])


def test_layers_of_a_list_are_blocks_and_nothing_inside_of_them_is() -> None:
    found = outline(classes_of(Net(Layer(), Layer(), Other())))
    assert found.blocks == ("layers.0", "layers.1", "layers.2")
    assert found.frame == ("", "embed", "layers", "heads", "heads.0", "heads.1")


@pytest.mark.parametrize("layers", [(), (Layer(),), (Layer(), Other())], ids=["none", "one", "unlike"])
def test_a_list_without_two_of_a_class_has_no_blocks_of_its_own(layers: tuple[nn.Module, ...]) -> None:
    blocks = outline(classes_of(Net(*layers))).blocks
    assert not [block for block in blocks if block.count(".") == 1]


def test_a_sequential_of_blocks_is_a_list_and_its_layers_are_told_by_number() -> None:
    found = outline(classes_of(nn.Sequential(*(Other() for _ in range(11)))))
    assert found.blocks == tuple(str(i) for i in range(11))
    assert found.insides[1] == "1.*"
    assert not fnmatchcase("10.up", found.insides[1])


def test_a_glob_of_a_name_matches_that_name_alone() -> None:
    assert fnmatchcase("a[0]*?", glob_of("a[0]*?"))
    assert not fnmatchcase("a0bc", glob_of("a[0]*?"))
