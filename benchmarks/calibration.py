"""Where the constants of the verdict come from: the largest errors, in sigmas, and gains of healthy ports.

    python benchmarks/calibration.py [--seeds N] [--tokens N] [--families ...] [--dtypes ...]

Every edge of healthy runs is judged as usual, and what the rules look at is noted beside the verdict: how far the
worst element lies beyond its half ulp and its hard bound, in sigmas, where sigma was measured and where it comes from a
formula; and the gain's z against the oracle and against the control. The last columns are what the rules allow.
"""

import argparse
import math
import sys
import tempfile
from collections.abc import Callable, Iterator
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
from tests.models import FAMILIES, KERNELS, Setup, checkpoint, inputs, load_candidate, load_reference
from validator.checks import edges, judge
from validator.checks.judge import Assessment, Band, Bench
from validator.numerics.formats import format_of
from validator.numerics.gain import Gain
from validator.numerics.ulp import ulp

KINDS = ("measured", "formula", "formula, float32 sums")


@dataclass(slots=True)
class Extreme:
    """The largest value that was seen of something, with how many there were."""

    largest: float = 0.0
    where: str = ""
    count: int = 0

    def note(self, value: float, where: str) -> None:
        """Take one more value into account; NaN, where a test abstained, is none."""
        if math.isnan(value):
            return
        self.count += 1
        if value > self.largest:
            self.largest, self.where = value, where


@dataclass(slots=True)
class Tally:
    """What healthy edges came to, by kind of band and format.

    Attributes:
        errors: largest `(|d| - ulp/2 - bound)/sigma` of an edge, over its elements, under the recipe that is best for it.
        edge_multipliers: the largest lambda that the rules gave the same edges.
        gains: largest `min(|z|)` of an edge against oracle and control.
        alarms: edges that no allowed recipe explained.
    """

    errors: dict[tuple[str, str], Extreme] = field(default_factory=dict)
    multipliers: dict[tuple[str, str], float] = field(default_factory=dict)
    oracle_gains: dict[str, Extreme] = field(default_factory=dict)
    both_gains: dict[str, Extreme] = field(default_factory=dict)
    alarms: int = 0
