"""From a text to a module: check the layers on the very tokens on which a candidate went astray.

Shape legend: N = tokens.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from validator.report.result import Result
from validator.target import load_target
from validator.target_check import check_target

__all__ = ["check_tokens", "fed_with"]


def check_tokens(source: str, ids: Tensor, **options: Any) -> Result:
    """Do the whole job on a target, fed with tokens of ours.

    Args:
        source: a Python file or a checkpoint folder.
        ids: `[1, N]` integer.
        **options: of `check_target`.

    Raises:
        ValidatorError: the two sides can't be compared.
    """
    return check_target(source, inputs=fed_with(load_target(source).inputs(), ids), **options)


def fed_with(inputs: Mapping[str, Any], ids: Tensor) -> dict[str, Any]:
    """Return a target's inputs with other tokens.

    What has the shape of its own tokens (masks, positions) belongs to them and is left out, but for a mask of
    all ones where it had an `attention_mask`.

    Args:
        inputs: of the target.
        ids: `[1, N]` integer.
    """
    own = inputs.get("input_ids")
    shape = own.shape[:2] if isinstance(own, Tensor) else None
    kept = {
        name: value
        for name, value in inputs.items()
        if not (isinstance(value, Tensor) and shape is not None and value.shape[:2] == shape)
    }
    mask = {"attention_mask": torch.ones_like(ids)} if "attention_mask" in inputs else {}
    return {**kept, "input_ids": ids, **mask}
