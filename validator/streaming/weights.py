"""The weights of a checkpoint under a model's own names, read one parameter at a time.

A parameter need not stand in the files as it is: experts that are stored one by one are stacked, fused
projections are split, quantised weights are codes with their scales. What is done to the tensors of a
checkpoint is transformers' own code, run for the tensors of one parameter at a time.
"""

import importlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from validator.errors import TargetError
from validator.pretrained import without_loading_bars
from validator.quantised.blocks import is_grid, scales_of_equal_blocks
from validator.streaming.allocation import return_free_memory
from validator.streaming.library import conversions

__all__ = ["Group", "Weights"]

_SCALES = ("_scale", "_scale_inv", "_global_scale")
_OF_SCALES = (("_scale_inv", ""), ("_scale", ""), (".scale", ".weight"), (".qscale_weight", ".weight"))
"""How names of scales end, and what those of their codes have instead."""
_NARROW = (torch.bfloat16, torch.float16)
_KEPT = 4
"""So many parameters that took a conversion are kept: a layer's experts are used once for each expert."""
_RETURNED_BYTES = 64 << 20
"""After so many bytes of parameters what is free in the heap goes back to the system.

What is computed with parameters leaves gaps there: with 64 layers a third of the memory above imports.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Tensors of a checkpoint that parameters are made of.

    Attributes:
        first: the model's name of the first parameter.
        sources: their names in the checkpoint.
        is_converted: whether more than a cast comes between.
        is_fused: whether they may make several parameters.
    """

    first: str
    sources: tuple[str, ...]
    is_converted: bool
    is_fused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    file: Path
    shape: tuple[int, ...]


