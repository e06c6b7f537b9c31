"""Memory that is free in the heap goes back to the system."""

import platform
from pathlib import Path

import pytest

from validator.streaming.allocation import return_free_memory

BLOCKS, BLOCK_BYTES, KEPT_ONE_IN = 10_000, 8 << 10, 64


def anonymous_bytes() -> int:
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_what_is_free_between_blocks_in_use_is_returned() -> None:
    blocks = [bytes([i % 255 + 1]) * BLOCK_BYTES for i in range(BLOCKS)]
    kept = blocks[::KEPT_ONE_IN]
    del blocks
    before = anonymous_bytes()
    return_free_memory()
    assert len(kept) == len(range(0, BLOCKS, KEPT_ONE_IN))
    # Whole pages of what was freed: at least half, were each kept block to hold a page more on either side.
    assert before - anonymous_bytes() > BLOCKS * BLOCK_BYTES // 2
