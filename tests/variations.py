"""Healthy variations: what real ports do differently for good reasons, and must never be blamed for.

Each recreates reports in which somebody took a healthy difference for a fault.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from tests.changes import (
    attended_in_chunks,
    attended_in_tiles,
    emulated,
    fused_in_float32,
    gelu_of_a_cube,
    gelu_of_a_product,
    nothing,
    one_sequence_at_a_time,
    window_by_distance,
)
from tests.models import Setup
from tests.stimuli import Stimulus
from validator.emulate import Emulation, Order
from validator.numerics.recipes import Recipe

__all__ = ["NOT_RECREATED", "VARIATIONS", "Variation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """One way in which a healthy candidate differs.

    Attributes:
        name: how trials call it.
        what: what the candidate does differently.
        zoo: ids of the reports, in the collection of healthy variations, that it recreates.
        setups: the pairs of models that it is tried on.
        apply: changes the candidate, in place.
        recipe: declared for the candidate, or None for nothing.
    """

    name: str
    what: str
    zoo: tuple[str, ...]
    setups: tuple[Setup, ...]
    apply: Callable[[nn.Module], None] = nothing
    recipe: Recipe | str | None = None


def _setups(families: tuple[str, ...], *dtypes: str) -> tuple[Setup, ...]:
    return tuple(Setup(family=family, dtype=dtype) for family in families for dtype in dtypes)


_HALF = ("bfloat16", "float16")
_ALL = (
    Variation(
        name="sharded",
        what="Row-parallel projections are summed over two or four ranks, in the storage format.",
        zoo=("tp-degree-order", "tp-loss-diff"),
        setups=tuple(Setup(family="llama", dtype=dtype, tp=tp) for dtype in _HALF for tp in (2, 4)),
    ),
    *(
        # In one process that is precision which nobody promised to give up, unless it is declared.
        Variation(
            name=f"summed-over-{ranks}-ranks-{dtype}",
            what=f"Row-parallel projections add up {ranks} partial sums in the storage format.",
            zoo=("tp-degree-order", "tp-loss-diff"),
            setups=(Setup(family="llama", dtype=dtype),),
            apply=emulated(Emulation(ranks=ranks), "o_proj", "down_proj"),
            recipe=Recipe(name=f"{ranks}-ranks", inner="storage", split_k=ranks, partials=dtype),
        )
        for ranks in (2, 8)
        for dtype in _HALF
    ),
    Variation(
        name="tied-logits",
        what="Each second token's logits are within an ulp of another's, and two ranks decide between them.",
        zoo=("tp-tie-break",),
        setups=(Setup(family="llama", stimulus=Stimulus.TIED_LOGITS, tp=2),),
    ),
    Variation(
        name="other-tiles",
        what="Projections sum blocks of 16 terms, as a kernel for another batch size does.",
        zoo=("batch-size",),
        setups=_setups(("llama",), "bfloat16", "float32"),
        apply=emulated(Emulation(accumulate="float32", order=Order.BLOCKED, block=16)),
    ),
    Variation(
        name="one-sequence-at-a-time",
        what="Projections and attention compute each sequence by itself, and sum blocks of 16 terms.",
        zoo=("batch-size", "batch-invariance", "microbatch-ratio"),
        setups=_setups(("llama", "qwen2"), "float32", "bfloat16"),
        apply=one_sequence_at_a_time,
    ),
    Variation(
        name="first-layer-in-pairs",
        what="The first layer's projections sum in another order, and what follows amplifies the last bits.",
        zoo=("shape-dispatch-ulp",),
        setups=_setups(("qwen3",), "float32", "bfloat16"),
        apply=emulated(
            Emulation(accumulate="float32", order=Order.PAIRWISE),
            *(f"layers.0.self_attn.{name}_proj" for name in "qkvo"),
        ),
    ),
    Variation(
        name="chunked-prefill",
        what="Attention merges two chunks of keys by the logarithms of their sums.",
        zoo=("chunked-prefill",),
        setups=_setups(("llama", "qwen3"), "bfloat16"),
        apply=attended_in_chunks,
    ),
    *(
        Variation(
            name=f"tiles-of-{tile}-keys",
            what=f"Attention is an online softmax over {tile} keys at a time.",
            zoo=("eager-vs-sdpa", "sdpa-gen-flaky"),
            setups=_setups(("llama", "qwen2"), *_HALF),
            apply=attended_in_tiles(tile),
        )
        for tile in (1, 4, 16)
    ),
    Variation(
        name="sdpa",
        what="Attention is torch's own, where the reference's is in separate operators.",
        zoo=("eager-vs-sdpa", "sdpa-gen-flaky"),
        setups=tuple(Setup(family="qwen2", dtype=dtype, cand_kernel="sdpa") for dtype in _HALF),
    ),
    Variation(
        name="wide-heads",
        what="Heads have 256 channels, and attention is an online softmax.",
        zoo=("flash-tolerance-headdim",),
        setups=tuple(Setup(family="llama", dtype=dtype, stimulus=Stimulus.WIDE_HEADS) for dtype in _HALF),
        apply=attended_in_tiles(16),
    ),
    Variation(
        name="fused",
        what="Norms, and activations with the product after them, stay in float32 and are rounded once.",
        zoo=("inductor-fusion", "compile-vs-fp64"),
        setups=_setups(("llama",), *_HALF, "float32"),
        apply=fused_in_float32,
    ),
    Variation(
        name="tf32",
        what="Projections round float32 factors to TF32, as was declared.",
        zoo=("tf32-default", "tf32-ort"),
        setups=_setups(("llama",), "float32"),
        apply=emulated(Emulation(factors="tf32")),
        recipe="tf32",
    ),
    *(
        Variation(
            name=name,
            what="The tanh form of GELU is computed in another order of operations.",
            zoo=("gelu-rewrite",),
            setups=_setups(("gemma2",), "float32", "bfloat16"),
            apply=apply,
        )
        for name, apply in (("gelu-of-a-product", gelu_of_a_product), ("gelu-of-a-cube", gelu_of_a_cube))
    ),
    Variation(
        name="window-by-distance",
        what="A sliding window is given as the keys before a query's own: one less, for the same mask.",
        zoo=("swa-parameter-convention",),
        setups=_setups(("gemma2", "gpt-oss"), "bfloat16"),
        apply=window_by_distance,
    ),
    Variation(
        name="other-half-format",
        what="The checkpoint is float16, and the candidate bfloat16.",
        zoo=("bf16-vs-fp16-flash",),
        setups=(Setup(family="llama", cand_kernel="sdpa", stimulus=Stimulus.HALF_CHECKPOINT),),
    ),
)

VARIATIONS = {variation.name: variation for variation in _ALL}
"""All variations by name."""

NOT_RECREATED = {
    "pp-gradnorm-order": "the forward pass is the same: the order is that of a sum over gradients",
    "prompt-cache-memory": "a server's memory grows until its cache is full; no number of the model differs",
    "gelu-accepted-approx": "the numbers are those of a fault, which the maintainers accept on purpose; "
    "there is no list of accepted deviations to declare it in",
}
"""Reports that no variation recreates, each with the reason."""
