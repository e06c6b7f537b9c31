"""All levels of one candidate: runs are made when a level first asks for them, and serve all that do."""

import tempfile
from pathlib import Path

from validator.determinism.batches import NotBatchedError, sequences_of, tokens_of
from validator.determinism.batching import batching
from validator.determinism.card_counts import card_counts
from validator.determinism.chunking import chunking
from validator.determinism.explained import Oracle
from validator.determinism.feeding import require_chunks
from validator.determinism.jobs import Job
from validator.determinism.memory import uninitialised_memory
from validator.determinism.records import Answer
from validator.determinism.run_to_run import run_to_run
from validator.determinism.runs import Launcher, NotBuiltError, RunSet, run_variants, start_ranks
from validator.determinism.variants import (
    Variant,
    batch_variants,
    chunk_sizes,
    chunk_variants,
    memory_variants,
    repeat_variants,
)
from validator.errors import ValidatorError
from validator.numerics.recipes import recipe_named
from validator.target import load_target

__all__ = ["Study", "open_study"]


class Study:
    """The levels of determinism of a target's candidate.

    Args:
        source: a Python file or a checkpoint folder.
        nproc: ranks for the levels that are about one number of cards.
        device, dtype, tp: options of the candidate.
        recipe: name of what the device may round, or None for the target's own.
        repeats: how often a run is repeated.
        launcher: starts ranks.
    """

    def __init__(
        self,
        source: str,
        *,
        nproc: int = 1,
        device: str | None = None,
        dtype: str | None = None,
        tp: int | None = None,
        recipe: str | None = None,
        repeats: int = 2,
        launcher: Launcher = start_ranks,
    ) -> None:
        self._source = source
        self._nproc = nproc
        self._options = {"device": device, "dtype": dtype}
        self._tp = tp
        self._repeats = repeats
        self._launcher = launcher
        self._scratch = tempfile.TemporaryDirectory(prefix="validator-")
        self._runs: dict[int, RunSet] = {}
        self._errors: dict[int, ValidatorError] = {}
        self._target = load_target(source, device=device, dtype=dtype, tp=tp)
        self._target.require("candidate")
        self._inputs = self._target.inputs()
        self._oracle = Oracle(self._target, Path(self._scratch.name), recipe_named(recipe))

    def run_to_run(self, nproc: int | None = None) -> Answer:
        """D0: see `run_to_run`; on the configured number of ranks, or another."""
        nproc = nproc or self._nproc
        why = self._why_not_on(nproc)
        return run_to_run(self._on(nproc)) if why is None else Answer(skipped=why)

    def memory(self) -> Answer:
        """D0: see `uninitialised_memory`."""
        return uninitialised_memory(self._on(self._nproc))

    def batching(self) -> Answer:
        """D1: see `batching`."""
        why = self._why_not_batched()
        if why is not None:
            return Answer(skipped=why)
        return batching(self._on(self._nproc), self._oracle, tokens=tokens_of(self._inputs))

    def chunking(self) -> Answer:
        """D1: see `chunking`."""
        why = self._why_not_chunked()
        if why is not None:
            return Answer(skipped=why)
        return chunking(self._on(self._nproc), self._oracle, tokens=tokens_of(self._inputs))

    def card_counts(self, nproc: int) -> Answer:
        """D2: see `card_counts`; of so many ranks against one."""
        why = self._why_not_on(1) or self._why_not_on(nproc)
        if why is not None:
            return Answer(skipped=why)
        return card_counts(self._on(1), self._on(nproc), self._oracle)

    def _why_not_on(self, nproc: int) -> str | None:
        """Return why the candidate can't be built on so many ranks; the configured ones it must."""
        try:
            self._on(nproc)
        except NotBuiltError as error:
            if nproc == self._nproc:
                raise
            return f"no candidate on {nproc} card{'s' if nproc > 1 else ''}: {error}"
        return None

    def _on(self, nproc: int) -> RunSet:
        if nproc in self._errors:
            raise self._errors[nproc]
        if nproc not in self._runs:
            folder = Path(self._scratch.name) / f"on-{nproc}"
            folder.mkdir()
            tp = None if self._tp is None else nproc  # a checkpoint's group is all of its ranks
            variants = list(repeat_variants(self._repeats))
            if nproc == self._nproc:
                variants += self._variants()
            # Some candidates can be built once in a process: what needs no second one comes first.
            variants.sort(key=lambda variant: variant.is_rebuilt or variant.is_filled)
            job = Job(source=self._source, folder=folder, variants=tuple(variants), tp=tp, **self._options)
            try:
                self._runs[nproc] = run_variants(job, nproc=nproc, launcher=self._launcher)
            except ValidatorError as error:
                self._errors[nproc] = error
                raise
        return self._runs[nproc]

    def _variants(self) -> list[Variant]:
        """Return the runs on the configured ranks alone."""
        variants: list[Variant] = []
        if self._why_not_batched() is None:
            variants += batch_variants(sequences_of(self._inputs))
        if self._why_not_chunked() is None:
            variants += chunk_variants(chunk_sizes(tokens_of(self._inputs)))
        return [*variants, *memory_variants()]

    def _why_not_batched(self) -> str | None:
        try:
            sequences_of(self._inputs)
        except NotBatchedError as error:
            return str(error)
        return None

    def _why_not_chunked(self) -> str | None:
        why = self._why_not_batched()
        if why is not None:
            return why
        try:
            require_chunks(self._target, self._inputs)
        except NotBatchedError as error:
            return str(error)
        if tokens_of(self._inputs) < 2:
            return "inputs() has one token a sequence, which can't be cut into chunks"
        return None


def open_study(
    source: str,
    nproc: int,
    device: str | None,
    dtype: str | None,
    tp: int | None,
    recipe: str | None,
    repeats: int,
) -> Study:
    """Return a study, for what keeps it by its arguments."""
    return Study(source, nproc=nproc, device=device, dtype=dtype, tp=tp, recipe=recipe, repeats=repeats)
