"""Feed a model the batch of a variant, at once or in chunks.

Shape legend: s = tokens.
"""

from typing import Any

import torch
from torch import Tensor, nn

from validator.determinism.batches import NotBatchedError, batch_of
from validator.determinism.variants import Variant
from validator.errors import TargetError
from validator.long_context.calling import cache_argument, cache_options, returned_cache
from validator.runs import copied
from validator.target import Target, moved
from validator.target_file import describe

__all__ = ["feed_variant", "require_chunks"]


def require_chunks(target: Target, inputs: dict[str, Any]) -> None:
    """Demand that the first sequence of a target's inputs can be fed in chunks.

    Raises:
        NotBatchedError: it can't be.
    """
    if "run" in target.functions:
        raise NotBatchedError(
            "the target has a run() of its own, and only that knows how to feed a part of a prompt"
        )
    others = [name for name, value in inputs.items() if isinstance(value, Tensor) and name != "input_ids"]
    others = [name for name in others if name not in ("attention_mask", "position_ids")]
    if "input_ids" not in inputs or others:
        raise NotBatchedError(
            f"inputs() has {', '.join(others) or 'no input_ids'}: only input_ids are cut into chunks here"
        )
    mask = inputs.get("attention_mask")
    if isinstance(mask, Tensor) and not bool((mask == 1).all()):
        raise NotBatchedError("inputs() has padding, and chunks are made of sequences without")


def feed_variant(
    target: Target, inputs: dict[str, Any], model: nn.Module, variant: Variant, side: str
) -> Any:
    """Run a model on the batch of a variant.

    Args:
        target: the target.
        inputs: the target's own.
        model: either side's.
        variant: which batch, in which pieces.
        side: `"reference"` or `"candidate"`.

    Returns:
        What the model returned, of each chunk where there are several.

    Raises:
        TargetError: the model fails, or keeps no cache between chunks.
        NotBatchedError: no such batch can be made.
    """
    given = copied(inputs) if variant.rows is None else batch_of(copied(inputs), variant.rows)
    if variant.chunks is None:
        return target.run(model, given, side=side)
    torch.manual_seed(0)
    ids = moved({"input_ids": given["input_ids"]}, model)["input_ids"]
    name = cache_argument(model)
    if name is None:
        raise NotBatchedError(f"the {side} takes no cache, so its prompt can't be fed in chunks")
    cache: Any = None
    returned = []
    for piece in ids.split(variant.chunks, 1):
        # A cache that is not there yet is not handed over either: some models make their own only then.
        kept = {} if cache is None else {name: cache}
        try:
            made = model(input_ids=piece, **cache_options(model), **kept)
        except Exception as error:  # either side's code may raise anything
            raise TargetError(
                f"the {side} fails on a chunk of {piece.shape[1]} tokens: {describe(error)}"
            ) from error
        cache = returned_cache(made, name)
        if cache is None and len(variant.chunks) > 1:
            raise NotBatchedError(
                f"the {side} takes {name!r} and returned none, so its prompt can't be fed in chunks"
            )
        returned.append(made)
    return returned
