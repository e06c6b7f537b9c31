"""What rounding explains of a run: its findings against the float64 oracle, and those that another run lacks.

Where two runs have the same bits at a module's input and others at its output, rounding explains the
difference if it explains both: each is then within the band of one float64 value. So both runs are checked,
and what is found in one of them alone depends on what tells the runs apart.
"""

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from validator.capturing.reader import open_capture
from validator.capturing.session import capture_run
from validator.checks.findings import Finding
from validator.determinism.batches import NotBatchedError
from validator.determinism.feeding import feed_variant
from validator.determinism.runs import RunSet
from validator.judging import judged
from validator.numerics.recipes import Recipe
from validator.target import Target

__all__ = ["Oracle", "found_in_one"]


class Oracle:
    """Checks runs against the reference of their target; each once.

    Args:
        target: the target.
        folder: for captures of the reference.
        recipe: what the device may round, or None for the target's own.
    """

    def __init__(self, target: Target, folder: Path, recipe: Recipe | None = None) -> None:
        self._target = target
        self._folder = folder
        self._recipe = recipe or target.recipe
        self._reference: nn.Module | None = None
        self._inputs = target.inputs()
        self._findings: dict[Path, tuple[Finding, ...]] = {}

    @property
    def target(self) -> Target:
        """The target."""
        return self._target

    def findings(self, runs: RunSet, name: str) -> tuple[Finding, ...]:
        """Return what rounding can't explain of a variant's run.

        Raises:
            ValidatorError: the two sides can't be compared.
        """
        path = runs.job.folder / name
        if path not in self._findings:
            self._findings[path] = self._check(runs, name)
        return self._findings[path]

    def _check(self, runs: RunSet, name: str) -> tuple[Finding, ...]:
        variant = runs.variants[name]
        if self._reference is None:
            self._reference = self._target.reference()
        path = self._folder / f"reference-{len(self._findings)}.h5"
        try:
            capture_run(
                lambda: feed_variant(self._target, self._inputs, self._model(), variant, "reference"),
                self._reference,
                path,
                proof=False,
                overwrite=True,
            )
            ref = open_capture(path)
        except NotBatchedError:
            if variant.chunks is None:
                raise
            ref = None  # the reference keeps no cache: it computes the chunks in one prefill
        result = judged(
            reference=self._reference,
            ref=ref,
            cand=runs.capture(name),
            run=lambda model: feed_variant(self._target, self._inputs, model, variant, "reference"),
            recipe=self._recipe,
            names=self._target.names,
            layout=self._target.layout,
            mesh=self._target.mesh,
            about={},
            progress=lambda stage, done, total: None,
        )
        return result.findings

    def _model(self) -> nn.Module:
        assert self._reference is not None
        return self._reference


def found_in_one(a: Sequence[Finding], b: Sequence[Finding]) -> list[Finding]:
    """Return the findings of `b` whose edge is healthy in `a`, and then those of `a` likewise."""
    keys_a, keys_b = ({_key(finding) for finding in side} for side in (a, b))
    return [f for f in b if _key(f) not in keys_a] + [f for f in a if _key(f) not in keys_b]


def _key(finding: Finding) -> tuple[str, str | None]:
    return finding.module, finding.into
