"""One capture from its first hook to its name on the disk, over all ranks of a run.

Ranks meet at its beginning and at its end, not in between: a rank that fails does not wait for the
others, and leaves its file incomplete.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch.distributed as dist
from torch import nn

from validator.errors import CaptureError

from .collectives import CollectiveRecorder
from .copies import copy_tensor
from .hooks import Recorder
from .hosts import claim, exchange
from .levels import Level
from .manifest import Manifest, Proof
from .metadata import describe_inputs, describe_rank, describe_run
from .noise import Noise, NoiseSource
from .operators import OperatorRecorder
from .parameters import write_parameters
from .place import Place
from .proof import worst
from .records import Mesh
from .selection import Selection
from .values import tensors
from .writer import CaptureWriter

__all__ = ["CaptureSummary", "Recording"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSummary:
    """What was captured.

    Attributes:
        path: the capture.
        ranks: ranks recorded.
        calls, values: module calls and tensors recorded, over all ranks.
        proof: whether looking changed the run.
        silent: modules that were included and did not fire on any rank.
    """

    path: Path
    ranks: tuple[int, ...]
    calls: int
    values: int
    proof: Proof
    silent: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """What one rank adds to the manifest."""

    rank: int
    recorded: bool
    proof: Proof
    described: dict[str, Any]
    inputs: dict[str, Any]
    calls: int
    values: int
    kept: frozenset[str]
    fired: frozenset[str]
    left_out: frozenset[str]
    meshes: frozenset[Mesh]
    compiled: Mapping[str, int]


class Recording:
    """A capture that is being made: hooks are on while it is entered, and `finish` completes it.

    Args:
        model: the model to hook.
        place: where to write.
        selection: what to record.
        recipe: name of the recipe that the run declares.
        planted: what a report must say of a fault that was planted in the model, or None.
        inputs: described in the metadata; None for what enters the first call.
        parameter_limit_bytes: larger parameters are hashed.
        flush_interval_s: seconds between flushes.
        level: how much of each tensor is kept.
    """

    def __init__(
        self,
        model: nn.Module,
        place: Place,
        selection: Selection,
        *,
        recipe: str | None,
        planted: str | None,
        inputs: Mapping[str, Any] | None,
        parameter_limit_bytes: int,
        flush_interval_s: float,
        level: Level = Level.FULL,
    ) -> None:
        self._level = level
        self._model = model
        self._place = place
        self._selection = selection
        self._recipe = recipe
        self._planted = planted
        self._inputs = inputs
        self._limit_bytes = parameter_limit_bytes
        self._flush_interval_s = flush_interval_s
        self._rank, self._world_size = _rank_and_world_size()
        self._leads = False
        self._id = ""
        self._writer: CaptureWriter | None = None
        self._recorder: Recorder | None = None
        self._mode: CollectiveRecorder | None = None
        self._operators: OperatorRecorder | None = None
        self._noise: Noise | None = None

    def __enter__(self) -> None:
        """Claim the path, write the parameters and hook the model."""
        self._claim()
        with self.abandoned_on_error():
            if not self._selection.keeps_rank(self._rank):
                return
            file = self._place.file_of(self._rank)
            self._writer = CaptureWriter(
                file,
                rank=self._rank,
                world_size=self._world_size,
                capture_id=self._id,
                flush_interval_s=self._flush_interval_s,
                level=self._level,
            )
            self._recorder = Recorder(self._model, self._writer, self._selection)
            write_parameters(
                self._model, self._recorder, self._writer, self._selection, limit_bytes=self._limit_bytes
            )
            self._recorder.install()
            if self._world_size > 1:
                self._mode = CollectiveRecorder(self._recorder, self._writer, self._selection)
                self._mode.__enter__()  # type: ignore[no-untyped-call]
            if self._selection.operators:
                self._operators = OperatorRecorder(self._model, self._recorder, self._writer, self._selection)
                self._recorder.inside = self._operators
                self._operators.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the hooks off; leave an incomplete capture if the run raised."""
        if self._operators is not None:
            self._operators.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
            self._operators = None
        if self._mode is not None:
            self._mode.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if self._recorder is not None:
            self._recorder.remove()
        if error is not None:
            self._abandon(_reason(error))
            return
        with self.abandoned_on_error():
            if self._writer is not None and self._recorder is not None:
                if self._mode is not None:
                    self._mode.settle(final=True)
                self._recorder.write_fired()
                self._writer.flush()

    def add_noise(self, source: NoiseSource) -> None:
        """Measure and write the noise of what was recorded; to be called after the run, before `finish`.

        Raises:
            CaptureError: the disk is full.
            ValidatorError: the noise can't be measured.
        """
        with self.abandoned_on_error():
            if self._recorder is None or self._writer is None:
                return
            with source(self._recorder.has_recorded, self._place.partial.parent) as measured:
                for place, noise in measured.noise():
                    self._recorder.put_noise(place, noise)
                self._noise = measured.description
            self._writer.flush()

    def finish(self, proof: Proof) -> CaptureSummary:
        """Complete the capture and give it its name.

        Args:
            proof: what is known of the hooks' effect on this rank.

        Raises:
            CaptureError: nothing was recorded, a pattern matched no module that fired, or the disk is full.
        """
        with self.abandoned_on_error():
            shares: list[_Share] = exchange(self._share(proof))
            recorded = [share for share in shares if share.recorded]
            fired = frozenset[str]().union(*(share.fired for share in recorded))
            compiled = {name: count for share in recorded for name, count in share.compiled.items()}
            self._selection.check_fired(fired, compiled)
            calls = sum(share.calls for share in recorded)
            if calls == 0:
                raise CaptureError(
                    f"{self._place.path}: nothing was recorded: the run made no call of the model that the "
                    "options keep. Call the model that was given, and check include=, exclude= and calls=."
                )
            silent = tuple(sorted(frozenset[str]().union(*(share.kept for share in recorded)) - fired))
            manifest = self._manifest(shares, recorded, silent, compiled)
            self._complete(manifest.to_json())
        self._place.release()
        return CaptureSummary(
            path=self._place.path,
            ranks=manifest.ranks,
            calls=calls,
            values=sum(share.values for share in recorded),
            proof=manifest.proof,
            silent=silent,
        )

    @contextlib.contextmanager
    def abandoned_on_error(self) -> Iterator[None]:
        """Leave an incomplete capture, which says why, if the block raises."""
        try:
            yield
        except BaseException as error:
            self._abandon(_reason(error))
            raise

    def _claim(self) -> None:
        self._leads, self._id = claim(self._place, rank=self._rank, world_size=self._world_size)
        names = exchange({fqn for fqn, _ in self._model.named_modules(remove_duplicate=False)})
        try:
            self._selection.check_names(set[str]().union(*names))
            if not any(self._selection.keeps_rank(rank) for rank in range(self._world_size)):
                raise CaptureError(
                    f"ranks={self._selection.ranks!r} keeps none of the {self._world_size} ranks. "
                    f"Ranks are 0 to {self._world_size - 1}."
                )
        except CaptureError:
            if self._leads:
                self._place.discard()
            raise

    def _abandon(self, reason: str) -> None:
        if self._mode is not None:
            self._mode = None
        if self._recorder is not None:
            self._recorder.remove()
        if self._writer is not None:
            self._writer.abandon(reason)
            self._writer = None
        self._place.release()

    def _share(self, proof: Proof) -> _Share:
        recorder, writer = self._recorder, self._writer
        fqns = recorder.fqns if recorder else ()
        return _Share(
            rank=self._rank,
            recorded=recorder is not None,
            proof=proof,
            described=describe_rank(self._rank),
            inputs=self._describe_inputs(),
            calls=recorder.recorded if recorder else 0,
            values=writer.values if writer else 0,
            kept=frozenset(
                fqn
                for fqn in fqns
                if self._selection.keeps_module(fqn) and recorder and fqn not in recorder.hidden
            ),
            fired=frozenset(recorder.calls) if recorder else frozenset(),
            left_out=frozenset(recorder.left_out) if recorder else frozenset(),
            meshes=frozenset(recorder.meshes) if recorder else frozenset(),
            compiled=recorder.compiled if recorder else {},
        )

    def _describe_inputs(self) -> dict[str, Any]:
        if self._inputs is None:
            return describe_inputs(self._recorder.inputs) if self._recorder else {}
        copies = {path: copy_tensor(tensor) for path, tensor in tensors(self._inputs).items()}
        return describe_inputs({path: copy for path, copy in copies.items() if copy is not None})

    def _manifest(
        self,
        shares: list[_Share],
        recorded: list[_Share],
        silent: tuple[str, ...],
        compiled: Mapping[str, int],
    ) -> Manifest:
        meshes = frozenset[Mesh]().union(*(share.meshes for share in recorded))
        return Manifest(
            capture_id=self._id,
            world_size=self._world_size,
            ranks=tuple(share.rank for share in recorded),
            proof=worst([share.proof for share in shares]),
            recipe=self._recipe,
            planted=self._planted,
            include=self._selection.include,
            exclude=self._selection.exclude,
            silent=silent,
            left_out=tuple(sorted(frozenset[str]().union(*(share.left_out for share in recorded)))),
            noise=self._noise,
            compiled=compiled,
            level=self._level,
            run=describe_run(
                ranks=[share.described for share in shares],
                meshes=sorted(meshes, key=repr),
                inputs=recorded[0].inputs,
            ),
        )

    def _complete(self, manifest: str) -> None:
        error: CaptureError | None = None
        try:
            if self._writer is not None:
                writer, self._writer = self._writer, None
                writer.finish(manifest=manifest if self._place.is_file else None)
        except CaptureError as failed:
            error = failed
        self._agree(error)
        if self._leads:
            try:
                self._place.publish(manifest)
            except CaptureError as failed:
                error = failed
        self._agree(error)

    def _agree(self, error: CaptureError | None) -> None:
        """Raise on every rank what failed on one."""
        errors = exchange(error and str(error))
        if error is not None:
            raise error
        for rank, message in enumerate(errors):
            if message is not None:
                raise CaptureError(f"rank {rank}: {message}")


def _rank_and_world_size() -> tuple[int, int]:
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def _reason(error: BaseException) -> str:
    if isinstance(error, CaptureError):
        return str(error)
    return f"the run raised {type(error).__name__}: {error}"
