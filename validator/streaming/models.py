"""A checkpoint's model as transformers builds it, with parameters that stay on the disk."""

import copy
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn

from validator.errors import UsageError
from validator.pretrained import config_of, load, transformers
from validator.streaming.allocation import return_large_blocks
from validator.streaming.deferred import DeferredParameter
from validator.streaming.library import conversions, filling_with
from validator.streaming.weights import Weights

__all__ = ["streamed"]

DEQUANTISED = ("compressed-tensors", "fp8", "mxfp4")
"""Quantised formats that transformers dequantises as it loads, by their name in `config.json`."""


def streamed(
    folder: str | os.PathLike[str], *, dtype: torch.dtype | None = None, **options: Any
) -> nn.Module:
    """Build a checkpoint's model without its weights: each is read when an operator meets it, then dropped.

    It is what `from_pretrained` gives, but for the memory: that of a few parameters at a time. Buffers are in
    memory. Quantised weights are dequantised, by the library that defines their format, when they are read.
    From here on this process returns large blocks of memory to the system as soon as they are freed.

    Args:
        folder: the checkpoint, with weights in safetensors. It must stay as it is while the model is used.
        dtype: of the parameters; None for the checkpoint's own, and for float32, which holds each code times
            its scale, where that is quantised.
        **options: of `from_pretrained`, such as `attn_implementation`.

    Returns:
        The model, to run and to check, not to train or to move.

    Raises:
        UsageError: transformers is not installed, the folder holds no safetensors, or its weights are
            quantised in a format that is not dequantised on loading.
    """
    path = Path(folder)
    if not any(path.glob("*.safetensors")):
        raise UsageError(
            f"{path} holds no *.safetensors to read weights from; save the model with save_pretrained"
        )
    quantised = config_of(path).get("quantization_config")
    if quantised is not None:
        options["config"] = _dequantising(path, quantised)
        dtype = dtype or torch.float32
    return_large_blocks()
    with filling_with(_load):
        return load(path, dtype=dtype or "auto", **options)


def _dequantising(folder: Path, quantised: Any) -> Any:
    """Return the checkpoint's configuration, told to dequantise."""
    method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
    if method not in DEQUANTISED:
        raise UsageError(
            f"the weights of {folder} are quantised as {method!r}, which can't be dequantised on loading as "
            f"{', '.join(DEQUANTISED)} can. Write a target whose reference() returns the dequantised model"
        )
    config = transformers().AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    config.quantization_config = {**quantised, "dequantize": True}
    return config


def _load(
    model: nn.Module,
    state_dict: Any,
    checkpoint_files: list[str],
    load_config: Any,
    expected_keys: Any = None,
) -> tuple[Any, Any]:
    """Do what `PreTrainedModel._load_pretrained_model` does, but leave the parameters in the files."""
    weights = Weights(copy.deepcopy(model), checkpoint_files, load_config)
    deferred = {group: weights.parameters_of(group) for group in weights.groups}
    with ExitStack() as stack:
        # What is no parameter is loaded as ever.
        state = weights.slices([group for group, made in deferred.items() if not made], stack)
        loaded = conversions().convert_and_load_state_dict_in_model(model, state, load_config)
    for made in deferred.values():
        for name, (shape, dtype) in made.items():
            owner, _, leaf = name.rpartition(".")
            parameter: Any = DeferredParameter(
                weights.reader(name), shape=shape, dtype=dtype, read_parts=weights.parts_reader(name)
            )
            parameter._is_hf_initialized = True
            setattr(model.get_submodule(owner), leaf, parameter)
            loaded[0].missing_keys.discard(name)
    return loaded  # type: ignore[no-any-return]
