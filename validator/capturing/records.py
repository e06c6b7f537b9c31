"""What a capture holds: module calls, tensors at their edges, collectives and parameters.

Nothing here knows how it is stored. A `TensorRef` describes a stored tensor and reads its values
when asked.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch

__all__ = [
    "Call",
    "Collective",
    "Mesh",
    "ModuleInfo",
    "ObjectRef",
    "Operator",
    "OperatorResult",
    "Origin",
    "OriginKind",
    "Parameter",
    "Placement",
    "RankCapture",
    "Statistics",
    "TensorMeta",
    "TensorRef",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """How one mesh axis holds a tensor, in DTensor's words.

    Attributes:
        kind: `"shard"`, `"replicate"` or `"partial"`.
        dim: tensor dim that is sharded, for `shard` alone.
        reduce: reduction that completes a `partial`: `"sum"`, `"avg"`, `"max"`, `"min"`.
        stride: `split_factor` of DTensor's `_StridedShard`, else 1.
    """

    kind: str
    dim: int | None = None
    reduce: str | None = None
    stride: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """A device mesh: names and sizes of its axes, and its ranks in row-major order."""

    axes: tuple[str, ...]
    shape: tuple[int, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Statistics of a tensor's finite elements (NaN where there are none), and how many are not finite."""

    min: float
    max: float
    mean: float
    rms: float
    nan: int
    inf: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMeta:
    """What is known of a stored tensor without reading it.

    Attributes:
        dtype: the torch name without `torch.`, such as `"bfloat16"`.
        shape: of this rank's part.
        placements: one per mesh axis, or None where the tensor was no DTensor.
        global_shape: of the whole DTensor, or None.
        one_in: one of so many elements is known, others read as NaN; 0 where only statistics were kept.
        checksum: BLAKE2b-128 of the contiguous bytes, in hex: equal bits, equal checksum.
    """

    dtype: str
    shape: tuple[int, ...]
    checksum: str
    statistics: Statistics | None = None
    placements: tuple[Placement, ...] | None = None
    mesh: Mesh | None = None
    global_shape: tuple[int, ...] | None = None
    one_in: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRef:
    """A stored tensor: its description, and `read()` for its values (a fresh CPU tensor).

    Attributes:
        meta: what is known without reading.
        read: returns the whole tensor.
        stream: yields its elements as `blocks` does, or None where they can't be had in parts.
        noise: standard deviation of a candidate's value around this one, `[*]` in the candidate's dtype (of a
            complex tensor of its parts, `[*, 2]`), or None where it was not measured or has no meaning.
    """

    meta: TensorMeta
    read: Callable[[], torch.Tensor] = field(repr=False, compare=False)
    stream: Callable[[], Iterator[torch.Tensor]] | None = field(default=None, repr=False, compare=False)
    noise: "TensorRef | None" = field(default=None, repr=False, compare=False)

    def blocks(self) -> Iterator[torch.Tensor]:
        """Yield the elements in row-major order, in flat tensors, at least one.

        Damage is found at the end: what was made of the blocks counts once all of them came.
        """
        return iter([self.read().reshape(-1)]) if self.stream is None else self.stream()


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRef:
    """An object of which nothing but itself is known, such as a cache.

    Attributes:
        type: qualified name of its class.
        number: which object it is: one object has one number throughout a rank's run.
        length: how many tokens it said to hold (`get_seq_length`), or None where it says nothing.
    """

    type: str
    number: int
    length: int | None = None


class OriginKind(StrEnum):
    """Where a tensor that an operator is given comes from."""

    OPERATOR = "operator"
    INPUT = "input"
    CHILD = "child"
    PARAMETER = "parameter"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a tensor that an operator is given comes from.

    Attributes:
        kind: what it is.
        name: path of an input or of a child's output, or name of a parameter.
        operator, result: of an operator's result, which operator of the call, and which of its results.
        ref: the stored tensor; None of an operator's result, and where it could not be stored.
    """

    kind: OriginKind
    name: str = ""
    operator: int = -1
    result: int = 0
    ref: TensorRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorResult:
    """What an operator returned or wrote to.

    Attributes:
        dtype: the torch name without `torch.`, or `""` for what is no tensor.
        shape: of the tensor (of a DTensor the whole one's).
        ref: its values; None for a view of what went in, and for what was not written yet.
    """

    dtype: str
    shape: tuple[int, ...]
    ref: TensorRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator that ran directly inside of a call.

    Attributes:
        name: as torch gives it: namespace, name and overload.
        start: position in the rank's sequence of events.
        arguments: by the names of the operator's schema: an `Origin` for a tensor, a plain value (other
            objects as their text), or a list of these.
        results: what it returned, and then what it wrote to besides.
    """

    name: str
    start: int
    arguments: dict[str, Any]
    results: tuple[OperatorResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of one module.

    Attributes:
        id: position in `RankCapture.calls`, unique within the rank.
        module: fqn; the model itself is `""`.
        n: how many calls of this module came before.
        parent: id of the call that encloses it, None for the outermost.
        start, end: positions in the rank's sequence of events; `end` is None for a call that never returned.
        inputs, outputs: `TensorRef` or a plain value (None, bool, int, float, str) by path; other objects are
            left out.
        objects: of an outermost call, the other objects that it was given and returned, by path, as they were
            before and after it.
        operators: that ran directly in it, where they were recorded.
    """

    id: int
    module: str
    n: int
    parent: int | None
    start: int
    end: int | None
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    objects: tuple[dict[str, ObjectRef], dict[str, ObjectRef]] = field(default_factory=lambda: ({}, {}))
    operators: tuple[Operator, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective that this rank took part in.

    Attributes:
        op: `"all_reduce"`, `"all_gather"`, `"reduce_scatter"`, `"all_to_all"`, `"broadcast"`, `"reduce"`,
            `"gather"`, `"scatter"`, `"send"`, `"recv"`.
        reduce: `"sum"`, `"avg"`, ... for reductions.
        ranks: global ranks of its group.
        call: id of the innermost recorded module call that was open, or None.
        start: position in the rank's sequence of events (shared with `Call.start`).
        entered, left: this rank's tensors before and after.
    """

    op: str
    reduce: str | None
    ranks: tuple[int, ...]
    call: int | None
    start: int
    entered: tuple[TensorRef, ...]
    left: tuple[TensorRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter or buffer.

    Attributes:
        kind: `"parameter"`, `"buffer"`, or `"non_persistent_buffer"`; `"quantised"` for the values that a
            parameter's codes stand for.
        ref: values; above the size limit `ref.read` raises `CaptureError` and `row_hashes` stands in.
        row_hashes: `[rows]` hex BLAKE2b-128 of each row along dim 0 (of each whole tensor below 2 dims), or
            None where the values are stored. Of codes see `quantised.rows`.
        has_two_scales: of quantised ones, whether two scales fit the codes; `ref` takes the first.
    """

    name: str
    kind: str
    ref: TensorRef
    row_hashes: tuple[str, ...] | None = None
    has_two_scales: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleInfo:
    """A module of the model: its fqn, the qualified name of its class, and how often it fired."""

    fqn: str
    type: str
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCapture:
    """One rank's part of a capture, in memory but for the tensors' values."""

    rank: int
    modules: dict[str, ModuleInfo]
    calls: tuple[Call, ...]
    collectives: tuple[Collective, ...]
    parameters: dict[str, Parameter]
