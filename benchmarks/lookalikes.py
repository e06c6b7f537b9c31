"""Where the constants that tell looser arithmetic from faults come from: `likeness.py` and `undeclared.py`.

    python benchmarks/lookalikes.py [--seeds N] [--families]

Candidates compute more coarsely than their reference, or wrongly: the small modules of
`tests/test_undeclared.py`, and with `--families` models with a planted fault. Of each diverging edge it is
noted how it compares with the software models of recipes: of looser arithmetic with that of the recipe that
was planted, of faults with those of all recipes. Beside it stands the limit. No figure must tell all faults
by itself: the last column says how many edges it turns away.
"""

import argparse
import math
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import validator
from tests import test_undeclared as cases
from tests.checks.build import check
from tests.models import KERNELS, Setup, checkpoint, inputs, load_candidate, load_reference
from tests.stimuli import Stimulus
from validator.checks import likeness, undeclared
from validator.checks.undeclared import Lineup, Resemblance
from validator.faults import parse

LIMITS = {
    "NEAR": ("error that the nearest model leaves, of all", undeclared.NEAR, "at most"),
    "BETTER": (
        "error that a constant or factor leaves, of a near model's or all",
        undeclared.BETTER,
        "above",
    ),
    "SIZE": ("size of errors, larger over smaller", likeness.SIZE, "at most"),
    "UNEVEN": ("worst channel or row over the median one", likeness.UNEVEN, "at most"),
    "DIFFERING": ("share that differs from the control", undeclared.DIFFERING, "above"),
    "PARTS": ("error that the nearest number of parts leaves, of all", undeclared.NEAR, "at most"),
}
PLANTED = (
    ("gemm-bf16-blocks:layer=1", "bf16-accumulate", "llama", "bfloat16", Stimulus.LONG_SUMS),
    ("gemm-13-bits:layer=1", "truncated-accumulator", "qwen3", "bfloat16", Stimulus.LONG_SUMS),
    ("gemm-fp16:layer=1", "fp16-accumulate", "llama", "float16", Stimulus.LONG_SUMS),
    ("norm-early-cast:layer=1", "bf16-inside", "gemma2", "bfloat16", Stimulus.PEAKED),
    ("norm-eps:layer=1", "", "llama", "bfloat16", Stimulus.SMALL),
    ("attn-scale:layer=1,factor=1.01", "", "gemma2", "bfloat16", Stimulus.PEAKED),
    ("attn-no-softcap:layer=1", "", "gemma2", "float16", Stimulus.PEAKED),
    ("kernel-scale:layer=1,factor=0.999", "", "qwen3", "bfloat16", Stimulus.PEAKED),
    ("kernel-row:layer=1", "", "qwen3", "float16", Stimulus.PEAKED),
)
"""Faults with the name of the recipe that they are, or "", and the models that they are planted in.

Of 32 partial sums there are more than `bf16-partials` allows.
"""

