"""Captures of a small model that is run in steps, built in memory."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from tests.align.build import Recorder, tensor_ref
from validator.capturing.records import ObjectRef, RankCapture

__all__ = ["CHANNELS", "HEADS", "IDS", "Values", "prefill", "stepped"]

BATCH, TOKENS, CHANNELS, HEADS = 2, 7, 4, 3
IDS = torch.arange(BATCH * TOKENS).view(BATCH, TOKENS)


class Values:
    """What the modules of the model compute, for all tokens at once."""

    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(BATCH, TOKENS, CHANNELS, generator=generator)
    keys = torch.randn(BATCH, HEADS, TOKENS, CHANNELS, generator=generator)
    scores = torch.rand(BATCH, HEADS, TOKENS, TOKENS, generator=generator).tril()
    rows = torch.randn(BATCH * TOKENS, 5, generator=generator)
    logits = torch.randn(BATCH, TOKENS, 11, generator=generator)


def stepped(
    sizes: Sequence[int],
    *,
    masks: bool = False,
    positions: bool = False,
    caches: Sequence[int | None] | None = None,
    numbers: Sequence[int] | None = None,
    kept: int | None = None,
    rank: int = 0,
    halves: int = 1,
) -> RankCapture:
    """Record the model, called once for each of `sizes` tokens after the other.

    Args:
        sizes: tokens of each call; after all of them the next begins anew.
        masks: whether each call is given the mask of all tokens so far.
        positions: whether it is given positions.
        caches: length of the cache that each call is handed; None for no length. Default: no cache.
        numbers: which cache it is; one for all by default.
        kept: how many positions have logits, from the end; None for all.
        rank: whose capture it is.
        halves: how many ranks hold a part of the channels that go into `norm`, after one another.
    """
    recorder = Recorder(rank)
    hidden = Values.hidden.chunk(halves, -1)[rank % halves]
    start = 0
    for size in sizes:
        if start >= TOKENS:
            start = 0
        stop = start + size
        given: dict[str, Any] = {"input_ids": IDS[:, start:stop], "use_cache": True}
        given |= {"attention_mask": torch.ones(BATCH, stop, dtype=torch.int64)} if masks else {}
        given |= {"position_ids": torch.arange(start, stop).expand(BATCH, -1)} if positions else {}
        keep = size if kept is None else kept
        with recorder.call("", given) as out:
            recorder.leaf("norm", hidden[:, start:stop], hidden[:, start:stop])
            with recorder.call("attention", {"mask": torch.zeros(1, 1, size, stop)}) as attention:
                recorder.reduce(hidden[:, start:stop] / 2, hidden[:, start:stop], (0, 1))
                attention["0"] = Values.keys[:, :, start:stop]
                attention["1"] = Values.scores[:, :, start:stop, :stop]
            rows = Values.rows.view(BATCH, TOKENS, -1)[:, start:stop].flatten(0, 1)
            recorder.leaf("router", rows, {"0": rows, "1": torch.ones(3)})
            logits = Values.logits[:, start:stop][:, -keep:]
            recorder.leaf("head", hidden[:, start:stop][:, -keep:], logits)
            out["logits"] = logits
        start = stop
    capture = recorder.capture()
    if caches is None:
        return capture
    found = iter(zip(caches, numbers or [0] * len(caches), strict=True))
    calls = []
    for call in capture.calls:
        objects: tuple[dict[str, ObjectRef], dict[str, ObjectRef]] = ({}, {})
        if not call.module:
            length, number = next(found)
            item = ObjectRef(type="transformers.DynamicCache", number=number, length=length)
            objects = ({"past_key_values": item}, {"past_key_values": item})
        calls.append(replace(call, objects=objects))
    return replace(capture, calls=tuple(calls))


def prefill(*, kept: int | None = None) -> RankCapture:
    """Record the model, called once for all tokens; `kept` are those of each of the steps 4, 2 and 1."""
    capture = stepped([TOKENS])
    if kept is None:
        return capture
    places = [p for start, stop in ((0, 4), (4, 6), (6, 7)) for p in range(start, stop)[-kept:]]
    calls = []
    for call in capture.calls:
        if call.module == "head":
            call = replace(
                call,
                inputs={"input": tensor_ref(Values.hidden[:, places])},
                outputs={"": tensor_ref(Values.logits[:, places])},
            )
        elif not call.module:
            call = replace(call, outputs={"logits": tensor_ref(Values.logits[:, places])})
        calls.append(call)
    return replace(capture, calls=tuple(calls))
