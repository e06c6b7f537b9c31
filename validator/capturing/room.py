"""Room on the disk, asked for before HDF5 writes: on a full one HDF5 can't close its file, and may crash."""

import errno
import os

import h5py

__all__ = ["flush", "reserve", "what_failed"]

_SLACK_BYTES = 1 << 20
"""For what HDF5 writes besides values."""


def reserve(descriptor: int, size_bytes: int) -> None:
    """Make a file longer by so many bytes, and by what HDF5 needs besides.

    Args:
        descriptor: of the file, opened apart from HDF5's own.
        size_bytes: of what is going to be written.

    Raises:
        OSError: there is no room. What was flushed is as it was.
    """
    if not hasattr(os, "posix_fallocate"):
        return
    size = os.fstat(descriptor).st_size
    try:
        os.posix_fallocate(descriptor, size, size_bytes + _SLACK_BYTES)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise


def flush(file: h5py.File, descriptor: int) -> None:
    """Write what HDF5 holds back, and give back the room that it did not take.

    Raises:
        OSError: the file can't be written.
    """
    file.flush()
    os.ftruncate(descriptor, file.id.get_filesize())


def what_failed(error: Exception) -> str:
    """Say why a file can't be written."""
    no_room = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
    return "no room left on the disk" if no_room else str(error)
