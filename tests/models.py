"""Small pairs of reference and candidate, in every setting that a healthy port may have."""

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers.distributed import DistributedConfig

from tests.families import FAMILIES, TOKENS, VOCABULARY
from tests.stimuli import Stimulus, branch_scale, change_config, change_inputs, change_weights
from validator.content import find_model

__all__ = [
    "DENSE",
    "EXPERTS",
    "KERNELS",
    "TRAINED",
    "Setup",
    "checkpoint",
    "inputs",
    "load_candidate",
    "load_reference",
    "run",
]

TRAINED = ("tiny-dense", "tiny-moe")
"""Families that ship with trained weights."""

KERNELS = dict.fromkeys(TRAINED, ("sdpa", "eager")) | {f.name: f.kernels for f in FAMILIES.values()}
"""Attention implementations by family."""

EXPERTS = (
    dict.fromkeys(KERNELS, ("eager",))
    | {"tiny-moe": ("eager", "grouped_mm")}
    | {f.name: f.experts for f in FAMILIES.values()}
)
"""Implementations of the experts by family."""

DENSE = ("tiny-dense", "llama", "qwen3", "gemma2")
"""Families that are run in every setting."""

LEFT_PADDING = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One reference with one way to run a candidate.

    Attributes:
        family: a name in `KERNELS`.
        dtype: the candidate's.
        ref_kernel, cand_kernel: attention implementation of either side.
        ref_experts, cand_experts: implementation of either side's experts.
        tp: ranks that the candidate is sharded over.
        batch: sequences.
        padding: whether all sequences but the last (all, where there is one) are padded on the left.
        seed: of weights and inputs.
        stimulus: what the weights make of the activations, and what the inputs are.
        biases: whether the projections of attention and MLP have biases, in families that are asked.
        cache: whether the models are asked for a KV cache, as they are by default.
        decode: how many tokens are fed one at a time to a cache, after all others in one prefill.
    """

    family: str
    dtype: str = "bfloat16"
    ref_kernel: str = "eager"
    cand_kernel: str = "eager"
    ref_experts: str = "eager"
    cand_experts: str = "eager"
    tp: int = 1
    batch: int = 4
    padding: bool = False
    seed: int = 0
    stimulus: Stimulus = Stimulus.PEAKED
    biases: bool = False
    cache: bool = False
    decode: int = 0

    @property
    def label(self) -> str:
        """A name that no other setup has."""
        options = [
            self.family,
            self.dtype,
            f"{self.ref_kernel}-{self.cand_kernel}",
            f"tp{self.tp}",
            f"batch{self.batch}",
            "padded" if self.padding else "full",
            f"seed{self.seed}",
        ]
        if (self.ref_experts, self.cand_experts) != ("eager", "eager"):
            options.append(f"{self.ref_experts}-{self.cand_experts}")
        options += [] if self.stimulus is Stimulus.PEAKED else [self.stimulus.value]
        options += [name for name in ("biases", "cache") if asdict(self)[name]]
        options += [f"decode{self.decode}"] if self.decode else []
        return "-".join(options)


def checkpoint(setup: Setup, folder: Path) -> Path:
    """Return the checkpoint of a setup's reference, made under `folder` unless it is there."""
    if setup.family in TRAINED:
        return find_model(setup.family)
    path = folder / f"{setup.family}-{setup.stimulus}-{setup.seed}{'-biases' if setup.biases else ''}"
    if not path.exists():
        family = FAMILIES[setup.family]
        if setup.biases and not family.has_biases:
            raise ValueError(f"{setup.family!r} can't be asked for biases")
        generator = torch.Generator().manual_seed(setup.seed)
        config = family.config(setup.biases)
        change_config(config, setup.stimulus)
        model = _quietly(_auto(setup).from_config)(config)
        family.fill(model, generator, branch_scale=branch_scale(setup.stimulus))
        change_weights(model, setup.stimulus)
        _quietly(model.save_pretrained)(path)
    return path


def load_reference(setup: Setup, path: Path) -> nn.Module:
    """Build the trusted model from its checkpoint, in the checkpoint's own dtype."""
    return _load(setup, path, "auto", setup.ref_kernel, setup.ref_experts)


def load_candidate(setup: Setup, path: Path) -> nn.Module:
    """Build the candidate from the reference's checkpoint; with `tp > 1` to be called on that many ranks."""
    options: dict[str, Any] = {}
    if setup.tp > 1:
        options["distributed_config"] = DistributedConfig(tp_plan="auto", tp_size=setup.tp)
    return _load(setup, path, setup.dtype, setup.cand_kernel, setup.cand_experts, **options)


def inputs(setup: Setup) -> dict[str, Any]:
    """Return keyword arguments of the models: `input_ids` and `attention_mask` are `[batch, TOKENS]`."""
    generator = torch.Generator().manual_seed(1000 + setup.seed)
    input_ids = torch.randint(VOCABULARY, (setup.batch, TOKENS), generator=generator)
    attention_mask = torch.ones_like(input_ids)
    if setup.padding:
        padded = max(setup.batch - 1, 1)
        attention_mask[:padded, :LEFT_PADDING] = 0
    given: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
    family = FAMILIES.get(setup.family)
    if family is not None and family.extra_inputs is not None:
        given |= family.extra_inputs(input_ids, generator)
    given = change_inputs(given, setup.stimulus)
    if setup.cache or (family is not None and not family.has_cache):
        return given
    return given | {"use_cache": False}


def run(setup: Setup, model: Any) -> torch.Tensor:
    """Run a model on a setup's inputs, all at once or in steps, and return logits `[batch, TOKENS, V]`."""
    given = inputs(setup)
    if not setup.decode:
        logits: torch.Tensor = model(**given).logits
        return logits
    if setup.stimulus is Stimulus.SECOND_REQUEST:
        _decode(setup, model, given | {"input_ids": given["input_ids"].flip(1)})
    return _decode(setup, model, given)


def _decode(setup: Setup, model: Any, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
    ids, mask = given["input_ids"], given["attention_mask"]
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    cache = transformers.DynamicCache(config=model.config)
    prompt = ids.shape[1] - setup.decode
    steps = [(0, prompt), *((start, start + 1) for start in range(prompt, ids.shape[1]))]
    made = [
        model(
            input_ids=ids[:, start:stop],
            attention_mask=mask[:, :stop],
            position_ids=positions[:, start:stop],
            past_key_values=cache,
            use_cache=True,
        ).logits
        for start, stop in steps
    ]
    return torch.cat(made, 1)


def _auto(setup: Setup) -> Any:
    family = FAMILIES.get(setup.family)
    return transformers.AutoModelForCausalLM if family is None else getattr(transformers, family.auto)


def _load(setup: Setup, path: Path, dtype: str, kernel: str, experts: str, **options: Any) -> nn.Module:
    if len(EXPERTS[setup.family]) > 1:
        options["experts_implementation"] = experts
    load = _quietly(_auto(setup).from_pretrained)
    model: nn.Module = load(path, local_files_only=True, dtype=dtype, attn_implementation=kernel, **options)
    return model.eval()


def _quietly(function: Any) -> Any:
    @functools.wraps(function)
    def quiet(*args: Any, **kwargs: Any) -> Any:
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        return function(*args, **kwargs)

    return quiet
