"""Which codes share a scale, where the last blocks may be shorter than the others."""

import pytest
import torch

from validator.quantised.blocks import block_size, scales_of_equal_blocks
from validator.quantised.formats import dequantised, half_steps, obstacle

GRIDS = [
    ((2, 2), (128, 128), (64, 64)),
    ((4, 2), (112, 64), (32, 32)),
    ((2, 56), (192, 7168), (128, 128)),
    ((2, 1), (28672, 4096), (14336, 4096)),
    ((3, 1), (9216, 3072), (3072, 3072)),
    ((5, 1), (576, 64), (128, 128)),
    ((5, 56), (576, 7168), (128, 128)),
    ((96, 1), (96, 64), (1, 64)),
    ((2, 1), (192, 4096), (96, 4096)),
    ((1, 3), (32, 96), (32, 32)),
]


@pytest.mark.parametrize(("scale", "codes", "block"), GRIDS)
def test_the_size_of_blocks_is_told_by_shapes(
    scale: tuple[int, int], codes: tuple[int, int], block: tuple[int, int]
) -> None:
    assert block_size(scale, codes) == block
    assert block_size((7, *scale), (7, *codes)) == block


@pytest.mark.parametrize("scale", [(3,), (5, 2), (0, 1), (3, 1, 1), (97, 1)])
def test_what_is_no_grid_of_blocks_has_no_block_size(scale: tuple[int, ...]) -> None:
    assert block_size(scale, (96, 64)) is None
    assert "no layout that is known of fp8" in obstacle("fp8", {"codes": (96, 64), "scale": scale})


@pytest.mark.parametrize(("scale", "codes"), [((2, 1), (192, 64)), ((2, 1), (96, 64)), ((1, 2), (64, 96))])
def test_scales_of_parts_or_of_short_blocks_are_not_guessed(
    scale: tuple[int, int], codes: tuple[int, int]
) -> None:
    assert block_size(scale, codes) is None
    assert obstacle("fp8", {"codes": codes, "scale": scale})


@pytest.mark.parametrize("shape", [(96, 136), (160, 64), (128, 72), (3, 72, 200)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e8m0fnu], ids=str)
def test_each_code_is_multiplied_by_the_scale_of_its_block(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    side, generator = 64, torch.Generator().manual_seed(0)
    codes = torch.randn(shape, generator=generator).to(torch.float8_e4m3fn)
    grid = (*shape[:-2], *(-(-size // side) for size in shape[-2:]))
    scale = torch.randint(1, 9, grid, generator=generator).float().exp2().to(dtype)
    each = torch.empty(shape)
    for row in range(shape[-2]):
        for column in range(shape[-1]):
            each[..., row, column] = scale.float()[..., row // side, column // side]
    parts = {"codes": codes, "scale": scale}
    assert obstacle("fp8", {name: part.shape for name, part in parts.items()}) == ""
    assert torch.equal(dequantised("fp8", parts), codes.float() * each)
    ones = torch.ones(shape).to(torch.float8_e4m3fn)
    assert torch.equal(half_steps("fp8", {"codes": ones, "scale": scale}), each / 16)


def test_one_scale_for_a_whole_dim_stays_one() -> None:
    assert scales_of_equal_blocks(torch.ones(1, 1), (96, 72), (128, 128)).shape == (1, 1)
