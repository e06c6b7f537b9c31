"""Results of a search, of a swap and of a probe, built by hand around a name that users could have chosen."""

from tests.report.conftest import finding
from validator.bisecting.path import Claim, Cost, Step
from validator.checks.findings import Outcome, Verdict
from validator.probing.problems import Problem
from validator.probing.records import Blame, Fault, Order, OrderKind
from validator.probing.summary import ProbeOutcome, Row
from validator.report.bisection import BisectionResult
from validator.report.probes import ProbeResult
from validator.report.swaps import SwapResult
from validator.swapping.metrics import Kind, Metric
from validator.swapping.records import Level, Swap
from validator.swapping.search import Member, SmallestSet

__all__ = ["probe_result", "search_result", "swap_result"]


def search_result(name: str) -> BisectionResult:
    """A search of two steps that finds the module `name`."""
    found = finding(name)
    steps = tuple(
        Step(
            name=step, modules=(name, name), captured=5, runs=1, size_bytes=200_000, verdict=f"{name} is off"
        )
        for step in ("boundaries", "inside")
    )
    outcome = Outcome(verdict=Verdict.DIVERGENT, findings=(found,), judgements=(), notes=(name,))
    claim = Claim(finding=found, before=None)
    return BisectionResult(outcome, steps, Cost.of(steps, full_bytes=15_000_000), claim)


def swap_result(name: str, *, members: int = 1) -> SwapResult:
    """A swap in which so many modules, called `name` and a number, explain all."""
    items = tuple(f"{name}{number}" for number in range(members))
    found = SmallestSet(
        members=tuple(
            Member(item=item, alone=0.012, lost_from_set=0.02, lost_from_whole=0.015) for item in items
        ),
        value=0.03,
        limit=0.02,
        whole=0.031,
        none=0.0,
        rest=0.001,
        is_smallest=True,
    )
    return SwapResult(
        Swap(
            verdict=Verdict.DIVERGENT,
            source=name,
            metric=Metric(kind=Kind.KL),
            tokens=None,
            positions=64,
            candidate=0.031,
            baseline=0.0,
            noise=0.002,
            limit=0.02,
            levels=(Level(name="blocks", tried=(*items, "other"), found=found, runs=5),),
            unswappable={name: name},
            notes=(name,),
        )
    )


def probe_result(name: str) -> ProbeResult:
    """A probe in which the call `name` is wrong in bfloat16, right in float32, and refused in int8."""
    blame = Blame(fault=Fault.MISSING, source=1, first=0, last=3, count=4, size=8, right=3.0, got=1.0)
    wrong, hazard = (
        Problem(
            call=name,
            case=name,
            fault=Fault.MISSING,
            guilty=(1,),
            seen_by=(0, 1),
            blame=blame,
            dtypes=("bfloat16",),
            sizes=(8,),
            calls=2,
            hazard=is_hazard,
        )
        for is_hazard in (False, True)
    )
    row = Row(
        call=name,
        right=("float32",),
        wrong=("bfloat16",),
        refused={"int8": name},
        deterministic=True,
        orders={("float32", 8): (Order(kind=OrderKind.RING, step=1, text="ring, upwards"), ("float32",))},
        bandwidths={1 << 10: 1e-3, 1 << 20: 2e-3},
    )
    return ProbeResult(
        ProbeOutcome(
            name=name,
            world_size=2,
            backend="gloo",
            device="cpu",
            rows=(row,),
            problems=(wrong, hazard),
            refused=((name, name, ("int8",), name),),
            unchecked=(name,),
        )
    )
