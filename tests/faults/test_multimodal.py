"""Faults of vision-language models spoil what they say and nothing else."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.models import Setup, checkpoint, inputs, load_candidate
from validator.errors import UsageError
from validator.faults import parse

SETUP = Setup(family="qwen2.5-vl", dtype="float32", batch=2)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(SETUP, tmp_path_factory.mktemp("models"))


def seen(model: Any, module: nn.Module) -> dict[str, Any]:
    """Return the keyword arguments that a module of the model is called with."""
    found: dict[str, Any] = {}
    module.register_forward_pre_hook(
        lambda _, args, kwargs: found.update(kwargs), with_kwargs=True, prepend=False
    )
    with torch.no_grad():
        model(**inputs(SETUP))
    return found


def positions(path: Path, fault: str | None) -> Tensor:
    model: Any = load_candidate(SETUP, path)
    if fault is not None:
        parse(fault).plant(model)
    found: Tensor = seen(model, model.model.language_model)["position_ids"]
    return found[-3:]


def test_only_the_second_image_loses_its_grid_of_positions(path: Path) -> None:
    healthy, spoiled = positions(path, None), positions(path, "mrope-one-image")
    is_image = inputs(SETUP)["mm_token_type_ids"][0] == 1
    second = int(is_image.nonzero()[-1])  # the last token of the second image
    first = int((~is_image).nonzero()[(~is_image).nonzero() > int(is_image.nonzero()[0])][0])
    assert torch.equal(spoiled[:, 0, :first], healthy[:, 0, :first])
    assert len(healthy[:, 0, second].unique()) > 1
    assert len(spoiled[:, 0, second].unique()) == 1


@pytest.mark.parametrize("fault", ["pixels-raster", "pixels-aliased"])
def test_other_pixels_come_in_the_same_shape(path: Path, fault: str) -> None:
    model: Any = load_candidate(SETUP, path)
    parse(fault).plant(model)
    given = inputs(SETUP)["pixel_values"]
    found = seen(model, model)["pixel_values"]
    assert found.shape == given.shape
    assert not torch.equal(found, given)
    is_permuted = torch.equal(found.sort(0).values, given.sort(0).values)
    assert is_permuted == (fault == "pixels-raster")


def test_the_first_rows_of_patches_in_raster_order_are_the_upper_halves_of_the_groups(path: Path) -> None:
    model: Any = load_candidate(SETUP, path)
    parse("pixels-raster").plant(model)
    given = inputs(SETUP)["pixel_values"]
    found = seen(model, model)["pixel_values"]
    # Four rows of six patches, in groups of two by two: 0 1 / 2 3 | 4 5 / 6 7 | 8 9 / 10 11.
    assert torch.equal(found[:12], given[[0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]])


def test_a_block_that_is_not_there_is_refused(path: Path) -> None:
    with pytest.raises(UsageError, match=r"block=4 is not in .*: it has 4 vision blocks, 0 to 3"):
        parse("vit-no-mask:block=4").plant(load_candidate(SETUP, path))