class Weights:
    """Reads the parameters of a model from safetensors.

    Args:
        skeleton: the model on the meta device, which conversions look at. It is the reader's own.
        files: the checkpoint's.
        load_config: transformers' settings of this load.

    Attributes:
        groups: what the files hold for the model, in their order.
    """

    def __init__(self, skeleton: nn.Module, files: Iterable[str], load_config: Any) -> None:
        self._library = conversions()
        self._skeleton = skeleton
        self._load_config = replace(load_config, device_map=None)
        self._parameters = dict(skeleton.named_parameters(remove_duplicate=False))
        self._stored = _stored_tensors(files)
        self.groups = self._grouped()
        self._groups: dict[str, Group] = {}
        self._kept: OrderedDict[str, Mapping[str, Tensor]] = OrderedDict()
        self._read_bytes = 0

    def parameters_of(self, group: Group) -> Mapping[str, tuple[torch.Size, torch.dtype]]:
        """Return shape and dtype of each parameter that a group makes; empty if it makes none.

        Raises:
            TargetError: the checkpoint's tensors don't make it.
        """
        meta = self._parameters.get(group.first)
        if meta is None:
            return {}
        if not group.is_converted:
            (source,) = group.sources
            held = self._stored[source].shape
            if held != tuple(meta.shape):
                raise TargetError(
                    f"the checkpoint's {source} is {list(held)}, where the model's {group.first} is "
                    f"{list(meta.shape)}: its config.json describes another model"
                )
        if group.is_fused or self._load_config.dtype_plan:
            made = {name: (x.shape, x.dtype) for name, x in self._convert(group).items()}
        else:
            made = {group.first: (meta.shape, meta.dtype)}
        self._groups |= dict.fromkeys(made, group)
        return made

    def slices(self, groups: Iterable[Group], stack: ExitStack) -> dict[str, Any]:
        """Open the checkpoint's tensors of some groups, until the stack is closed."""
        opened = {}
        for name in (name for group in groups for name in group.sources):
            tensor: Any = stack.enter_context(self._open(name)).get_slice(name)
            quantizer = self._load_config.hf_quantizer
            if quantizer is not None and name.endswith(_SCALES):
                # Libraries multiply in the scale's format, and only float32 holds the product.
                tensor = tensor[...]
                tensor = tensor.to(torch.float32) if tensor.dtype in _NARROW else tensor
            described = getattr(quantizer, "quantization_config", None)
            block, codes = getattr(described, "weight_block_size", None), self._codes_of(name)
            if block and codes and is_grid(self._stored[name].shape, codes.shape, block):
                # Libraries take all blocks to be as large as one another.
                tensor = scales_of_equal_blocks(tensor[...], codes.shape, block)
            opened[name] = tensor
        return opened

    def _codes_of(self, name: str) -> _Stored | None:
        """Return what a tensor may be the scales of, by its name."""
        for suffix, other in _OF_SCALES:
            if name.endswith(suffix):
                return self._stored.get(name.removesuffix(suffix) + other)
        return None

    def reader(self, name: str) -> Callable[[], Tensor]:
        """Return what reads a parameter."""
        return partial(self.read, name)

    def read(self, name: str) -> Tensor:
        """Return a parameter's values, `[*]`. Where they stand in a file as they are, they share its memory.

        Raises:
            TargetError: the checkpoint's tensors don't make this parameter.
        """
        group, meta = self._groups[name], self._parameters[name]
        self._read_bytes += meta.numel() * meta.element_size()
        if self._read_bytes >= _RETURNED_BYTES:
            return_free_memory()
            self._read_bytes = 0
        if not group.is_converted and not self._load_config.dtype_plan:
            (source,) = group.sources
            with self._open(source) as file:
                value: Tensor = file.get_tensor(source)
            return value.to(meta.dtype)
        if group.first not in self._kept:
            self._kept[group.first] = self._convert(group)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(group.first)
        return self._kept[group.first][name]

    def parts_reader(self, name: str) -> Callable[[], Mapping[str, Tensor]]:
        """Return what reads the checkpoint's tensors that a parameter is made of, by `parts`."""
        return partial(self.parts, name)

    def parts(self, name: str) -> Mapping[str, Tensor]:
        """Return the checkpoint's tensors that a parameter is made of, as they are, by their own last names.

        Nothing where these are the tensors of several modules, or of several parameters.
        """
        group = self._groups[name]
        owners = {source.rpartition(".")[0] for source in group.sources}
        if len(owners) > 1 or group.is_fused:
            return {}
        found = {}
        for source in group.sources:
            with self._open(source) as file:
                found[source.rpartition(".")[2]] = file.get_tensor(source)
        return found

    def _open(self, name: str) -> Any:
        safetensors: Any = importlib.import_module("safetensors")
        return safetensors.safe_open(self._stored[name].file, framework="pt")

    def _grouped(self) -> Sequence[Group]:
        """Put the checkpoint's tensors together as transformers does before it converts them."""
        library, mapping = self._library, self._load_config.weight_mapping or []
        renamings = [x for x in mapping if isinstance(x, library.WeightRenaming)]
        converters = [x for x in mapping if isinstance(x, library.WeightConverter)]
        by_pattern = {pattern: x for x in converters for pattern in x.source_patterns}
        state = self._skeleton.state_dict()
        prefix = self._skeleton.base_model_prefix
        found: dict[str, tuple[list[str], Any]] = {}
        for source in sorted(self._stored, key=library.dot_natural_key):
            name, pattern = library.rename_source_key(source, renamings, converters, prefix, state)
            if name not in state and source in state:
                name, pattern = library.rename_source_key(source, [], [], prefix, state)
            if name in state:
                sources, _ = found.setdefault(name, ([], by_pattern.get(pattern)))
                sources.append(source)
        return tuple(
            Group(
                first=name,
                sources=tuple(sources),
                is_converted=converter is not None or len(sources) > 1,
                is_fused=converter is not None and len(converter.target_patterns) > 1,
            )
            for name, (sources, converter) in found.items()
        )

    @torch.no_grad()
    def _convert(self, group: Group) -> Mapping[str, Tensor]:
        """Let transformers make the parameters of a group."""
        with ExitStack() as stack, without_loading_bars():
            state = self.slices([group], stack)
            info, _ = self._library.convert_and_load_state_dict_in_model(
                self._skeleton, state, self._load_config
            )
        made = {
            name: parameter
            for name, parameter in self._skeleton.named_parameters(remove_duplicate=False)
            if not parameter.is_meta
        }
        for name in made:
            owner, _, leaf = name.rpartition(".")
            setattr(self._skeleton.get_submodule(owner), leaf, self._parameters[name])
        wrong = [*info.conversion_errors.values(), *info.error_msgs]
        wrong += [f"{name} is {list(got)}, not {list(wanted)}" for name, got, wanted in info.mismatched_keys]
        if wrong or not made:
            reason = _reason(str(wrong[0])) if wrong else "nothing came of them"
            raise TargetError(
                f"the checkpoint's {', '.join(group.sources[:3])} can't be made the model's {group.first}: "
                f"{reason}"
            )
        return {name: parameter.detach() for name, parameter in made.items()}


def _stored_tensors(files: Iterable[str]) -> dict[str, _Stored]:
    safetensors: Any = importlib.import_module("safetensors")
    found: dict[str, _Stored] = {}
    for file in files:
        with safetensors.safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no mapping
                shape = tuple(opened.get_slice(name).get_shape())
                found[name] = _Stored(file=Path(file), shape=shape)
    return found


def _reason(text: str) -> str:
    """Return the error of a conversion: below its traceback transformers says where it was."""
    lines = text.strip().splitlines()
    return lines[-2] if len(lines) > 1 and lines[-1].startswith("Error") else lines[-1]
