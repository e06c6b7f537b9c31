"""Reports of the collection of real faults that no fault of the registry recreates, with where or why."""

__all__ = ["IN_REAL_RUNS", "LEFT_OUT"]

IN_REAL_RUNS = {
    "sp-shared-expert-chunk": "tests.parallel.ports_sequences:not_gathered",
    "cp-mrope-seqdim": "tests.parallel.ports_tokens:positions_along_sequences",
    "moe-ep-combine-ids": "tests.parallel.spoils:mixed_up_answers",
}
"""What plants them in a port that is split over ranks in its own way, as `module:function`, by id."""

_BACKWARD = "the forward pass is exact: the fault is in the gradients, and a run here has none"
_STEPS = "it takes several forward passes, and a run here is one"
_NOT_THE_MODEL = "the model's own numbers are right: what is made of them afterwards is not"
_MEMORY = "memory grows from request to request; no number of the model is wrong"

LEFT_OUT = {
    "tp-ln-grad-unsynced": _BACKWARD,
    "tp-rowwise-bias-grad": _BACKWARD,
    "tp-mqa-kv-grad": _BACKWARD,
    "mem-abandoned-cache": _MEMORY,
    "tp-cp-fp8-ln-grad-x-tp": _BACKWARD,
    "tp-mqa-kv-bias-grad": _BACKWARD,
    "tp-router-grad-partial": _BACKWARD,
    "tp-megatron-outnorm-grad": _BACKWARD,
    "pp-grad-wipe": _BACKWARD,
    "pp-mtp-embedding-replica": _BACKWARD,
    "cp-attn-grad": _BACKWARD,
    "cp-loss-scale": _BACKWARD,
    "pp-vpp-offset": "of what a layer computes, its window alone depends on its number: attn-no-window",
    "kv-tp-dup-transfer": "it takes a cache that moves from one process to another, and none does here",
    "uninit-first-inference": _STEPS,
    "tp-nonrepro": _STEPS,
    "kv-fp8-scale-one": "kv-scale-ignored takes the scale from the same cache, and more is lost",
    "moe-logit-dtype-reinterpret": "moe-raw-logits and moe-softmax-twice spoil the same weights more quietly",
    "q-pack-metadata": "q-nibble-order permutes the columns of the same weight",
    "mm-cubic-nearest": "pixels-aliased changes the same pixels more quietly",
    "uninit-logprob-buffer": _NOT_THE_MODEL,
    "logits-logsoftmax-bf16": _NOT_THE_MODEL,
    "sample-temp-order": _NOT_THE_MODEL,
    "sample-topk0": _NOT_THE_MODEL,
    "mem-output-retained": _MEMORY,
    "mem-unique-prompts": _MEMORY,
}
"""Reasons by id of the report."""
