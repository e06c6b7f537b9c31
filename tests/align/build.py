"""Captures built in memory: a recorder for calls, and a small model of two layers on any number of ranks."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from validator.capturing.records import (
    Call,
    Collective,
    ModuleInfo,
    Parameter,
    RankCapture,
    TensorMeta,
    TensorRef,
)

BATCH, TOKENS, WIDTH, HIDDEN, VOCABULARY = 2, 6, 8, 12, 20


def tensor_ref(tensor: torch.Tensor, **meta: Any) -> TensorRef:
    """Return a stored copy of a tensor; `meta` adds placements, mesh and global shape."""
    stored = tensor.detach().clone().contiguous()
    checksum = hashlib.blake2b(stored.view(-1).view(torch.uint8).numpy().tobytes(), digest_size=16)
    return TensorRef(
        meta=TensorMeta(
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            checksum=checksum.hexdigest(),
            **meta,
        ),
        read=stored.clone,
    )


class Recorder:
    """Records calls, collectives and parameters of one rank."""

    def __init__(self, rank: int = 0) -> None:
        self.rank = rank
        self._events = 0
        self._open: list[int] = []
        self._calls: dict[int, Call] = {}
        self._types: dict[str, str] = {}
        self._collectives: list[Collective] = []
        self._parameters: dict[str, Parameter] = {}

    @contextmanager
    def call(
        self, module: str, inputs: Mapping[str, Any], type_name: str = "torch.nn.Module"
    ) -> Iterator[dict[str, Any]]:
        """Record one call; the block fills in the outputs by path."""
        self._types[module] = type_name
        ident, start = len(self._calls), self._tick()
        n = sum(call.module == module for call in self._calls.values())
        parent = self._open[-1] if self._open else None
        outputs: dict[str, Any] = {}
        call = Call(
            id=ident,
            module=module,
            n=n,
            parent=parent,
            start=start,
            end=None,
            inputs=_refs(inputs),
            outputs=outputs,
        )
        self._calls[ident] = call
        self._open.append(ident)
        yield outputs
        self._open.pop()
        outputs.update(_refs(outputs))

    def leaf(self, module: str, inputs: Any, outputs: Any, type_name: str = "torch.nn.Module") -> None:
        """Record a call without children; bare tensors stand for one input and one output."""
        inputs = inputs if isinstance(inputs, Mapping) else {"input": inputs}
        with self.call(module, inputs, type_name) as out:
            out.update(outputs if isinstance(outputs, Mapping) else {"": outputs})

    def reduce(self, entered: torch.Tensor, left: torch.Tensor, ranks: tuple[int, ...]) -> None:
        """Record an all-reduce inside the open call."""
        self._collectives.append(
            Collective(
                op="all_reduce",
                reduce="sum",
                ranks=ranks,
                call=self._open[-1] if self._open else None,
                start=self._tick(),
                entered=(tensor_ref(entered),),
                left=(tensor_ref(left),),
            )
        )

    def parameter(self, name: str, tensor: torch.Tensor, **meta: Any) -> None:
        """Record a parameter."""
        self._parameters[name] = Parameter(name=name, kind="parameter", ref=tensor_ref(tensor, **meta))

    def capture(self) -> RankCapture:
        """Return what was recorded."""
        counts = {name: sum(call.module == name for call in self._calls.values()) for name in self._types}
        return RankCapture(
            rank=self.rank,
            modules={n: ModuleInfo(fqn=n, type=t, calls=counts[n]) for n, t in self._types.items()},
            calls=tuple(self._calls.values()),
            collectives=tuple(self._collectives),
            parameters=self._parameters,
        )

    def _tick(self) -> int:
        self._events += 1
        return self._events - 1


def run_model(
    *,
    world: int = 1,
    prefix: str = "",
    norm_factor: Mapping[int, float] | None = None,
    tokens: int = TOKENS,
    vocabulary: int = VOCABULARY,
) -> list[RankCapture]:
    """Run embed -> norm -> column-parallel up -> row-parallel down -> head, in float64 on each rank.

    Args:
        world: number of ranks; `HIDDEN` must divide.
        prefix: put before every module's name, as a wrapper does; the model itself loses its `""`.
        norm_factor: a fault of the norm by rank: its output is multiplied by this.
        tokens: number of tokens.
        vocabulary: rows of embedding and head.
    """
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (BATCH, tokens), generator=generator)
    embed, head, up, down = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((vocabulary, WIDTH), (vocabulary, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN))
    )
    ranks = tuple(range(world))
    embedded = torch.nn.functional.embedding(ids, embed)
    normed = {rank: embedded * (norm_factor or {}).get(rank, 1.0) for rank in ranks}
    ups = dict(zip(ranks, up.chunk(world, 0), strict=True))
    downs = dict(zip(ranks, down.chunk(world, 1), strict=True))
    hidden = {rank: normed[rank] @ ups[rank].T for rank in ranks}
    partials = {rank: hidden[rank] @ downs[rank].T for rank in ranks}
    reduced = torch.stack(list(partials.values())).sum(0)
    logits = reduced @ head.T

    def name(module: str) -> str:
        return ".".join(filter(None, (prefix, module)))

    captures = []
    for rank in ranks:
        recorder = Recorder(rank)
        for parameter, value in (
            ("embed.weight", embed),
            ("mlp.up.weight", ups[rank]),
            ("mlp.down.weight", downs[rank]),
            ("lm_head.weight", head),
        ):
            recorder.parameter(name(parameter), value)
        with recorder.call(name(""), {"input_ids": ids, "use_cache": False}) as out:
            recorder.leaf(name("embed"), ids, embedded, "torch.nn.modules.sparse.Embedding")
            recorder.leaf(name("norm"), embedded, normed[rank])
            with recorder.call(name("mlp"), {"x": normed[rank]}) as mlp:
                recorder.leaf(name("mlp.up"), normed[rank], hidden[rank])
                with recorder.call(name("mlp.down"), {"input": hidden[rank]}) as row:
                    if world > 1:
                        recorder.reduce(partials[rank], reduced, ranks)
                    row[""] = reduced
                mlp[""] = reduced
            recorder.leaf(name("lm_head"), reduced, logits)
            out["logits"] = logits
        captures.append(recorder.capture())
    return captures


def _refs(values: Mapping[str, Any]) -> dict[str, Any]:
    return {path: tensor_ref(v) if isinstance(v, torch.Tensor) else v for path, v in values.items()}
