"""One rank's capture file as a `RankCapture`."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from validator.errors import CaptureError

from .files import CaptureSource, StoredValue, damage_explained, opened
from .levels import COARSEST, NOTHING, is_even, kept
from .operator_reader import read_operators
from .records import (
    Call,
    Collective,
    Mesh,
    ModuleInfo,
    ObjectRef,
    Parameter,
    Placement,
    RankCapture,
    Statistics,
    TensorMeta,
    TensorRef,
)
from .samples import NotKept, SampledValue
from .schema import (
    INDEX,
    INDEX_DTYPE,
    NO_SOURCE,
    NO_STATISTICS,
    ROW_HASHES,
    TABLES,
    module_path,
    noise_path,
    parameter_path,
    unescape_fqn,
)
from .values import unescape_part

__all__ = ["read_rank"]

_MAX_DIMS = 64


def read_rank(path: Path, *, complete: bool) -> RankCapture:
    """Read what one rank recorded, but for the tensors' values.

    Args:
        path: the rank's file.
        complete: whether everything that the file refers to must be in it; otherwise it is left out.

    Raises:
        CaptureError: the file is damaged.
    """
    with damage_explained(path):
        return _RankReader(opened(path, os.stat(path).st_ino), complete).read()


class _RankReader:
    def __init__(self, source: CaptureSource, complete: bool) -> None:
        self._source = source
        self._complete = complete
        self._inode = os.stat(source.path).st_ino
        self._edges: dict[str, dict[int, TensorRef]] = {}
        self._has_noise = source.has(noise_path("values"))

    def read(self) -> RankCapture:
        calls, parameters = self._calls(), self._parameters()
        return RankCapture(
            rank=self._source.rank,
            modules=self._modules(calls),
            calls=self._with_operators(calls, parameters),
            collectives=self._collectives(len(calls)),
            parameters=parameters,
        )

    @cached_property
    def _fqns(self) -> list[str]:
        return [unescape_fqn(_text(row["fqn"])) for row in self._table("modules")]

    @cached_property
    def _sources(self) -> list[tuple[str, str]]:
        return [(_text(row["path"]), _text(row["dtype"])) for row in self._table("sources")]

    @cached_property
    def _layouts(self) -> list[Mapping[str, Any]]:
        return [_layout(_text(row["layout"])) for row in self._table("layouts")]

    def _table(self, name: str) -> np.ndarray:
        return self._source.table(name, TABLES[name])

    def _modules(self, calls: tuple[Call, ...]) -> dict[str, ModuleInfo]:
        if self._complete:
            fired = [int(row["calls"]) for row in self._table("fired")]
        else:
            fired = [sum(call.module == fqn for call in calls) for fqn in self._fqns]
        types = [_text(row["type"]) for row in self._table("modules")]
        return {
            fqn: ModuleInfo(fqn=fqn, type=kind, calls=count)
            for fqn, kind, count in zip(self._fqns, types, fired, strict=True)
        }

    def _calls(self) -> tuple[Call, ...]:
        returns = {int(row["call"]): row for row in self._table("returns")}
        calls = []
        for i, row in enumerate(self._table("calls")):
            fqn, parent = self._fqns[_index(row["module"])], int(row["parent"])
            if not -1 <= parent < i:
                raise ValueError(f"call {i} is enclosed by call {parent}")
            returned = returns.get(i)
            path = module_path(fqn)
            inputs = _text(row["inputs"])
            outputs = "{}" if returned is None else _text(returned["outputs"])
            calls.append(
                Call(
                    id=i,
                    module=fqn,
                    n=int(row["n"]),
                    parent=None if parent < 0 else parent,
                    start=int(row["start"]),
                    end=None if returned is None else int(returned["end"]),
                    inputs=self._values(f"{path}/inputs", i, inputs),
                    outputs=self._values(f"{path}/outputs", i, outputs),
                    objects=(_objects(inputs), _objects(outputs)),
                )
            )
        return tuple(calls)

    def _with_operators(
        self, calls: tuple[Call, ...], parameters: Mapping[str, Parameter]
    ) -> tuple[Call, ...]:
        if not self._source.has("operators"):
            return calls  # Captures may be older than this table.
        found = read_operators(self._table("operators"), calls=calls, parameters=parameters, ref=self._ref)
        return tuple(replace(call, operators=found.get(call.id, ())) for call in calls)

    def _values(self, path: str, call: int, described: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, value in json.loads(described).items():
            if not isinstance(value, dict):
                values[name] = value
            elif "float" in value:
                values[name] = float(value["float"])
            elif "tensor" in value:
                edge = f"{path}/{name}" if name else path
                ref = self._ref(edge, call)
                if ref is not None:
                    values[name] = self._with_noise(ref, edge, call)
        return values

    def _collectives(self, calls: int) -> tuple[Collective, ...]:
        collectives = []
        for row in self._table("collectives"):
            path, number, call = _text(row["path"]), int(row["id"]), int(row["call"])
            if not -1 <= call < calls:
                if self._complete:
                    raise ValueError(f"collective {number} belongs to call {call} of {calls}")
                continue
            collectives.append(
                Collective(
                    op=_text(row["op"]),
                    reduce=_text(row["reduce"]) or None,
                    ranks=tuple(_index(rank) for rank in json.loads(_text(row["ranks"]))),
                    call=None if call < 0 else call,
                    start=int(row["start"]),
                    entered=self._side(f"{path}/entered", number, int(row["entered"])),
                    left=self._side(f"{path}/left", number, int(row["left"])),
                )
            )
        return tuple(sorted(collectives, key=lambda collective: collective.start))

    def _side(self, path: str, number: int, count: int) -> tuple[TensorRef, ...]:
        refs = (self._ref(f"{path}/{i}", number) for i in range(count))
        return tuple(ref for ref in refs if ref is not None)

    def _parameters(self) -> dict[str, Parameter]:
        parameters = {}
        for i, row in enumerate(self._table("parameters")):
            name = unescape_part(_text(row["name"]))
            path = parameter_path(name)
            ref = self._ref(path, i)
            if ref is None:
                continue
            hashes = None
            if self._source.has(f"{path}/{ROW_HASHES}"):
                rows = self._source.table(f"{path}/{ROW_HASHES}", np.dtype("S32"))
                hashes = tuple(rows.astype(str).tolist())
            parameters[name] = Parameter(name=name, kind=_text(row["kind"]), ref=ref, row_hashes=hashes)
        return parameters

    def _ref(self, path: str, row: int) -> TensorRef | None:
        """Return the value of an edge that belongs to a row; None if a killed run did not write it."""
        if path not in self._edges:
            self._edges[path] = self._edge(path)
        ref = self._edges[path].get(row)
        if ref is None and self._complete:
            raise ValueError(f"{path!r} lacks the value of row {row}")
        return ref

    def _with_noise(self, ref: TensorRef, path: str, row: int) -> TensorRef:
        if not self._has_noise:
            return ref
        path = noise_path(path)
        if path not in self._edges:
            self._edges[path] = self._edge(path) if self._source.has(f"{path}/{INDEX}") else {}
        return replace(ref, noise=self._edges[path].get(row))

    def _edge(self, path: str) -> dict[int, TensorRef]:
        if not self._complete and not self._source.has(f"{path}/{INDEX}"):
            return {}
        index = self._source.table(f"{path}/{INDEX}", INDEX_DTYPE)
        return {fields[0]: self._tensor(path, *fields) for fields in index.tolist()}

    def _tensor(
        self,
        path: str,
        row: int,
        number: int,
        layout: int,
        offset: int,
        checksum: bytes,
        *numbers: Any,
    ) -> TensorRef:
        """Return the tensor of a row of `INDEX_DTYPE`; `numbers` are its statistics."""
        digest = checksum.decode()
        if number == NO_SOURCE:
            where, dtype = "", self._source.attribute(path, "dtype")
        else:
            where, dtype = self._sources[_index(number)]
        low, high, mean, rms, nan, inf = numbers
        described = None
        if nan != NO_STATISTICS:
            described = Statistics(min=low, max=high, mean=mean, rms=rms, nan=nan, inf=inf)
        fields = dict(self._layouts[_index(layout)])
        starts = fields.pop("starts")
        meta = TensorMeta(dtype=dtype, checksum=digest, statistics=described, **fields)
        if meta.one_in == NOTHING:
            return TensorRef(meta=meta, read=NotKept(self._source.path, path))
        if number == NO_SOURCE:
            return TensorRef(meta=meta, read=_Absent(self._source.path, path))
        value = StoredValue(
            file=self._source.path,
            inode=self._inode,
            path=where,
            dtype=dtype,
            offset=offset,
            shape=meta.shape,
            digest=digest,
            what=f"{path}, row {row}",
        )
        if meta.one_in == 1:
            return TensorRef(meta=meta, read=value, stream=value.blocks)
        return self._sampled(meta, value, starts)

    def _sampled(self, meta: TensorMeta, value: StoredValue, starts: tuple[int, ...] | None) -> TensorRef:
        """Return a tensor of which the elements of `levels.kept` are stored."""
        whole = None if starts is None else meta.global_shape
        # Before anything of the claimed size is made.
        if not is_even(self._source.length(value.path, value.dtype), meta.shape, meta.one_in):
            raise ValueError(f"{value.what} claims a sample that the file does not hold")
        count = len(kept(meta.shape, meta.one_in, starts=starts, whole=whole))
        # The checksum is that of the whole tensor: there is none of the sample.
        sampled = SampledValue(
            stored=replace(value, shape=(count,), digest=""),
            shape=meta.shape,
            one_in=meta.one_in,
            starts=starts,
            whole=whole,
        )
        return TensorRef(meta=meta, read=sampled, stream=sampled.blocks)


class _Absent:
    """Stands for the values of a parameter that was too large to store."""

    def __init__(self, file: Path, path: str) -> None:
        self._file, self._path = file, path

    def __call__(self) -> NoReturn:
        raise CaptureError(
            f"{self._file}: {self._path} was larger than parameter_limit_bytes, so its rows were hashed and "
            "its values not stored. Capture again with a higher limit to get them."
        )


def _objects(described: str) -> dict[str, ObjectRef]:
    found = {}
    for name, value in json.loads(described).items():
        if isinstance(value, dict) and "object" in value:
            length = value["length"]
            found[name] = ObjectRef(
                type=str(value["object"]),
                number=_index(value["number"]),
                length=None if length is None else _index(length),
            )
    return found


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _index(value: Any) -> int:
    # A negative one would count from the end.
    if not isinstance(value, int | np.integer) or value < 0:
        raise ValueError(f"{value!r} is no row of a table")
    return int(value)


def _layout(text: str) -> dict[str, Any]:
    fields = json.loads(text)
    placements, mesh, whole = fields["placements"], fields["mesh"], fields["global_shape"]
    # Captures may be older than samples.
    starts, one_in = fields.get("starts"), fields.get("one_in")
    return {
        "one_in": 1 if one_in is None else _one_in(one_in),
        "starts": None if starts is None else _shape(starts),
        "shape": _shape(fields["shape"]),
        "global_shape": None if whole is None else _shape(whole),
        "placements": None if placements is None else tuple(_placement(p) for p in placements),
        "mesh": None
        if mesh is None
        else Mesh(
            axes=tuple(str(axis) for axis in mesh["axes"]),
            shape=_shape(mesh["shape"]),
            ranks=tuple(_index(rank) for rank in mesh["ranks"]),
        ),
    }


def _one_in(value: Any) -> int:
    if value not in (NOTHING, *(1 << power for power in range(1, COARSEST.bit_length()))):
        raise ValueError(f"{value!r} is no share of a sample")
    return int(value)


def _placement(fields: dict[str, Any]) -> Placement:
    placement = Placement(**fields)
    numbers = (placement.dim, placement.stride)
    if placement.kind not in ("shard", "replicate", "partial") or not all(
        n is None or isinstance(n, int) for n in numbers
    ):
        raise ValueError(f"{fields!r} is no placement")
    return placement


def _shape(values: list[Any]) -> tuple[int, ...]:
    if len(values) > _MAX_DIMS:
        raise ValueError(f"a shape of {len(values)} dims")
    return tuple(_index(size) for size in values)
