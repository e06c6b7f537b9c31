"""Faults of vision-language models laid out as Qwen2.5-VL: positions, pixels, and attention over patches.

Shape legend: B = batch, S = sequence, N = patches of all images, F = values of a patch.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from validator.errors import UsageError
from validator.faults.common import HALF
from validator.faults.decoder import Decoder
from validator.faults.fault import Fault, Parameter
from validator.faults.norms import square_in_storage
from validator.wrapping import wrap

__all__ = ["FAULTS"]

_ENLARGED = 1.5
"""How much larger than the model's the images are that two kernels shrink differently."""


def _mrope_one_image(decoder: Decoder) -> None:
    """Give all images of a sequence but the first the positions of text."""
    model = decoder.model.model
    inner = model.get_rope_index

    def get_rope_index(
        input_ids: Tensor, mm_token_type_ids: Tensor, image_grid_thw: Tensor, **kwargs: Any
    ) -> Any:
        is_image = mm_token_type_ids == 1
        starts = is_image & ~is_image.roll(1, 1)
        starts[:, 0] = is_image[:, 0]
        number_BS = starts.cumsum(1)
        types_BS = mm_token_type_ids.masked_fill(is_image & (number_BS > 1), 0)
        is_first = [index == 0 for count in number_BS[:, -1].tolist() for index in range(count)]
        return inner(input_ids, types_BS, image_grid_thw[is_first], **kwargs)

    model.get_rope_index = get_rope_index


def _vit_blocks_swapped(decoder: Decoder) -> None:
    """Let blocks that attend over windows attend over images, and the other way round."""
    visual = decoder.model.model.visual
    visual.fullatt_block_indexes = [
        i for i in range(len(visual.blocks)) if i not in visual.fullatt_block_indexes
    ]


def _vit_no_mask(decoder: Decoder, *, block: int) -> None:
    """Let a block attend over all patches of all images."""

    def forward(inner: Any, hidden_states: Tensor, cu_seqlens: Tensor, **kwargs: Any) -> Any:
        return inner(hidden_states, cu_seqlens=cu_seqlens[[0, -1]], **kwargs)

    wrap(_block(decoder, block).attn, forward)


def _vit_half_squares(decoder: Decoder, *, block: int) -> None:
    square_in_storage(_block(decoder, block).norm1)


def _block(decoder: Decoder, index: int) -> Any:
    blocks = decoder.model.model.visual.blocks
    if index >= len(blocks):
        raise UsageError(
            f"block={index} is not in {type(decoder.model).__name__}: "
            f"it has {len(blocks)} vision blocks, 0 to {len(blocks) - 1}"
        )
    return blocks[index]


def _pixels_raster(decoder: Decoder) -> None:
    """Give the patches row by row, where those that are merged belong together."""
    merged = decoder.model.model.visual.spatial_merge_size

    def change(patches_NF: Tensor, frames: int, rows: int, columns: int) -> Tensor:
        cells = patches_NF.view(frames, rows // merged, columns // merged, merged, merged, -1)
        return cells.transpose(2, 3).reshape_as(patches_NF)

    _change_images(decoder, change)


def _pixels_aliased(decoder: Decoder) -> None:
    """Shrink the images without a filter against aliasing."""
    visual = decoder.model.model.visual
    merged, patch = visual.spatial_merge_size, visual.patch_size

    def change(patches_NF: Tensor, frames: int, rows: int, columns: int) -> Tensor:
        # Frames, rows and columns of groups, rows and columns of patches in one, and those of pixels.
        split = (frames, rows // merged, columns // merged, merged, merged, -1, patch, patch)
        order = (0, 5, 1, 3, 6, 2, 4, 7)
        cells = patches_NF.view(split).permute(order)
        image = cells.reshape(frames, cells.shape[1], rows * patch, columns * patch)
        size = image.shape[-2:]
        large = interpolate(image, scale_factor=_ENLARGED, mode="bicubic")
        shrunk, filtered = (
            interpolate(large, size=size, mode="bicubic", antialias=antialias) for antialias in (False, True)
        )
        changed = (image + shrunk - filtered).view(cells.shape)
        inverse = [order.index(i) for i in range(len(order))]
        return changed.permute(inverse).reshape_as(patches_NF)

    _change_images(decoder, change)


def _change_images(decoder: Decoder, change: Callable[[Tensor, int, int, int], Tensor]) -> None:
    """Give the model other pixels, `change(patches_NF, frames, rows, columns)` of each image."""

    def before(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if kwargs.get("pixel_values") is None or kwargs.get("image_grid_thw") is None:
            raise UsageError("pixels can be changed where the model is called with pixel_values by name")
        grids = [tuple(grid) for grid in kwargs["image_grid_thw"].tolist()]
        images = kwargs["pixel_values"].split([frames * rows * columns for frames, rows, columns in grids])
        changed = [change(image, *grid) for image, grid in zip(images, grids, strict=True)]
        return args, kwargs | {"pixel_values": torch.cat(changed)}

    # Before the hooks of a capture: what prepares the inputs is no part of the model.
    decoder.model.register_forward_pre_hook(before, with_kwargs=True)


_VISUAL = ("model.model.visual.blocks",)
_BLOCK = Parameter(name="block", kind=int, default=0, what="the index of a vision block")

FAULTS = (
    Fault(
        name="mrope-one-image",
        what="The second image of a sequence has the positions of text.",
        module="model",
        apply=_mrope_one_image,
        needs=("model.model.get_rope_index",),
        zoo=("mm-mrope-multi-image",),
    ),
    Fault(
        name="vit-blocks-swapped",
        what="Vision blocks attend over windows where they should over images, and the other way round.",
        module="*visual.blocks.*.attn",
        apply=_vit_blocks_swapped,
        needs=("model.model.visual.fullatt_block_indexes",),
        zoo=("mm-vit-cuseqlens-order",),
    ),
    Fault(
        name="vit-no-mask",
        what="A vision block attends over all patches of all images.",
        module="*visual.blocks.{block}.attn",
        apply=_vit_no_mask,
        parameters=(_BLOCK,),
        needs=_VISUAL,
        zoo=("mm-vit-window-mask",),
    ),
    Fault(
        name="vit-half-squares",
        what="A norm of a vision block squares in the activations' dtype.",
        module="*visual.blocks.{block}.norm1",
        apply=_vit_half_squares,
        parameters=(_BLOCK,),
        needs=_VISUAL,
        dtypes=HALF,
        zoo=("norm-fp16-overflow-vit",),
    ),
    Fault(
        name="pixels-raster",
        what="Patches come row by row, where those that are merged belong together.",
        module="",
        apply=_pixels_raster,
        needs=("model.model.visual.spatial_merge_size",),
        zoo=("mm-patch-order",),
    ),
    Fault(
        name="pixels-aliased",
        what="Images are shrunk without a filter against aliasing.",
        module="",
        apply=_pixels_aliased,
        needs=("model.model.visual.spatial_merge_size", "model.model.visual.patch_size"),
        zoo=("mm-resize-antialias",),
    ),
)
