"""The reductions behind a difference, in words: which operators add up values in an order of their own."""

from collections.abc import Iterable, Sequence

from validator.capturing.records import Call, Collective, Operator, RankCapture

__all__ = ["bare_name", "collectives_in", "described", "reducing", "words_of"]

_SUMS = {
    "mm": "a matrix product, summed over its inner dim",
    "addmm": "a matrix product, summed over its inner dim",
    "bmm": "a matrix product, summed over its inner dim",
    "baddbmm": "a matrix product, summed over its inner dim",
    "mv": "a matrix product, summed over its inner dim",
    "linear": "a matrix product, summed over its inner dim",
    "matmul": "a matrix product, summed over its inner dim",
    "_grouped_mm": "a matrix product for each expert, summed over its inner dim",
    "mkldnn_rnn_layer": "matrix products, one step after the other",
    "convolution": "a convolution, summed over its window",
    "_softmax": "a softmax, whose sum is over its last dim",
    "_log_softmax": "a softmax, whose sum is over its last dim",
    "_safe_softmax": "a softmax, whose sum is over its last dim",
    "sum": "a sum",
    "mean": "a mean",
    "var": "a variance",
    "var_mean": "a variance",
    "norm": "a norm",
    "linalg_vector_norm": "a norm",
    "cumsum": "a running sum",
    "native_layer_norm": "a mean and a variance over channels",
    "_fused_rms_norm": "a mean over channels",
    "rms_norm": "a mean over channels",
    "index_add": "additions at indices, in the order in which they arrive",
    "index_add_": "additions at indices, in the order in which they arrive",
    "scatter_add": "additions at indices, in the order in which they arrive",
    "scatter_add_": "additions at indices, in the order in which they arrive",
    "scatter_reduce": "additions at indices, in the order in which they arrive",
    "index_put": "writes at indices, in the order in which they arrive",
    "index_put_": "writes at indices, in the order in which they arrive",
    "_index_put_impl_": "writes at indices, in the order in which they arrive",
    "bincount": "counts, in the order in which they arrive",
    "histc": "counts, in the order in which they arrive",
}


def bare_name(operator: str) -> str:
    """Return the name of an operator without namespace and overload."""
    return operator.partition(".")[2].partition(".")[0] if "." in operator else operator.rpartition("::")[2]


def words_of(operator: str) -> str:
    """Return what an operator reduces, in words; empty for one that reduces nothing, or is not known."""
    name = bare_name(operator)
    if "attention" in name:
        return "an attention, whose sums are over its keys"
    return _SUMS.get(name, "")


def described(operator: str) -> str:
    """Return an operator with what it reduces, as far as that is known."""
    words = words_of(operator)
    return f"{operator} ({words})" if words else operator


def reducing(operators: Iterable[Operator]) -> list[str]:
    """Return the names of those operators that reduce, each once."""
    return list(dict.fromkeys(made.name for made in operators if words_of(made.name)))


def collectives_in(captures: Sequence[RankCapture], module: str, call: int) -> list[str]:
    """Return the reductions over ranks inside of a call, in words, each once."""
    found = []
    for capture in captures:
        inside = {c.id for c in capture.calls if _is_within(capture, c, module, call)}
        found += [_collective(c) for c in capture.collectives if c.call in inside and c.reduce]
    return list(dict.fromkeys(found))


def _is_within(capture: RankCapture, call: Call, module: str, n: int) -> bool:
    while True:
        if (call.module, call.n) == (module, n):
            return True
        if call.parent is None:
            return False
        call = capture.calls[call.parent]


def _collective(collective: Collective) -> str:
    ranks = ", ".join(map(str, collective.ranks))
    return f"{collective.op} ({collective.reduce} over ranks {ranks})"
