"""The shipped probe of collectives: silent on gloo, and each planted fault is named with its rank."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.planted_collectives import observe
from tests.ranks import RankPool
from validator.checks.findings import Verdict
from validator.probing.records import Fault, OrderKind
from validator.probing.summary import ProbeOutcome, summarise

Pool = Callable[[int], RankPool]
SUMS = ("integers", "one owner")
MOVES = ("random bits",)


def probe(pool: RankPool, planted: str, wanted: dict[str, tuple[str, ...]], repeat: int = 2) -> ProbeOutcome:
    observations = pool.run(observe, planted, wanted, repeat)
    return summarise(observations, name="collectives", backend="gloo", device="cpu")


@pytest.mark.parametrize("world_size", [3, 4])
def test_gloo_is_right_and_its_ring_is_recognised(world_size: int, rank_pool: Pool) -> None:
    every = ("random bits", "uneven parts", "integers", "one owner", "special values", "powers")
    sums = (*every, "rounding sums", "overlapped with compute")
    wanted = dict.fromkeys(("all_gather", "all_to_all", "broadcast", "send_recv"), every)
    outcome = probe(rank_pool(world_size), "healthy", wanted | {"all_reduce": sums, "reduce_scatter": sums})

    assert outcome.problems == ()
    assert outcome.verdict is Verdict.ALIGNED
    rows = {row.call: row for row in outcome.rows}
    for call in ("all_reduce sum", "reduce_scatter sum"):
        assert rows[call].right == ("float64", "float32", "float16", "bfloat16", "int64", "int32")
        assert set(rows[call].refused) == {"float8_e4m3fn", "float8_e5m2"}
        assert rows[call].deterministic is True
        for (dtype, _), (order, formats) in rows[call].orders.items():
            assert (order.kind, formats) == (OrderKind.RING, (dtype,))
    assert "float8_e5m2" in rows["send_recv"].right
    assert {(call, case) for call, case, *_ in outcome.refused} >= {("all_gather", "uneven parts")}


@pytest.mark.parametrize(
    ("planted", "call", "cases", "fault", "guilty"),
    [
        ("dropped", "all_reduce", SUMS, Fault.MISSING, (1,)),
        ("doubled", "all_reduce", SUMS, Fault.DOUBLED, (2,)),
        ("scaled", "all_reduce", SUMS, Fault.SCALED, (0,)),
        ("rounded", "all_reduce", SUMS, Fault.NARROWED, (1,)),
        ("corrupt", "all_reduce", SUMS, Fault.CORRUPT, (1,)),
        ("bfloat16", "all_reduce", ("integers",), Fault.NARROWED, (0, 1, 2)),
        ("own", "all_reduce", ("integers",), Fault.NOT_REDUCED, (0,)),
        ("unwritten", "reduce_scatter", ("integers",), Fault.NOT_WRITTEN, (2,)),
        ("swapped", "all_gather", MOVES, Fault.MOVED, (0,)),
        ("stale", "all_gather", MOVES, Fault.STALE, (2,)),
        ("swapped sent", "all_to_all", MOVES, Fault.MOVED, (1,)),
        ("cut off", "broadcast", MOVES, Fault.TRUNCATED, (2,)),
        ("bit", "send_recv", MOVES, Fault.CORRUPT, (1,)),
        ("random order", "all_reduce", ("rounding sums",), Fault.NONDETERMINISTIC, (0, 1, 2)),
        ("own first", "all_reduce", ("rounding sums",), Fault.DISAGREE, (2,)),
        ("late", "all_reduce", ("integers", "overlapped with compute"), Fault.RACE, (1,)),
    ],
)
def test_a_planted_fault_is_named_with_its_rank(
    planted: str, call: str, cases: tuple[str, ...], fault: Fault, guilty: tuple[int, ...], rank_pool: Pool
) -> None:
    outcome = probe(rank_pool(3), planted, {call: cases})

    assert outcome.verdict is Verdict.DIVERGENT
    assert {(p.call.partition(" ")[0], p.fault, p.guilty) for p in outcome.problems if not p.hazard} == {
        (call, fault, guilty)
    }


@pytest.mark.parametrize(
    ("planted", "world_size", "kind", "text", "formats"),
    [
        ("rank order", 3, OrderKind.FOLD, "one after the other: 0, 1, 2", "bfloat16"),
        ("float32 inside", 3, OrderKind.FOLD, "one after the other: 1, 2, 0", "float32"),
        ("pairs", 4, OrderKind.TREE, "tree ((0 + 2) + (1 + 3))", "bfloat16"),
    ],
)
def test_another_order_or_format_is_recognised_and_no_fault(
    planted: str, world_size: int, kind: OrderKind, text: str, formats: str, rank_pool: Pool
) -> None:
    outcome = probe(rank_pool(world_size), planted, {"all_reduce": ("rounding sums",)})

    assert outcome.problems == ()
    order, found = outcome.rows[0].orders["bfloat16", 1023]
    assert (order.kind, order.text, found) == (kind, text, (formats,))


def test_memory_that_gloo_reads_wrong_is_a_hazard_and_no_fault(rank_pool: Pool) -> None:
    wanted: dict[str, Any] = {"all_reduce": ("integers", "strided memory", "transposed memory")}
    outcome = probe(rank_pool(3), "healthy", wanted, repeat=1)

    assert outcome.verdict is Verdict.ALIGNED
    assert [(p.call, p.case, p.hazard) for p in outcome.problems] == [
        ("all_reduce sum", "strided memory", True)
    ]


def test_a_collective_that_the_backend_lacks_altogether_leaves_the_probe_inconclusive(
    rank_pool: Pool,
) -> None:
    outcome = probe(rank_pool(3), "fails", {"all_reduce": ("integers",)}, repeat=1)

    assert outcome.verdict is Verdict.INCONCLUSIVE
    assert "all_reduce sum" in outcome.unchecked
    assert outcome.refused[0][3] == "RuntimeError: all_reduce is not implemented"
