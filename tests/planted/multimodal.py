"""What must be said of the faults of vision-language models."""

from tests.planted.expectation import Expectation, GuiltyEdge
from tests.stimuli import Stimulus
from validator.checks.findings import Check

__all__ = ["FAULTS"]

_FAMILIES = ("qwen2.5-vl",)
_BLOCKS = "model.visual.blocks"


def _mixing(block: int) -> GuiltyEdge:
    """Return the edge behind the attention of a vision block."""
    attention = f"{_BLOCKS}.{block}.attn"
    return GuiltyEdge(module=attention, into=f"{attention}.proj")


FAULTS = (
    Expectation(
        fault="mrope-one-image",
        guilty=(GuiltyEdge(module="model", into="model.language_model"),),
        checks=(Check.EXACT,),
        families=_FAMILIES,
    ),
    Expectation(
        # There are more windows than images: where each begins can't be compared, and what becomes of it is.
        fault="vit-blocks-swapped",
        guilty=tuple(_mixing(block) for block in range(4)),
        checks=(Check.WIRING,),
        families=_FAMILIES,
    ),
    *(
        # Of a block that attends over windows, and of one that attends over whole images.
        Expectation(
            fault=f"vit-no-mask:block={block}",
            guilty=(_mixing(block),),
            checks=(Check.WIRING,),
            families=_FAMILIES,
        )
        for block in (0, 2)
    ),
    Expectation(
        # Squares of values above 255 are infinite in float16, and the row is erased.
        fault="vit-half-squares:block=1",
        guilty=(GuiltyEdge(module=f"{_BLOCKS}.1.norm1"),),
        checks=(Check.FUNCTION,),
        families=_FAMILIES,
        dtypes=("float16",),
        stimulus=Stimulus.OUTLIER_PATCHES,
    ),
    *(
        Expectation(fault=fault, guilty=(GuiltyEdge(module=""),), checks=(Check.INPUT,), families=_FAMILIES)
        for fault in ("pixels-raster", "pixels-aliased")
    ),
)
