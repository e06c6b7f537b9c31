"""Compressed chunks are looked through before they are decompressed.

The bitshuffle filter trusts the sizes that a chunk's bytes state and reads past the end of the chunk if
they are wrong. Here they are added up first, so that damage is an error and not a crash.

Format: 8 bytes size and 4 bytes block size (big-endian, of the decompressed bytes), then for each block 4
bytes size and the compressed bytes; what is left of fewer than 8 elements follows as it is.

Source:
    bitshuffle, `src/bshuf_h5filter.c` and `src/bitshuffle.c` (the filter's documentation is its source).
"""

import struct

import h5py
import hdf5plugin

__all__ = ["check_chunks", "check_filters"]

_MULTIPLE = 8
_ZSTD = 3
_HEADER = struct.Struct(">QI")
_BLOCK_HEADER = struct.Struct(">I")


def check_filters(dataset: h5py.Dataset) -> bool:
    """Say whether a dataset is compressed.

    Raises:
        ValueError: it is, with another filter than a capture is written with.
    """
    creation = dataset.id.get_create_plist()
    if creation.get_nfilters() == 0:
        return False
    number, _, values, _ = creation.get_filter(0)
    settings = tuple(values)[2:5]
    size = dataset.id.get_type().get_size()
    known = number == hdf5plugin.Bitshuffle.filter_id and len(settings) == 3
    if creation.get_nfilters() > 1 or not known or (settings[0], settings[2]) != (size, _ZSTD):
        raise ValueError(f"{dataset.name!r} is compressed in a way that no capture is")
    return True


def check_chunks(dataset: h5py.Dataset, offset: int, count: int) -> None:
    """Raise `ValueError` unless the compressed chunks that hold `count` elements from `offset` are sound."""
    chunk = dataset.chunks[0]
    itemsize = dataset.id.get_type().get_size()
    for start in range(offset // chunk * chunk, offset + count, chunk):
        mask, data = dataset.id.read_direct_chunk((start,))
        if mask != 0 or not _is_sound(data, chunk, itemsize):
            raise ValueError(f"{dataset.name!r} has a broken chunk at element {start}")


def _is_sound(data: bytes, elements: int, itemsize: int) -> bool:
    if len(data) < _HEADER.size:
        return False
    size, block_bytes = _HEADER.unpack_from(data)
    block = block_bytes // itemsize
    if size != elements * itemsize or block_bytes % itemsize or block == 0 or block % _MULTIPLE:
        return False
    whole, rest = divmod(elements, block)
    blocks = whole + (rest >= _MULTIPLE)
    position = _HEADER.size
    for _ in range(blocks):
        if position + _BLOCK_HEADER.size > len(data):
            return False
        position += _BLOCK_HEADER.size + _BLOCK_HEADER.unpack_from(data, position)[0]
    return position + elements % _MULTIPLE * itemsize == len(data)
