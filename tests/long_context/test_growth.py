"""Memory of runs that were made up: what leaks, what grows as it should, what is kept too often."""

import dataclasses
from collections import Counter

import torch

from validator.long_context.contexts import Context, Window
from validator.long_context.driving import Drive, LayerReading, Reading
from validator.long_context.growth import memory_growth
from validator.long_context.meters import Memory
from validator.long_context.occupancy import occupancy
from validator.long_context.schedules import Schedule

WINDOWED = Context(windows=(None, Window(size=12)))
SCHEDULE = Schedule(chunks=(64,), decoded=32)


def layer(held: int, *, seen: int | None = None, values: int = 32, block: int = 1) -> LayerReading:
    return LayerReading(
        kind="DynamicLayer",
        seen=held if seen is None else seen,
        held=held,
        capacity=None,
        block=block,
        size_bytes=2 * values * held,
        row_bytes=2 * values,
        row_values=values,
        changed=None,
    )


def drive(*readings: tuple[LayerReading, ...], others: int = 0, device: int | None = None) -> Drive:
    """Return a run whose memory beside the cache grows by so many bytes at each reading."""
    made = []
    for i, layers in enumerate(readings):
        cache = sum(each.size_bytes for each in layers)
        memory = Memory(
            cache_bytes=cache,
            other_bytes=others * i,
            device_bytes=None if device is None else cache + device * i,
            kinds=Counter(),
        )
        made.append(Reading(fed=65 + i, layers=layers, memory=memory))
    empty = torch.empty(0)
    return Drive(
        schedule=SCHEDULE,
        tokens=empty,
        logits=empty,
        readings=tuple(made),
        hoarded=({}, {}),
        cache="DynamicCache",
    )


def growing(values: int = 32) -> list[tuple[LayerReading, ...]]:
    return [(layer(65 + i, values=values), layer(11, seen=65 + i)) for i in range(32)]


def test_a_cache_that_grows_by_its_shapes_is_no_leak() -> None:
    found = memory_growth(drive(*growing(), device=0), WINDOWED, (32, 32))
    assert found.problems == ()
    assert found.cache is not None
    assert found.cache.value == found.predicted == 64


def test_memory_that_only_the_device_knows_is_a_leak_of_compiled_code() -> None:
    (text,) = memory_growth(drive(*growing(), device=512), WINDOWED).problems
    assert text.startswith("device memory leaks: 512 bytes a token beside the cache")
    assert "kept by compiled code" in text


def test_heads_that_are_kept_more_often_than_by_the_reference_are_told() -> None:
    (text,) = memory_growth(drive(*growing(values=128)), WINDOWED, (32, 32)).problems
    assert text.startswith("a token takes 128 numbers of the cache of layer 0, and 32 of the reference's")


def test_too_few_readings_tell_no_slope() -> None:
    found = memory_growth(drive(*growing()[:4]), WINDOWED)
    assert (found.cache, found.others, found.problems) == (None, None, ())


def test_a_cache_in_blocks_may_hold_what_is_left_of_one() -> None:
    context = Context(windows=(Window(size=12),))
    kept = drive(*[(layer(42, seen=65 + i, block=16),) for i in range(32)])
    assert occupancy(kept, context).problems == ()
    single = drive(*[(layer(42, seen=65 + i),) for i in range(32)])
    (text,) = occupancy(single, context).problems
    assert (
        text
        == "the cache of layer 0 evicts too late: after 96 tokens it holds 42, and its window of 12 needs 11"
    )


CHUNKED = Context(windows=(Window(size=48, is_chunked=True),))


def test_a_cache_may_drop_each_chunk_at_its_end_and_grow_within_it() -> None:
    by_chunk = drive(*[(layer((65 + i) % 48, seen=65 + i),) for i in range(32)])
    assert occupancy(by_chunk, CHUNKED).problems == ()
    assert memory_growth(by_chunk, CHUNKED).problems == ()
    as_a_window = drive(*[(layer(47, seen=65 + i),) for i in range(32)])
    assert occupancy(as_a_window, CHUNKED).problems == ()


def test_a_cache_that_drops_what_its_chunk_needs_or_never_drops_is_told() -> None:
    too_early = drive(*[(layer((65 + i) % 48 - 1, seen=65 + i),) for i in range(16)])
    (text,) = occupancy(too_early, CHUNKED).problems
    assert "evicts too early: after 65 tokens it holds 16, and a chunk of 48 needs 17" in text
    never = drive(*[(layer(65 + i),) for i in range(32)])
    (text,) = occupancy(never, CHUNKED).problems
    assert text.endswith("never evicts: after 96 tokens it holds 96, and its chunk of 48 needs 47")


def test_a_cache_without_a_count_is_judged_by_what_it_holds() -> None:
    uncounted = [dataclasses.replace(layer(11), seen=None) for _ in range(8)]
    assert (
        occupancy(drive(*[(each,) for each in uncounted]), Context(windows=(Window(size=12),))).problems == ()
    )
    (text,) = occupancy(drive((uncounted[0],)), Context()).problems
    assert "evicts too early: after 65 tokens it holds 11, and attention to all tokens needs 65" in text


def test_a_count_that_went_wrong_is_told() -> None:
    (text,) = occupancy(drive((layer(65, seen=80),)), Context(windows=(None,))).problems
    assert text.startswith("the cache of layer 0 counts 80 tokens after 65 were fed")
