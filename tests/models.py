"""Small pairs of reference and candidate: four architectures, in every setting that a healthy port may have.

A random-weight model with the default initialisation hides faults: its attention is nearly uniform and its
norms are all ones, so that a wrong scale or a weight left out moves nothing. The weights here give each
projection unit variance, attention scores of standard deviation 4 and logits as peaked as a trained model's.
"""

import functools
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.distributed import DistributedConfig

from validator.content import find_model

__all__ = [
    "FAMILIES",
    "KERNELS",
    "Setup",
    "Stimulus",
    "checkpoint",
    "inputs",
    "load_candidate",
    "load_reference",
]

KERNELS = {
    "tiny-dense": ("sdpa", "eager"),
    "llama": ("sdpa", "eager"),
    "qwen3": ("sdpa", "eager"),
    "gemma2": ("eager",),  # a soft cap on the scores is beyond what sdpa can do
}
"""Attention implementations by family."""

FAMILIES = tuple(KERNELS)

TOKENS = 32
LEFT_PADDING = 7
VOCABULARY = 256
SCORE_STD = 4.0


class Stimulus(StrEnum):
    """What the weights make of the activations."""

    PEAKED = "peaked"
    SMALL = "small"  # the residual stream's mean square is about the norms' eps


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One reference with one way to run a candidate.

    Attributes:
        family: a name in `FAMILIES`.
        dtype: the candidate's.
        ref_kernel, cand_kernel: attention implementation of either side.
        tp: ranks that the candidate is sharded over.
        batch: sequences.
        padding: whether all sequences but the last (all, where there is one) are padded on the left.
        seed: of weights and inputs.
        stimulus: what the weights make of the activations.
        biases: whether the projections of attention and MLP have biases (Llama).
        cache: whether the models are asked for a KV cache, as they are by default.
    """

    family: str
    dtype: str = "bfloat16"
    ref_kernel: str = "eager"
    cand_kernel: str = "eager"
    tp: int = 1
    batch: int = 4
    padding: bool = False
    seed: int = 0
    stimulus: Stimulus = Stimulus.PEAKED
    biases: bool = False
    cache: bool = False

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
        options += [] if self.stimulus is Stimulus.PEAKED else [self.stimulus.value]
        options += [name for name in ("biases", "cache") if asdict(self)[name]]
        return "-".join(options)


def checkpoint(setup: Setup, folder: Path) -> Path:
    """Return the checkpoint of a setup's reference, made under `folder` unless it is there."""
    if setup.family == "tiny-dense":
        return find_model("tiny-dense")
    path = folder / f"{setup.family}-{setup.stimulus}-{setup.seed}{'-biases' if setup.biases else ''}"
    if not path.exists():
        generator = torch.Generator().manual_seed(setup.seed)
        model = _quietly(transformers.AutoModelForCausalLM.from_config)(_config(setup))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                _fill(name, parameter, setup, generator)
        _quietly(model.save_pretrained)(path)
    return path


def load_reference(setup: Setup, path: Path) -> nn.Module:
    """Build the trusted model from its checkpoint, in the checkpoint's own dtype."""
    return _load(path, dtype="auto", attn_implementation=setup.ref_kernel)


def load_candidate(setup: Setup, path: Path) -> nn.Module:
    """Build the candidate from the reference's checkpoint; with `tp > 1` to be called on that many ranks."""
    options: dict[str, Any] = {"dtype": setup.dtype, "attn_implementation": setup.cand_kernel}
    if setup.tp > 1:
        options["distributed_config"] = DistributedConfig(tp_plan="auto", tp_size=setup.tp)
    return _load(path, **options)


def inputs(setup: Setup) -> dict[str, Any]:
    """Return keyword arguments of the models: `input_ids` and `attention_mask` are `[batch, TOKENS]`."""
    generator = torch.Generator().manual_seed(1000 + setup.seed)
    input_ids = torch.randint(VOCABULARY, (setup.batch, TOKENS), generator=generator)
    attention_mask = torch.ones_like(input_ids)
    if setup.padding:
        padded = max(setup.batch - 1, 1)
        attention_mask[:padded, :LEFT_PADDING] = 0
    given: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
    return given if setup.cache else given | {"use_cache": False}


def _config(setup: Setup) -> Any:
    common = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    if setup.family == "llama":
        return transformers.LlamaConfig(**common, attention_bias=setup.biases, mlp_bias=setup.biases)
    if setup.biases:
        raise ValueError(f"{setup.family!r} has no biases here")
    if setup.family == "qwen3":
        return transformers.Qwen3Config(**common)
    if setup.family == "gemma2":
        # A window shorter than the sequences, so that it matters.
        return transformers.Gemma2Config(**common, query_pre_attn_scalar=16, sliding_window=12)
    raise ValueError(f"{setup.family!r} is not one of {', '.join(FAMILIES)}")


def _fill(name: str, parameter: Tensor, setup: Setup, generator: torch.Generator) -> None:
    """Give a parameter values that let its activations show a fault."""
    noise = torch.randn(parameter.shape, generator=generator)
    owner, leaf = name.split(".")[-2:]
    scale = 1.0
    if leaf == "bias":
        parameter.copy_(noise / 2)
        return
    if "norm" in owner:
        # Gemma's norms multiply by 1 + weight.
        centre = 0.0 if setup.family == "gemma2" else 1.0
        scale = SCORE_STD**0.5 if owner in ("q_norm", "k_norm") else 1.0
        parameter.copy_(scale * (centre + 0.2 * noise))
        return
    if owner in ("q_proj", "k_proj"):
        scale = SCORE_STD**0.5
    elif owner == "lm_head":
        scale = 4.0
    elif owner == "embed_tokens":
        # Rows are looked up, not summed over. Gemma multiplies them by this root, and its head shares them.
        scale = 1.0 if setup.family == "gemma2" else parameter.shape[1] ** 0.5
    if setup.stimulus is Stimulus.SMALL and owner in ("embed_tokens", "o_proj", "down_proj"):
        scale *= 1e-3
    parameter.copy_(scale * noise / parameter.shape[1] ** 0.5)


def _load(path: Path, **options: Any) -> nn.Module:
    load = _quietly(transformers.AutoModelForCausalLM.from_pretrained)
    model: nn.Module = load(path, local_files_only=True, **options)
    return model.eval()


def _quietly(function: Any) -> Any:
    @functools.wraps(function)
    def quiet(*args: Any, **kwargs: Any) -> Any:
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        return function(*args, **kwargs)

    return quiet
