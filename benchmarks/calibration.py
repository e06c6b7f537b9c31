"""Where the verdict's constants come from: the largest errors and gains that healthy ports show.

    python benchmarks/calibration.py [--seeds N] [--families ...] [--dtypes ...]

Every edge of healthy runs is judged as usual, under the recipe that these runs follow, and what the rules
look at is noted: how far the worst element lies beyond its half ulp and its hard bound, in sigmas, and how
far the gain is from zero, in standard errors, against the oracle and against the control. Beside it stands
what the rules allow.
"""

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import validator
from tests.models import (
    DENSE,
    KERNELS,
    Setup,
    checkpoint,
    inputs,
    load_candidate,
    load_reference,
)
from tests.stimuli import Stimulus
from validator import api
from validator.checks import explaining, judge
from validator.checks.edges import EdgeJudge
from validator.checks.judge import (
    GAIN_Z,
    MEASURED_FACTOR,
    Assessment,
    Band,
    Bench,
    judge_constant,
    judge_edge,
)
from validator.checks.policy import Policy
from validator.numerics.bands import normal_lambda, tail_lambda
from validator.numerics.formats import format_of
from validator.numerics.gain import Gain, gain, slice_gains
from validator.numerics.recipes import EAGER
from validator.numerics.ulp import ulp

MEASURED, FORMULA, SUMS = "measured sigma", "sigma of a formula", "sigma of a formula, float32 sums"
WHOLE, SLICE, CONSTANT = "a whole edge", "a head or channel", "a constant of the code"


@dataclass(slots=True)
class Extreme:
    """The largest value that was seen of something, of how many."""

    value: float = 0.0
    allowed: float = math.inf
    where: str = ""
    count: int = 0

    def note(self, value: float, allowed: float, where: str) -> None:
        """Take one more value into account. Values are compared as shares of what is allowed."""
        self.count += 1
        if value * self.allowed > self.value * allowed or self.count == 1:
            self.value, self.allowed, self.where = value, allowed, where

    def cells(self) -> tuple[str, str, str]:
        """Return the columns of a table: how many, the largest, what is allowed."""
        if not self.count:
            return "0", "-", "-"
        return str(self.count), f"{self.value:.2f}", f"{self.allowed:.2f}"


@dataclass(slots=True)
class Ledger:
    """What healthy edges came to.

    Attributes:
        errors: by kind of band and dtype, the largest `(|d| - ulp/2 - bound)/sigma`, beside lambda alone.
        oracle_z: by kind of gain, the largest |z| against the oracle where the gain is large enough to count.
        both_z: the same for the smaller of both |z|, against oracle and control.
        alarms: what the checks said of these runs.
        run, module: what is being judged.
    """

    errors: dict[tuple[str, str], Extreme] = field(default_factory=dict)
    oracle_z: dict[str, Extreme] = field(default_factory=dict)
    both_z: dict[str, Extreme] = field(default_factory=dict)
    alarms: list[str] = field(default_factory=list)
    run: str = ""
    module: str = ""
    _gains: list[Gain] = field(default_factory=list)
    _slices: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Look over the judge's shoulder."""
        judge_code = EdgeJudge.judge

        def of_code(edge_judge: EdgeJudge, code: Any) -> None:
            self.module = code.call.module
            judge_code(edge_judge, code)

        def of_edge(**arguments: Any) -> Assessment:
            self._gains, self._slices = [], []
            assessment = judge_edge(**arguments)
            self._note_error(**arguments)
            self._note_gains(arguments["cand"].dtype)
            return assessment

        def of_constant(**arguments: Any) -> Gain | None:
            self._gains = []
            found = judge_constant(**arguments)
            floor = format_of(arguments["cand"].dtype).unit_roundoff
            self._note_z(CONSTANT, self._gains, floor, GAIN_Z)
            return found

        def kept_gain(**arguments: Any) -> Gain:
            found = gain(**arguments)
            self._gains.append(found)
            return found

        def kept_slices(**arguments: Any) -> tuple[Tensor, Tensor]:
            found = slice_gains(**arguments)
            self._slices.append(found)
            return found

        with ExitStack() as stack:
            for owner, name, replacement in (
                (EdgeJudge, "judge", of_code),
                (explaining, "judge_edge", of_edge),
                (explaining, "judge_constant", of_constant),
                (judge, "gain", kept_gain),
                (judge, "slice_gains", kept_slices),
                # These ports are transformers' own code, which rounds after every operator. To try `fused`
                # first would hide an edge that it fails by little.
                (api, "policy_of", lambda declared: Policy(allowed=(EAGER,))),
            ):
                stack.enter_context(mock.patch.object(owner, name, replacement))
            yield

    def _note_error(
        self, *, exact: Tensor, cand: Tensor, band: Band, judged: Tensor | None, bench: Bench, **rest: Any
    ) -> None:
        sigma = torch.as_tensor(band.sigma, dtype=torch.float64).expand(cand.shape)
        selected = (sigma > 0) & exact.isfinite() & cand.isfinite()
        if judged is not None:
            selected = selected & judged
        if not bool(selected.any()):
            return
        beyond = (cand.double() - exact).abs() - ulp(exact, format_of(cand.dtype)) / 2 - band.bound
        kind = MEASURED if band.is_measured else SUMS if band.has_tails else FORMULA
        allowed = (tail_lambda if band.has_tails else normal_lambda)(bench.elements)
        key = kind, str(cand.dtype).removeprefix("torch.")
        largest = float((beyond[selected] / sigma[selected]).max())
        self.errors.setdefault(key, Extreme()).note(largest, allowed, self._where)

    def _note_gains(self, dtype: torch.dtype) -> None:
        floor = format_of(dtype).unit_roundoff / 16
        self._note_z(WHOLE, self._gains, floor, GAIN_Z)
        for own, of_control in zip(self._slices[::2], self._slices[1::2], strict=True):
            allowed = math.sqrt(GAIN_Z**2 + 2 * math.log(len(own[0])))
            counts = own[0].abs() > floor
            self._note_tensor(self.oracle_z, SLICE, own[1].abs()[counts], allowed)
            counts &= of_control[0].abs() > floor
            smaller = torch.minimum(own[1].abs(), of_control[1].abs())[counts]
            self._note_tensor(self.both_z, SLICE, smaller, allowed)

    def _note_z(self, kind: str, gains: list[Gain], floor: float, allowed: float) -> None:
        """Note the z of a gain; the second of `gains`, where there is one, is against the control."""
        if not gains or gains[0].abstains or abs(gains[0].gain) <= floor:
            return
        self.oracle_z.setdefault(kind, Extreme()).note(abs(gains[0].z), allowed, self._where)
        if len(gains) > 1 and not gains[1].abstains and abs(gains[1].gain) > floor:
            smaller = min(abs(gains[0].z), abs(gains[1].z))
            self.both_z.setdefault(kind, Extreme()).note(smaller, allowed, self._where)

    def _note_tensor(self, extremes: dict[str, Extreme], kind: str, z: Tensor, allowed: float) -> None:
        z = z[~z.isnan()]
        if z.numel():
            extremes.setdefault(kind, Extreme()).note(float(z.max()), allowed, self._where)

    @property
    def _where(self) -> str:
        return f"{self.module or 'the model'}, {self.run}"


