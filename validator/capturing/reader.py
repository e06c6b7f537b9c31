"""Open a capture: complete ones, and on request what is left of an incomplete one."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from validator.displayed import Displayed
from validator.errors import CaptureError, IncompleteCaptureError

from .files import CaptureSource, damage_explained
from .manifest import Manifest, Proof, ProofStatus
from .place import is_being_written, partial_path, rank_of, rank_path
from .rank_reader import read_rank
from .records import RankCapture
from .schema import MANIFEST

__all__ = ["Capture", "open_capture"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture(Displayed):
    """A capture on the disk.

    Attributes:
        path: the folder or file that was opened.
        manifest: of the whole capture; for an incomplete one little more than its ranks is known.
        ranks: those that can be read, in ascending order.
        complete: whether the run was captured to its end.
    """

    path: Path
    manifest: Manifest
    ranks: tuple[int, ...]
    complete: bool
    _read: dict[int, RankCapture] = field(default_factory=dict, repr=False, compare=False)

    def rank(self, rank: int) -> RankCapture:
        """Return what a rank recorded; values are read when asked for.

        Raises:
            CaptureError: the rank was not recorded, or its file is damaged.
        """
        if rank not in self.ranks:
            raise CaptureError(f"{self.path}: has no rank {rank}, only {', '.join(map(str, self.ranks))}.")
        if rank not in self._read:
            file = rank_path(self.path, rank) if self.path.is_dir() else self.path
            self._read[rank] = read_rank(file, complete=self.complete)
        return self._read[rank]

    def all_ranks(self) -> Sequence[RankCapture]:
        """Return what each rank of the run recorded.

        Raises:
            CaptureError: a rank is missing.
        """
        expected = self.manifest.world_size
        missing = [rank for rank in range(expected) if rank not in self.ranks]
        if missing:
            raise CaptureError(
                f"{self.path} holds {len(self.ranks)} of {expected} ranks; "
                f"rank {', '.join(map(str, missing))} is missing. "
                "Copy the other ranks' files into the folder, or capture all ranks."
            )
        return [self.rank(rank) for rank in self.ranks]


def open_capture(path: str | os.PathLike[str], *, allow_incomplete: bool = False) -> Capture:
    """Open a capture. Nothing in it is executed.

    Args:
        path: the folder or `.h5` file that was captured to.
        allow_incomplete: open what a capture that did not end has flushed, `NAME.partial`, if there is no
            complete one of that name.

    Raises:
        IncompleteCaptureError: the capture did not end, or is being written; says how far it got.
        CaptureError: there is none, it is of another version, or damaged.
    """
    path = Path(path)
    if path.name.endswith(".partial"):
        path = path.with_name(path.name.removesuffix(".partial"))
        return _incomplete(path, partial_path(path), allow_incomplete)
    if not path.exists() and partial_path(path).exists():
        return _incomplete(path, partial_path(path), allow_incomplete)
    if not path.exists():
        raise CaptureError(
            f"{path}: no such capture. `validator capture TARGET:candidate -o {path}` makes one."
        )
    return _open_folder(path, allow_incomplete) if path.is_dir() else _open_file(path, allow_incomplete)


def _open_file(path: Path, allow_incomplete: bool) -> Capture:
    source = CaptureSource(path)
    if not source.complete:
        return _incomplete(path, path, allow_incomplete)
    manifest = Manifest.from_json(source.text(MANIFEST), str(path))
    if manifest.ranks != (source.rank,):
        raise CaptureError(
            f"{path}: damaged: its manifest names ranks {manifest.ranks}, it is of {source.rank}."
        )
    return Capture(path=path, manifest=manifest, ranks=manifest.ranks, complete=True)


def _open_folder(path: Path, allow_incomplete: bool) -> Capture:
    file = path / MANIFEST
    if not file.is_file():
        if not any(rank_of(f) is not None for f in path.iterdir()):
            raise CaptureError(
                f"{path}: not a capture: it has neither {MANIFEST} nor a rank's file. "
                "Give the folder that `validator capture` wrote."
            )
        return _incomplete(path, path, allow_incomplete)
    with damage_explained(file):
        manifest = Manifest.from_json(file.read_bytes(), str(file))
    missing = [rank for rank in manifest.ranks if not rank_path(path, rank).is_file()]
    if missing and not allow_incomplete:
        raise IncompleteCaptureError(_missing(path, manifest, missing))
    present = tuple(rank for rank in manifest.ranks if rank not in missing)
    for rank in present:
        source = CaptureSource(rank_path(path, rank))
        if not source.complete:
            return _incomplete(path, path, allow_incomplete)
        if source.capture_id != manifest.capture_id:
            raise CaptureError(
                f"{source.path}: is of capture {source.capture_id[:80]!r}, where the manifest is of "
                f"{manifest.capture_id[:80]!r}: files of several captures were mixed. Copy the folders of "
                "one run into an empty folder."
            )
        if (source.rank, source.world_size) != (rank, manifest.world_size):
            raise CaptureError(
                f"{source.path}: is of rank {source.rank} of {source.world_size}, where the manifest has "
                f"rank {rank} of {manifest.world_size}: files of several captures were mixed. "
                "Copy the folder again."
            )
    return Capture(path=path, manifest=manifest, ranks=present, complete=not missing)


def _missing(path: Path, manifest: Manifest, missing: list[int]) -> str:
    hosts: dict[str | None, list[int]] = {}
    for rank in missing:
        hosts.setdefault(manifest.host_of(rank), []).append(rank)
    lost = "; ".join(
        f"{', '.join(f'rank{rank}.h5' for rank in ranks)}" + ("" if host is None else f" from host {host!r}")
        for host, ranks in hosts.items()
    )
    one = len(missing) == 1
    return (
        f"{path}: rank{'' if one else 's'} {', '.join(map(str, missing))} of {manifest.world_size} "
        f"{'is' if one else 'are'} missing. Each host writes its own ranks' files: copy {lost} "
        "into this folder."
    )


def _incomplete(path: Path, partial: Path, allow: bool) -> Capture:
    if not partial.exists():
        raise CaptureError(f"{partial}: no such capture. If it ended meanwhile, its name is {path}.")
    files = sorted(f for f in partial.iterdir() if rank_of(f) is not None) if partial.is_dir() else [partial]
    sources: dict[int, CaptureSource] = {}
    progress = []
    for file in files:
        try:
            source = CaptureSource(file)
            progress.append(_progress(source))
            sources[source.rank] = source
        except CaptureError as error:
            progress.append(str(error))
    if not allow or not sources:
        what = "is still being written" if is_being_written(partial) else "did not end"
        hint = (
            "Read what there is with open_capture(..., allow_incomplete=True), or capture again."
            if sources
            else "Nothing in it can be read: capture again."
        )
        raise IncompleteCaptureError(
            f"{path}: the capture {what}: {'; '.join(progress) or 'no file yet'}. {hint}"
        )
    ranks = tuple(sorted(sources))
    manifest = Manifest(
        world_size=sources[ranks[0]].world_size,
        ranks=ranks,
        proof=Proof(status=ProofStatus.SKIPPED, reason="the capture did not end"),
    )
    return Capture(path=partial, manifest=manifest, ranks=ranks, complete=False)


def _progress(source: CaptureSource) -> str:
    calls = read_rank(source.path, complete=False).calls
    reached = f"rank {source.rank} got to call {len(calls)}, of {calls[-1].module!r}" if calls else ""
    reason = f" ({source.failure})" if source.failure else ""
    return (reached or f"rank {source.rank} recorded no call") + reason