LOOSER, FAULTS, HEALTHY = "looser arithmetic", "faults", "healthy"
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(slots=True)
class Ledger:
    """What was seen.

    Attributes:
        figures: by name of a limit and kind of candidate.
        kind: of the candidate that is being judged.
        planted: name of the recipe that it computes under, or "" for all.
    """

    figures: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    kind: str = ""
    planted: str = ""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Look over the shoulder of those that compare."""
        compare, look = Lineup.resemblance, Lineup.hidden_partials

        def resemblance(lineup: Lineup) -> Resemblance | None:
            if self.planted in ("", lineup._suspect.recipe.name):
                self._note(lineup)
            return compare(lineup)

        def hidden_partials(lineup: Lineup, control: Tensor) -> Resemblance | None:
            self.figures["DIFFERING", self.kind].append(lineup.differing(control))
            if self.planted in ("", lineup._suspect.recipe.name):
                self._note_parts(lineup)
            return look(lineup, control)

        with (
            mock.patch.object(Lineup, "resemblance", resemblance),
            mock.patch.object(Lineup, "hidden_partials", hidden_partials),
        ):
            yield

    def _note(self, lineup: Lineup) -> None:
        elements = lineup._elements
        made = [lineup._control(variant, steps=steps) for variant, steps in lineup._variants()]
        models = [model for model in made if model is not None]
        if not models or not len(elements):
            return
        nearest = min(models, key=elements.energy)
        left = elements.energy(nearest)
        self._add("NEAR", _share(left, lineup._before))
        is_near = left <= undeclared.NEAR * lineup._before
        self._add("BETTER", _share(lineup._left_by_faults, left if is_near else lineup._before))
        cuts = lineup._suspect.recipe.accumulator_bits is not None
        alike = elements.likeness(nearest, has_direction=cuts)
        self._add("SIZE", max(max(x, 1 / x) if x > 0 else math.inf for x in alike.sizes))
        self._add("UNEVEN", max(alike.unevenness))

    def _note_parts(self, lineup: Lineup) -> None:
        recipe, last = lineup._suspect.recipe, lineup._suspect.steps[-1]
        made = [lineup._control(replace(recipe, split_k=parts), steps=[last]) for parts in undeclared.PARTS]
        energies = [lineup._elements.energy(model) for model in made if model is not None]
        self._add("PARTS", _share(min(energies, default=math.inf), lineup._before))

    def _add(self, name: str, value: float) -> None:
        self.figures[name, self.kind].append(value)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else math.inf


def main() -> int:
    """Judge all cases and print the table."""
    parser = argparse.ArgumentParser(description="Measure what tells looser arithmetic from faults.")
    parser.add_argument("--seeds", type=int, default=2, help="seeds of the inputs (default 2)")
    parser.add_argument("--families", action="store_true", help="judge models as well (minutes)")
    options = parser.parse_args()
    ledger, alarms = Ledger(), []
    with ledger.reading():
        for seed in range(options.seeds):
            alarms += list(_run_modules(ledger, seed))
            alarms += list(_run_families(ledger, seed)) if options.families else []
    _show(ledger, alarms, Console())
    return 0


def _run_modules(ledger: Ledger, seed: int) -> Iterator[str]:
    """Judge the small modules on one input, and yield what is said of them that should not be."""
    for name, case in cases.CASES.items():
        said = _judged(ledger, LOOSER, case.recipe, case.reference, cases.built(case), case.dtype, seed)
        yield from (f"{name}: {recipe}" for recipe in said if recipe != case.recipe)
    for dtype in DTYPES:
        for name, (reference, spoiled, _) in cases.FAULTS.items():
            candidate = spoiled()
            candidate.load_state_dict(reference().state_dict())
            said = _judged(ledger, FAULTS, "", reference, candidate.to(dtype), dtype, seed)
            yield from (f"{name} in {dtype}: {recipe}" for recipe in said if recipe in cases.RECIPES)
        for reference, healthy in (
            *(
                (kind, kind)
                for kind in (cases.Mlp, cases.Attention, cases.GemmaNorm, cases.Router, cases.Block)
            ),
            (cases.Attention, cases.WideScores),
        ):
            said = _judged(ledger, HEALTHY, "", reference, healthy().to(dtype), dtype, seed)
            yield from (f"healthy {healthy.__name__} in {dtype}: {recipe}" for recipe in said)


def _run_families(ledger: Ledger, seed: int) -> Iterator[str]:
    """Judge models with a planted fault, and yield what is said of them that should not be."""
    with tempfile.TemporaryDirectory(prefix="lookalikes-") as scratch:
        for planted, recipe, family, dtype, stimulus in PLANTED:
            setup = Setup(
                family=family, dtype=dtype, cand_kernel=KERNELS[family][0], seed=seed, stimulus=stimulus
            )
            path = checkpoint(setup, Path(scratch))
            candidate = load_candidate(setup, path)
            parse(planted).plant(candidate)
            ledger.kind, ledger.planted = LOOSER if recipe else FAULTS, recipe
            reference = load_reference(setup, path)
            found = validator.check(reference=reference, candidate=candidate, inputs=inputs(setup)).findings
            said = [f.recipe for f in found if f.verdict is cases.Verdict.UNDECLARED_PRECISION]
            yield from (f"{planted} in {setup.label}: {name}" for name in said if name != recipe)


def _judged(
    ledger: Ledger,
    kind: str,
    planted: str,
    reference: Callable[[], nn.Module],
    candidate: nn.Module,
    dtype: torch.dtype,
    seed: int,
) -> list[str]:
    """Judge one candidate, and return the recipes that are called undeclared."""
    ledger.kind, ledger.planted = kind, planted
    given: dict[str, Any] = {"x": cases.seeded(4, 48, cases.WIDTH, seed=100 + seed).to(dtype)}
    found = check(reference(), candidate, given).findings
    return [f.recipe or "" for f in found if f.verdict is cases.Verdict.UNDECLARED_PRECISION]


def _show(ledger: Ledger, alarms: Sequence[str], console: Console) -> None:
    table = Table("constant", "what is measured", "limit", "of")
    for column in ("edges", "least", "median", "largest", "turned away"):
        table.add_column(column, justify="right")
    for name, (what, limit, side) in LIMITS.items():
        for kind in (LOOSER, FAULTS, HEALTHY):
            values = torch.tensor(ledger.figures[name, kind], dtype=torch.float64)
            if not len(values):
                continue
            refused = values > limit if side == "at most" else values <= limit
            figures = (f"{float(x):.3g}" for x in (values.min(), values.median(), values.max()))
            table.add_row(
                name, what, f"{side} {limit:g}", kind, str(len(values)), *figures, str(int(refused.sum()))
            )
    console.print(table)
    for alarm in alarms:
        console.print(f"said wrongly: {alarm}", markup=False, soft_wrap=True)
    console.print(f"{len(alarms)} said wrongly")


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
