"""Memory that goes back to the system when it is freed, as a model that is streamed needs it.

glibc learns from each large block that is freed to take the next ones of that size from its heap. Between
float64 copies of one weight after the other, small results stay in that heap: it can't shrink, and grows
towards the size of the whole model.
"""

import ctypes
from collections.abc import Callable

__all__ = ["return_free_memory", "return_large_blocks"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of glibc's malloc.h
_LARGE_BYTES = 256 << 10
_FREE_BYTES = 4 << 20


def return_large_blocks() -> None:
    """Let this process take blocks of 256 KiB or more from the system, and return each when it is freed.

    What is set stays so for the process. Where the C library is another than glibc, nothing is done.
    """
    mallopt = _of_glibc("mallopt")
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_TRIM_THRESHOLD, _FREE_BYTES)


def return_free_memory() -> None:
    """Return to the system what is free in this process's heap now, between what is in use too.

    Where the C library is another than glibc, nothing is done.
    """
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _of_glibc(name: str) -> Callable[..., int] | None:
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None
    return function