def main() -> int:
    """Run healthy ports and print the tables."""
    parser = argparse.ArgumentParser(description="Measure what healthy ports come to.")
    parser.add_argument("--seeds", type=int, default=2, help="seeds of weights and inputs (default 2)")
    parser.add_argument("--families", nargs="+", choices=DENSE, default=DENSE)
    parser.add_argument(
        "--dtypes",
        nargs="+",
        choices=("bfloat16", "float16", "float32"),
        default=["bfloat16", "float16", "float32"],
    )
    options = parser.parse_args()
    setups = [
        Setup(family=family, dtype=dtype, cand_kernel=kernel, seed=seed, padding=True, stimulus=stimulus)
        for seed, family, dtype in product(range(options.seeds), options.families, options.dtypes)
        for kernel in KERNELS[family]
        for stimulus in ((Stimulus.PEAKED,) if family == "tiny-dense" else (Stimulus.PEAKED, Stimulus.SMALL))
    ]
    ledger = Ledger()
    with tempfile.TemporaryDirectory(prefix="calibration-") as scratch, ledger.reading():
        for number, setup in enumerate(setups, start=1):
            print(f"[{number}/{len(setups)}] {setup.label}", file=sys.stderr, flush=True)
            path = checkpoint(setup, Path(scratch))
            ledger.run = setup.label
            result = validator.check(
                reference=load_reference(setup, path),
                candidate=load_candidate(setup, path),
                inputs=inputs(setup),
            )
            ledger.alarms += [f"{setup.label}: {finding.summary}" for finding in result.findings]
    show(ledger, Console())
    return 0


def show(ledger: Ledger, console: Console) -> None:
    """Print the extremes beside what the rules allow."""
    title = f"MAX: errors beyond ulp/2 + bound, in sigmas; MEASURED_FACTOR is {MEASURED_FACTOR}"
    table = Table("band", "dtype", title=title, title_justify="left")
    for column in ("edges", "largest", "lambda", "largest / lambda"):
        table.add_column(column, justify="right")
    for (kind, dtype), found in sorted(ledger.errors.items()):
        table.add_row(kind, dtype, *found.cells(), f"{found.value / found.allowed:.2f}")
    console.print(table)
    title = f"GAIN: |z| where the gain is large enough to count; GAIN_Z is {GAIN_Z}"
    table = Table("gain of", "against", title=title, title_justify="left")
    for column in ("edges", "largest", "allowed"):
        table.add_column(column, justify="right")
    both = "oracle and control"
    for against, extremes in (("oracle", ledger.oracle_z), (both, ledger.both_z)):
        for kind in (WHOLE, SLICE, CONSTANT):
            table.add_row(kind, against, *extremes.get(kind, Extreme()).cells())
    console.print(table)
    for (kind, dtype), found in sorted(ledger.errors.items()):
        console.print(f"{kind}, {dtype}: {found.where}", markup=False, soft_wrap=True)
    for kind, found in ledger.both_z.items():
        console.print(f"gain of {kind}, {both}: {found.where}", markup=False, soft_wrap=True)
    for alarm in ledger.alarms:
        console.print(f"false alarm: {alarm}", markup=False, soft_wrap=True)
    console.print(f"{len(ledger.alarms)} false alarms")


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
