"""Small models of many architectures, with weights that let a fault show.

A random-weight model with the default initialisation hides faults: its attention is nearly uniform and its
norms are all ones, so that a wrong scale or a weight left out moves nothing. The weights here give each
projection unit variance, attention scores of standard deviation 4 and logits as peaked as a trained model's;
norm weights and biases are random.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

__all__ = ["FAMILIES", "SCORE_STD", "TOKENS", "VOCABULARY", "Family"]

TOKENS = 32
VOCABULARY = 256
SCORE_STD = 4.0

_SDPA = ("sdpa", "eager")
_EXPERTS = ("eager", "grouped_mm", "batched_mm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """An architecture.

    Attributes:
        name: how setups call it.
        config: makes its configuration; told whether the projections are to have biases, in a family that
            can have them or not.
        kernels: attention implementations; the first is the default of candidates.
        experts: implementations of the experts; `("eager",)` where there are none.
        auto: the class that loads its models.
        is_sharded: whether transformers has a tensor-parallel plan for it that works here.
        is_padded: whether its sequences can be padded on the left.
        has_biases: whether biases can be asked for.
        offset_norms: whether norms multiply by 1 + weight.
        extra_inputs: makes further arguments of the model, or other `input_ids`, given random ones
            `[batch, TOKENS]` and a generator.
    """

    name: str
    config: Callable[[bool], Any]
    kernels: tuple[str, ...] = _SDPA
    experts: tuple[str, ...] = ("eager",)
    auto: str = "AutoModelForCausalLM"
    is_sharded: bool = False
    is_padded: bool = True
    has_biases: bool = False
    offset_norms: bool = False
    extra_inputs: Callable[[Tensor, torch.Generator], dict[str, Any]] | None = None

    @property
    def has_cache(self) -> bool:
        """Whether the models can be asked for a cache."""
        return self.auto != "AutoModelForMaskedLM"

    def fill(self, model: nn.Module, generator: torch.Generator, *, branch_scale: float = 1.0) -> None:
        """Give all parameters, and the buffers that a checkpoint holds, values that show a fault.

        Args:
            model: freshly built.
            generator: of the values.
            branch_scale: what to multiply the embedding, and what branches add to the residual stream, by.
        """
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                self._fill(name, parameter, generator, branch_scale)
            saved = model.state_dict().keys()
            for name, buffer in model.named_buffers():
                if name in saved and name.endswith("e_score_correction_bias"):
                    buffer.copy_(torch.randn(buffer.shape, generator=generator) / 4)

    def _fill(self, name: str, parameter: Tensor, generator: torch.Generator, branch_scale: float) -> None:
        noise = torch.randn(parameter.shape, generator=generator)
        owner, leaf = ("", *name.split("."))[-2:]
        if leaf in ("A_log", "dt_bias", "D", "sinks"):
            # Of a state-space layer: decay rates in 1 to 16, step sizes about softplus(0). Sinks are scores.
            parameter.copy_(noise.abs().clamp(max=2.7) if leaf == "A_log" else noise)
            return
        if leaf.endswith("bias"):
            parameter.copy_(noise / 2)
            return
        if "norm" in owner.lower() or owner == "ln_q":
            centre = 0.0 if self.offset_norms else 1.0
            scale = SCORE_STD**0.5 if owner in ("q_norm", "k_norm") else 1.0
            parameter.copy_(scale * (centre + 0.2 * noise))
            return
        scale = 1.0
        inputs = parameter[0].numel() if parameter.dim() != 3 else parameter.shape[-1]
        if owner in ("q_proj", "k_proj", "query", "key", "q_b_proj"):
            scale = SCORE_STD**0.5
        elif owner == "qkv":
            noise[: 2 * len(noise) // 3] *= SCORE_STD**0.5
        elif owner == "lm_head":
            scale = 4.0
        elif "embed" in owner:
            # Rows are looked up, not summed over. Gemma multiplies them by this root; its head shares them.
            scale = 1.0 if self.offset_norms else parameter.shape[1] ** 0.5
        if "embed" in owner or owner in ("o_proj", "down_proj", "out_proj") or leaf == "down_proj":
            scale *= branch_scale
        parameter.copy_(scale * noise / inputs**0.5)


_TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
_HEADS = {**_TEXT, "head_dim": 16}


def _llama(biases: bool) -> Any:
    return transformers.LlamaConfig(**_HEADS, attention_bias=biases, mlp_bias=biases)


def _llama3(biases: bool) -> Any:
    # The scaling of Llama 3.1, which slows the last three of eight frequencies down.
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    return transformers.LlamaConfig(**_HEADS, attention_bias=biases, mlp_bias=biases, rope_parameters=rope)


def _qwen3(_: bool) -> Any:
    return transformers.Qwen3Config(**_HEADS)


def _qwen2(_: bool) -> Any:
    return transformers.Qwen2Config(**_TEXT)


def _gemma2(_: bool) -> Any:
    # A window shorter than the sequences, so that it matters.
    return transformers.Gemma2Config(**_HEADS, query_pre_attn_scalar=16, sliding_window=12)


def _olmo2(_: bool) -> Any:
    return transformers.Olmo2Config(**_TEXT)


def _granite(_: bool) -> Any:
    return transformers.GraniteConfig(
        **_TEXT,
        logits_scaling=4.0,
        residual_multiplier=0.5,
        embedding_multiplier=3.0,
        attention_multiplier=0.3,
    )


def _qwen3_moe(_: bool) -> Any:
    return transformers.Qwen3MoeConfig(
        **_HEADS, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=48, norm_topk_prob=True
    )


def _qwen2_moe(_: bool) -> Any:
    return transformers.Qwen2MoeConfig(
        **_TEXT,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
        shared_expert_intermediate_size=64,
        norm_topk_prob=False,
    )


def _deepseek_v3(_: bool) -> Any:
    return transformers.DeepseekV3Config(
        **{**_TEXT, "num_key_value_heads": 8},
        moe_intermediate_size=48,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_shared_experts=1,
        n_group=4,
        topk_group=2,
        first_k_dense_replace=1,
        q_lora_rank=32,
        kv_lora_rank=32,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "mscale": 0.8,
            "mscale_all_dim": 1.2,
        },
    )


def _gpt_oss(_: bool) -> Any:
    return transformers.GptOssConfig(**_HEADS, num_local_experts=8, num_experts_per_tok=2, sliding_window=12)


def _mamba2(_: bool) -> Any:
    return transformers.Mamba2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=4,
        num_heads=8,
        head_dim=16,
        state_size=16,
        n_groups=2,
        expand=2,
        chunk_size=8,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=False,
    )


def _bert(_: bool) -> Any:
    return transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=128,
        pad_token_id=0,
    )


def _token_types(input_ids: Tensor, generator: torch.Generator) -> dict[str, Any]:
    types = torch.zeros_like(input_ids)
    types[:, input_ids.shape[1] // 2 :] = 1
    return {"token_type_ids": types}


def _mixtral(_: bool) -> Any:
    return transformers.MixtralConfig(**_HEADS, num_local_experts=8, num_experts_per_tok=2)


_IMAGE, _IMAGE_START, _IMAGE_END = VOCABULARY - 3, VOCABULARY - 2, VOCABULARY - 1
_GRIDS = ((1, 4, 6), (1, 6, 8))
"""Frames, rows and columns of patches of the two images of each sequence."""
_PATCH, _MERGED = 4, 2


def _qwen2_5_vl(_: bool) -> Any:
    # A window is two by two merged patches: the images have two and four, some of them cut off. The first
    # and the last block attend over windows, those between over whole images.
    vision = {
        "depth": 4,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_heads": 4,
        "patch_size": _PATCH,
        "spatial_merge_size": _MERGED,
        "temporal_patch_size": 2,
        "window_size": 2 * _MERGED * _PATCH,
        "fullatt_block_indexes": [1, 2],
        "out_hidden_size": _TEXT["hidden_size"],
    }
    text = {
        **_TEXT,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
    }
    return transformers.Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=_IMAGE,
        vision_start_token_id=_IMAGE_START,
        vision_end_token_id=_IMAGE_END,
    )


def _images(input_ids: Tensor, generator: torch.Generator) -> dict[str, Any]:
    """Put two images of different sizes near the end of each sequence, behind what may be padding."""
    batch = len(input_ids)
    ids = input_ids % _IMAGE  # no image by chance
    end = TOKENS - 2
    for frames, rows, columns in reversed(_GRIDS):
        start = end - frames * rows * columns // _MERGED**2
        ids[:, start - 2] = _IMAGE_START
        ids[:, start - 1 : end - 1] = _IMAGE
        ids[:, end - 1] = _IMAGE_END
        end = start - 2
    patches = batch * sum(frames * rows * columns for frames, rows, columns in _GRIDS)
    return {
        "input_ids": ids,
        "mm_token_type_ids": (ids == _IMAGE).to(torch.int32),
        "image_grid_thw": torch.tensor(_GRIDS * batch),
        "pixel_values": torch.randn(patches, 3 * 2 * _PATCH**2, generator=generator),
    }


FAMILIES = {
    family.name: family
    for family in (
        Family(name="llama", config=_llama, is_sharded=True, has_biases=True),
        Family(name="llama3", config=_llama3, is_sharded=True, has_biases=True),
        Family(name="qwen3", config=_qwen3, is_sharded=True),
        # A soft cap on the scores is beyond what sdpa can do.
        Family(name="gemma2", config=_gemma2, kernels=("eager",), is_sharded=True, offset_norms=True),
        Family(name="qwen2", config=_qwen2, is_sharded=True),
        Family(name="olmo2", config=_olmo2),
        Family(name="granite", config=_granite, is_sharded=True),
        Family(name="qwen3-moe", config=_qwen3_moe, experts=_EXPERTS, is_sharded=True),
        Family(name="qwen2-moe", config=_qwen2_moe, experts=_EXPERTS, is_sharded=True),
        Family(name="mixtral", config=_mixtral, experts=_EXPERTS, is_sharded=True),
        Family(name="deepseek-v3", config=_deepseek_v3, experts=_EXPERTS, is_sharded=True),
        Family(name="gpt-oss", config=_gpt_oss, kernels=("eager",), experts=_EXPERTS, is_sharded=True),
        Family(name="mamba2", config=_mamba2, kernels=("eager",)),
        Family(name="bert", config=_bert, auto="AutoModelForMaskedLM", extra_inputs=_token_types),
        Family(
            name="qwen2.5-vl",
            config=_qwen2_5_vl,
            auto="AutoModelForImageTextToText",
            extra_inputs=_images,
        ),
    )
}
"""All families but those that ship with trained weights."""
