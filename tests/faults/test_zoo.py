"""Every report of the collection of real faults is recreated, or left out for a reason."""

from importlib import import_module

import pytest

from tests.planted.left_out import IN_REAL_RUNS, LEFT_OUT
from validator.faults import registry

RECREATED = {report for fault in registry().values() for report in fault.zoo}

FIRST = (
    "tp-bias-every-rank",
    "tp-fused-qkv-interleave",
    "tp-shared-expert-double-reduce",
    "tp-replicated-shared-overcount",
    "tp-ep-under-reduced",
    "tp-knorm-kv-replica",
    "tp-ln-grad-unsynced",
    "tp-rowwise-bias-grad",
    "tp-mqa-kv-grad",
    "pp-layer-offset",
    "cp-thd-rope-packed",
    "cp-roundrobin-rope",
    "moe-bias-cancellation",
    "moe-group-top2-sum",
    "moe-bias-dtype",
    "moe-raw-logit-weights",
    "moe-renorm-missing",
    "moe-shared-marker-slot",
    "attn-softcap-dropped",
    "attn-lse-base2",
    "attn-eager-overflow",
    "rope-bf16-tables",
    "rope-invfreq-bf16",
    "rope-yarn-mscale-field",
    "rope-yarn-cos-inflated",
    "rope-llama3-ignored",
    "rope-theta-unused",
    "rope-neox-vs-gptj",
    "norm-eps-after-rescale",
    "norm-missing-plus1-cast",
    "norm-fp16-overflow-vit",
    "act-gelu-erf",
    "act-late-clamp-ref-missing",
    "kv-prefix-hash-drops-token",
    "kv-prefix-hit-no-blocktable",
    "kv-swa-roll",
    "kv-swa-never-evict",
    "kv-fp8-scale-ignored",
    "kv-fp8-fnuz-decode",
    "q-gptq-actorder-tp",
    "q-nibble-split",
    "q-scale-transposed",
    "q-fp8-accum-14bit",
    "acc-triton-bf16",
    "acc-bf16-combine",
    "uninit-empty-expert",
    "race-async-copy",
    "logits-untied-ignored",
    "logits-scale-inverse",
    "logits-bf16-head",
    "mm-mrope-multi-image",
    "mm-mrope-generate",
    "mm-vit-cuseqlens-order",
    "mm-vit-window-mask",
    "mm-patch-order",
    "mm-resize-antialias",
    "mem-abandoned-cache",
)
"""Ids of the reports that the collection puts first."""

FURTHER = (
    "sp-shared-expert-chunk",
    "tp-cp-fp8-ln-grad-x-tp",
    "tp-mqa-kv-bias-grad",
    "tp-router-grad-partial",
    "tp-megatron-outnorm-grad",
    "pp-vpp-offset",
    "pp-grad-wipe",
    "pp-mtp-embedding-replica",
    "cp-attn-grad",
    "cp-loss-scale",
    "cp-mrope-seqdim",
    "moe-logit-dtype-reinterpret",
    "moe-routed-scale-npu",
    "moe-double-norm",
    "moe-ep-combine-ids",
    "moe-eplb-map",
    "moe-ep-psum-diff-tokens",
    "moe-probs-bf16-before-topk",
    "moe-capacity-drop",
    "swa-definition-mismatch",
    "attn-sinks-unbound",
    "rope-yarn-factor-collapse",
    "norm-gemma-double-plus1",
    "act-swiglu-swapped",
    "kv-stale-hash",
    "kv-fp8-scale-one",
    "kv-tp-dup-transfer",
    "q-pack-metadata",
    "q-fp8-max-448-240",
    "q-mimo-qkv-block",
    "acc-fp16-gemm",
    "uninit-first-inference",
    "tp-nonrepro",
    "uninit-logprob-buffer",
    "logits-tied-uninit",
    "logits-logsoftmax-bf16",
    "sample-temp-order",
    "sample-topk0",
    "mm-cubic-nearest",
    "mem-output-retained",
    "mem-unique-prompts",
)
"""Ids of the others."""


@pytest.mark.parametrize("report", FIRST + FURTHER)
def test_a_report_is_recreated_or_left_out_for_a_reason(report: str) -> None:
    places = [report in RECREATED, report in IN_REAL_RUNS, bool(LEFT_OUT.get(report))]
    assert sum(places) == 1


@pytest.mark.parametrize("place", IN_REAL_RUNS.values())
def test_what_plants_a_report_in_real_runs_is_there(place: str) -> None:
    module, _, name = place.partition(":")
    assert callable(getattr(import_module(module), name))


def test_nothing_is_recreated_or_left_out_that_is_not_in_the_collection() -> None:
    assert RECREATED | set(IN_REAL_RUNS) | set(LEFT_OUT) == set(FIRST + FURTHER)
