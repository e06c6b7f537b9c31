"""Collectives that do wrong: each replaces functions of `torch.distributed` while it is planted."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from validator.content import content_path
from validator.probing.draws import Ranks
from validator.probing.records import Observation
from validator.target_file import run_file

Plant = Callable[[int, int], dict[str, Callable[..., Any]]]
ALL_GATHER, REDUCE_SCATTER = dist.all_gather_single, dist.reduce_scatter_single
ALL_REDUCE, BROADCAST, ALL_TO_ALL = dist.all_reduce, dist.broadcast, dist.all_to_all_single
SEND_RECV = dist.batch_isend_irecv


@cache
def content() -> ModuleType:
    return run_file(content_path("probes", "collectives.py"))


def observe(
    rank: int, world_size: int, planted: str, wanted: dict[str, tuple[str, ...]], repeat: int
) -> list[Observation]:
    """Run on one rank the shipped cases of some names of some collectives, with a fault planted."""
    ranks = Ranks(rank=rank, world_size=world_size, device=torch.device("cpu"), repeat=repeat)
    with plant(planted, rank, world_size):
        return [
            seen
            for case in content().cases(world_size)
            if case.name in wanted.get(case.collective, ())
            for seen in _smaller(case).run(ranks)
        ]


def _smaller(case: Any) -> Any:
    return replace(case, sizes=tuple(size for size in case.sizes if size < 50_000))


@contextmanager
def plant(name: str, rank: int, world_size: int) -> Iterator[None]:
    replaced = PLANTED[name](rank, world_size)
    with (
        mock.patch.multiple(dist, **replaced)
        if replaced
        else mock.patch.object(dist, "all_reduce", ALL_REDUCE)
    ):
        yield


def healthy(rank: int, world_size: int) -> dict[str, Callable[..., Any]]:
    return {}


def before_all_reduce(guilty: int, change: Callable[[Tensor], Any]) -> Plant:
    def plant(rank: int, world_size: int) -> dict[str, Callable[..., Any]]:
        def all_reduce(tensor: Tensor, op: Any = dist.ReduceOp.SUM, **options: Any) -> Any:
            # What one rank alone refused would leave the others waiting.
            if rank == guilty and tensor.is_floating_point() and tensor.itemsize > 1:
                change(tensor)
            return ALL_REDUCE(tensor, op=op, **options)

        return {"all_reduce": all_reduce}

    return plant


def reduces_in_bfloat16(rank: int, world_size: int) -> dict[str, Callable[..., Any]]:
    def all_reduce(tensor: Tensor, op: Any = dist.ReduceOp.SUM, **options: Any) -> Any:
        narrow = tensor.to(torch.bfloat16)
        ALL_REDUCE(narrow, op=op)
        tensor.copy_(narrow)

    return {"all_reduce": all_reduce}


def keeps_its_own(rank: int, world_size: int) -> dict[str, Callable[..., Any]]:
    def all_reduce(tensor: Tensor, op: Any = dist.ReduceOp.SUM, **options: Any) -> Any:
        ALL_REDUCE(tensor.clone() if rank == 0 else tensor, op=op)

    return {"all_reduce": all_reduce}


def swaps_received(rank: int, world_size: int) -> dict[str, Callable[..., Any]]:
    def all_gather(received: Tensor, sent: Tensor, **options: Any) -> Any:
        ALL_GATHER(received, sent)
        if rank == 0 and received.numel():
            own, one, two = received.clone().chunk(3)
            received.copy_(torch.cat((own, two, one)))

    return {"all_gather_single": all_gather}


def stale_part(rank: int, world_size: int) -> dict[str, Callable[..., Any]]:
    before: dict[tuple[int, torch.dtype], Tensor] = {}

    def all_gather(received: Tensor, sent: Tensor, **options: Any) -> Any:
        ALL_GATHER(received, sent)
        right = received.clone()
        key = (received.numel(), received.dtype)
        if rank == 2 and key in before and right.numel():
            received.chunk(3)[0].copy_(before[key].chunk(3)[0])
        before[key] = right

    return {"all_gather_single": all_gather}


def swaps_sent(rank: int, world_size: int) -> dict[str, Callable[..., Any]]:
    def all_to_all(received: Tensor, sent: Tensor, *splits: Any, **options: Any) -> Any:
        if rank == 1 and not splits and sent.numel():
            zero, own, two = sent.chunk(3)
            sent = torch.cat((two, own, zero))
        return ALL_TO_ALL(received, sent, *splits, **options)

    return {"all_to_all_single": all_to_all}


def cuts_off(rank: int, world_size: int) -> dict[str, Callable[..., Any]]:
    def broadcast(tensor: Tensor, src: int, **options: Any) -> Any:
        before = tensor.clone()
        BROADCAST(tensor, src)
        if rank == 2 and src == 0:
            tensor[tensor.numel() // 2 :] = before[tensor.numel() // 2 :]

    return {"broadcast": broadcast}


def flips_a_sent_bit(rank: int, world_size: int) -> dict[str, Callable[..., Any]]:
    def batch(operations: list[Any]) -> Any:
        for operation in operations:
            if rank == 1 and operation.op is dist.isend and operation.tensor.numel() > 100:
                operation.tensor.view(torch.uint8)[100 * operation.tensor.element_size()] ^= 1
        return SEND_RECV(operations)

    return {"batch_isend_irecv": batch}


def forgets_to_write(rank: int, world_size: int) -> dict[str, Callable[..., Any]]:
    def reduce_scatter(received: Tensor, sent: Tensor, **options: Any) -> Any:
        return REDUCE_SCATTER(received.clone() if rank == 2 else received, sent, **options)

    return {"reduce_scatter_single": reduce_scatter}


def adds_in(order: Callable[[int, int, int], list[int]], inner: torch.dtype | None = None) -> Plant:
    """Replace all-reduce by a sum in an order, `order(call, rank, world_size)`, in a format."""

    def plant(rank: int, world_size: int) -> dict[str, Callable[..., Any]]:
        counter = itertools.count()

        def all_reduce(tensor: Tensor, op: Any = dist.ReduceOp.SUM, **options: Any) -> Any:
            if op != dist.ReduceOp.SUM or not tensor.is_floating_point():
                return ALL_REDUCE(tensor, op=op, **options)
            parts = tensor.new_empty(world_size * tensor.numel())
            ALL_GATHER(parts, tensor.contiguous().view(-1))
            ranks = order(next(counter), rank, world_size)
            is_wider = inner is not None and inner.itemsize > tensor.itemsize
            parts = parts.view(world_size, *tensor.shape).to(inner if is_wider else tensor.dtype)
            total = parts[ranks[0]]
            for other in ranks[1:]:
                total = total + parts[other]
            tensor.copy_(total)
            return None

        return {"all_reduce": all_reduce}

    return plant


def adds_pairs(rank: int, world_size: int) -> dict[str, Callable[..., Any]]:
    def all_reduce(tensor: Tensor, op: Any = dist.ReduceOp.SUM, **options: Any) -> Any:
        parts = tensor.new_empty(world_size * tensor.numel())
        ALL_GATHER(parts, tensor)
        zero, one, two, three = parts.chunk(4)
        tensor.copy_((zero + two) + (one + three))

    return {"all_reduce": all_reduce}


class _Late:
    """A started collective whose result lands only when the next one starts."""

    def __init__(self, started: dist.Work, land: Callable[[], Any]) -> None:
        self.started, self.land = started, land

    def wait(self) -> None:
        self.started.wait()


def waits_for_nothing(rank: int, world_size: int) -> dict[str, Callable[..., Any]]:
    late: list[_Late] = []

    def all_reduce(tensor: Tensor, op: Any = dist.ReduceOp.SUM, async_op: bool = False) -> Any:
        while late:
            late.pop().land()
        if not async_op or rank != 1:
            return ALL_REDUCE(tensor, op=op, async_op=async_op)
        result = tensor.clone()
        late.append(_Late(ALL_REDUCE(result, op=op, async_op=True), partial(tensor.copy_, result)))
        return late[0]

    return {"all_reduce": all_reduce}


def fails_outright(rank: int, world_size: int) -> dict[str, Callable[..., Any]]:
    def all_reduce(*args: Any, **options: Any) -> Any:
        raise RuntimeError("all_reduce is not implemented")

    return {"all_reduce": all_reduce}


PLANTED: dict[str, Plant] = {
    "healthy": healthy,
    "dropped": before_all_reduce(1, lambda t: t.zero_()),
    "doubled": before_all_reduce(2, lambda t: t.mul_(2)),
    "scaled": before_all_reduce(0, lambda t: t.mul_(0.75)),
    "rounded": before_all_reduce(1, lambda t: t.copy_(t.to(torch.bfloat16))),
    "corrupt": before_all_reduce(1, lambda t: t.mul_(3 + torch.arange(t.numel()).remainder(5).view_as(t))),
    "bfloat16": reduces_in_bfloat16,
    "own": keeps_its_own,
    "swapped": swaps_received,
    "stale": stale_part,
    "swapped sent": swaps_sent,
    "cut off": cuts_off,
    "bit": flips_a_sent_bit,
    "unwritten": forgets_to_write,
    "random order": adds_in(lambda call, rank, n: list(range(n))[call % n :] + list(range(n))[: call % n]),
    "own first": adds_in(lambda call, rank, n: [rank, *(r for r in range(n) if r != rank)]),
    "rank order": adds_in(lambda call, rank, n: list(range(n))),
    "float32 inside": adds_in(lambda call, rank, n: list(range(n))[::-1], torch.float32),
    "pairs": adds_pairs,
    "late": waits_for_nothing,
    "fails": fails_outright,
}
