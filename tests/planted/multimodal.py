"""What must be said of the faults of vision-language models."""

from tests.planted.expectation import Expectation, GuiltyEdge
from tests.stimuli import Stimulus
from validator.checks.findings import Check

__all__ = ["FAULTS"]

_FAMILIES = ("qwen2.5-vl",)
_BLOCKS = "model.visual.blocks"

FAULTS = (
    Expectation(
        fault="mrope-one-image",
        guilty=(GuiltyEdge(module="model", into="model.language_model"),),
        checks=(Check.EXACT,),
        families=_FAMILIES,
    ),
    Expectation(
        fault="vit-blocks-swapped",
        guilty=(GuiltyEdge(module="model.visual", into=f"{_BLOCKS}.*"),),
        checks=(Check.EXACT,),
        families=_FAMILIES,
    ),
    *(
        # Of a block that attends over windows, and of one that attends over whole images.
        Expectation(
            fault=f"vit-no-mask:block={block}",
            guilty=(GuiltyEdge(module=f"{_BLOCKS}.{block}.attn", into=f"{_BLOCKS}.{block}.attn.proj"),),
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
