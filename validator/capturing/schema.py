"""Names and tables of a capture file: what the writer and the reader share.

No name that starts with `%` and a lowercase letter can come from `values.escape_part`, so those
given here can't meet the name of a module, an argument or a parameter.
"""

import h5py
import numpy as np

from .values import escape_part, unescape_part

__all__ = [
    "FORMAT",
    "FORMAT_VERSION",
    "INDEX",
    "INDEX_DTYPE",
    "MANIFEST",
    "NO_SOURCE",
    "NO_STATISTICS",
    "OUTSIDE",
    "PARAMETERS",
    "ROW_HASHES",
    "TABLES",
    "escape_fqn",
    "module_path",
    "noise_path",
    "parameter_path",
    "source_name",
    "unescape_fqn",
]

FORMAT = "validator-capture"
FORMAT_VERSION = 1

MANIFEST = "manifest.json"
OUTSIDE = "%outside"
"""Stands for a module where no call was open."""
INDEX = "%index"
ROW_HASHES = "%rows"
NO_SOURCE = -1
"""`source` of a value that is known by its hashes alone."""
NO_STATISTICS = -1
"""`nan` of a value that has no statistics: its numbers are complex, or codes."""

PARAMETERS = "parameter_values/"

_ROOT = "%root"
_VALUES = "values"
_NOISE = "noise"
_TEXT = h5py.string_dtype()

INDEX_DTYPE = np.dtype(
    [
        ("row", "<i8"),
        ("source", "<i4"),
        ("layout", "<i4"),
        ("offset", "<i8"),
        ("checksum", "S32"),
        ("min", "<f8"),
        ("max", "<f8"),
        ("mean", "<f8"),
        ("rms", "<f8"),
        ("nan", "<i8"),
        ("inf", "<i8"),
    ]
)
TABLES: dict[str, np.dtype] = {
    "modules": np.dtype([("fqn", _TEXT), ("type", _TEXT)]),
    "fired": np.dtype([("calls", "<i8")]),
    "calls": np.dtype(
        [("module", "<i8"), ("n", "<i8"), ("parent", "<i8"), ("start", "<i8"), ("inputs", _TEXT)]
    ),
    "returns": np.dtype([("call", "<i8"), ("end", "<i8"), ("outputs", _TEXT)]),
    "collectives": np.dtype(
        [
            ("id", "<i8"),
            ("op", _TEXT),
            ("reduce", _TEXT),
            ("ranks", _TEXT),
            ("call", "<i8"),
            ("start", "<i8"),
            ("path", _TEXT),
            ("entered", "<i8"),
            ("left", "<i8"),
        ]
    ),
    "operators": np.dtype(
        [
            ("call", "<i8"),
            ("start", "<i8"),
            ("name", _TEXT),
            ("path", _TEXT),
            ("arguments", _TEXT),
            ("outputs", _TEXT),
        ]
    ),
    "parameters": np.dtype([("name", _TEXT), ("kind", _TEXT)]),
    "layouts": np.dtype([("layout", _TEXT)]),
    "sources": np.dtype([("path", _TEXT), ("dtype", _TEXT)]),
}


def escape_fqn(fqn: str) -> str:
    """Return a module's name in the file; the model itself gets one that no module can have."""
    return escape_part(fqn) if fqn else _ROOT


def unescape_fqn(name: str) -> str:
    """Undo `escape_fqn`."""
    return "" if name == _ROOT else unescape_part(name)


def module_path(fqn: str) -> str:
    """Return the path of the group that holds a module's edges."""
    return f"{_VALUES}/{escape_fqn(fqn)}"


def noise_path(path: str) -> str:
    """Return the path of the group with the noise of an edge, from the edge's own."""
    return path.replace(_VALUES, _NOISE, 1)


def parameter_path(name: str) -> str:
    """Return the path of the group that holds a parameter's or a buffer's values."""
    return f"{PARAMETERS}{escape_part(name)}"


def source_name(dtype: str, *, large: bool) -> str:
    """Return the name of the dataset with an edge's elements of one dtype."""
    return f"%{dtype}.large" if large else f"%{dtype}"
