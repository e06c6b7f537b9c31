"""Weights and inputs on which a kind of fault shows: most hide on ordinary ones."""

from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["BLOCK", "Stimulus", "branch_scale", "change_config", "change_inputs", "change_weights"]

BLOCK = 16
"""Tokens in a block of the cache that two prompts seem to share."""


class Stimulus(StrEnum):
    """What the weights make of the activations, and what the inputs are."""

    PEAKED = "peaked"
    SMALL = "small"  # the residual stream's mean square is about the norms' eps
    SPIKY = "spiky"  # one channel of some tokens is far larger than the others, and the norms' eps is 1e-3
    HUGE_BIASES = "huge-biases"  # of queries and keys: some scores are beyond float16
    WIDE_GATES = "wide-gates"  # experts' gates and values reach their clamps now and then
    LONG_SUMS = "long-sums"  # 1024 terms in the down projection
    FAR = "far"  # positions begin at 3000
    SHARED_PREFIX = (
        "shared-prefix"  # the second prompt's first block is the first one's but for its last token
    )
    LARGE_CORRECTION = "large-correction"  # biases of routers are about 12 and decide; many scores are tiny
    CLOSE_CORRECTION = "close-correction"  # biases of routers are about 10, and 0.01 apart
    NEGATIVE_CORRECTION = "negative-correction"  # biases of routers are more negative than most scores
    MANY_EXPERTS = "many-experts"  # 8 of 16 for each token
    IDLE_EXPERT = "idle-expert"  # no token gets the last expert
    FAINT_ROUTER = "faint-router"  # logits of routers are so small that their own rounding is smaller still
    OUTLIER_PATCHES = "outlier-patches"  # some patches of images are far brighter than others
    WIDE_HEADS = "wide-heads"  # 256 channels of a head
    TIED_LOGITS = "tied-logits"  # each second token's logits are within an ulp of the ones before
    HALF_CHECKPOINT = "half-checkpoint"  # the reference is float16
    SECOND_REQUEST = "second-request"  # where tokens are decoded: another request was served before


def branch_scale(stimulus: Stimulus) -> float:
    """Return what to multiply the embedding, and what branches add to the residual stream, by."""
    return 1e-3 if stimulus is Stimulus.SMALL else 1.0


def change_config(config: Any, stimulus: Stimulus) -> None:
    """Change sizes and constants of a model before it is built."""
    if stimulus is Stimulus.SPIKY:
        config.rms_norm_eps = 1e-3
    elif stimulus is Stimulus.LONG_SUMS:
        config.intermediate_size = 1024
    elif stimulus is Stimulus.MANY_EXPERTS:
        config.num_local_experts, config.num_experts_per_tok = 16, 8
    elif stimulus is Stimulus.WIDE_HEADS:
        config.head_dim = 256


def change_weights(model: nn.Module, stimulus: Stimulus) -> None:
    """Change random weights in place."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if stimulus is Stimulus.SPIKY and name.endswith("embed_tokens.weight"):
                parameter[::3, 5] = 400.0
            elif stimulus is Stimulus.HUGE_BIASES and name.endswith(("q_proj.bias", "k_proj.bias")):
                parameter *= 225.0
            elif stimulus is Stimulus.WIDE_GATES and name.endswith("experts.gate_up_proj"):
                parameter *= 4.0
            elif stimulus is Stimulus.LARGE_CORRECTION and name.endswith("gate.weight"):
                parameter *= 8.0
            elif stimulus is Stimulus.FAINT_ROUTER and name.endswith("gate.weight"):
                parameter /= 16.0
            elif stimulus is Stimulus.TIED_LOGITS and name == "lm_head.weight":
                parameter[1::2] = parameter[::2] * (1 + 2.0**-9)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                _correct(buffer, stimulus)
        if stimulus is Stimulus.HALF_CHECKPOINT:
            model.half()


def _correct(bias: Tensor, stimulus: Stimulus) -> None:
    """Change the bias of a router's scores, normal with standard deviation 1/4, in place."""
    if stimulus is Stimulus.LARGE_CORRECTION:
        bias.mul_(8.0).add_(12.0)
    elif stimulus is Stimulus.CLOSE_CORRECTION:
        bias.mul_(0.04).add_(10.0)
    elif stimulus is Stimulus.NEGATIVE_CORRECTION:
        bias -= 1.0
    elif stimulus is Stimulus.IDLE_EXPERT:
        bias[-1] -= 30.0


def change_inputs(given: dict[str, Any], stimulus: Stimulus) -> dict[str, Any]:
    """Return the arguments of the models, given the usual ones."""
    input_ids = given["input_ids"]
    if stimulus is Stimulus.FAR:
        positions = torch.arange(3000, 3000 + input_ids.shape[1]).expand(len(input_ids), -1)
        return given | {"position_ids": positions}
    if stimulus is Stimulus.OUTLIER_PATCHES:
        pixel_values = given["pixel_values"].clone()
        pixel_values[::5] *= 400.0
        return given | {"pixel_values": pixel_values}
    if stimulus is Stimulus.SHARED_PREFIX:
        input_ids = input_ids.clone()
        input_ids[1, : BLOCK - 1] = input_ids[0, : BLOCK - 1]
        return given | {"input_ids": input_ids}
    return given
