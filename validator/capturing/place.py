"""Where a capture is written, and how it becomes one: `NAME.partial` until it is complete.

Whoever writes holds a lock on `NAME.partial`, which the system lets go when the process dies: this
tells a capture that is being written from the remains of one that was killed. A complete capture is
replaced only by a complete one.
"""

import contextlib
import fcntl
import os
from pathlib import Path

import h5py

from validator.errors import CaptureError

from .schema import FORMAT, MANIFEST

__all__ = ["Place", "is_being_written", "is_capture", "partial_path", "rank_of", "rank_path"]


def partial_path(path: Path) -> Path:
    """Return where the capture `path` is written until it is complete."""
    return path.with_name(f"{path.name}.partial")


def rank_path(folder: Path, rank: int) -> Path:
    """Return the file of a rank in a capture's folder."""
    return folder / f"rank{rank}.h5"


def rank_of(file: Path) -> int | None:
    """Return the rank whose file this is, or None."""
    number = file.name.removeprefix("rank").removesuffix(".h5")
    is_rank = file.name == f"rank{number}.h5" and number.isascii() and number.isdigit()
    return int(number) if is_rank else None


def is_capture(path: Path) -> bool:
    """Say whether `path` is a complete capture, as far as its manifest and format tell."""
    if path.is_dir():
        return (path / MANIFEST).is_file()
    try:
        with h5py.File(path, "r") as file:
            return bool(file.attrs.get("format") == FORMAT)
    except OSError:
        return False


def is_being_written(partial: Path) -> bool:
    """Say whether a live process holds the lock on `NAME.partial`."""
    lock = os.open(partial, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


class Place:
    """The file or folder that one capture is written to.

    Args:
        path: a name that ends in `.h5` is one file, for a run of one rank; any other is a folder.
        overwrite: replace a complete capture of that name, once this one is complete.
    """

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        self.path = Path(path)
        self.partial = partial_path(self.path)
        self.is_file = self.path.suffix == ".h5"
        self._overwrite = overwrite
        self._lock: int | None = None

    def file_of(self, rank: int) -> Path:
        """Return the file that a rank writes."""
        return self.partial if self.is_file else rank_path(self.partial, rank)

    def claim(self, *, world_size: int) -> None:
        """Create `NAME.partial` and lock it.

        Raises:
            CaptureError: there is a capture of that name, somebody is writing one, or was killed at it.
        """
        if self.is_file and world_size > 1:
            raise CaptureError(
                f"{self.path}: a name that ends in .h5 is one file for one rank, and this run has "
                f"{world_size} ranks. Give the name of a folder, such as {str(self.path.with_suffix(''))!r}."
            )
        if os.path.lexists(self.path):
            self._check_replaceable()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not self._create():
                raise CaptureError(self._occupied())
            self._lock = os.open(self.partial, os.O_RDONLY)
        except OSError as error:
            raise CaptureError(f"{self.path}: can't be written there: {error}. Give another path.") from error
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def leave_mark(self, mark: str) -> None:
        """Show whoever shares this place that it is the same; a file is of one rank and has no marks."""
        if not self.is_file:
            try:
                (self.partial / f".{mark}").touch()
            except OSError as error:
                raise CaptureError(
                    f"{self.path}: can't be written there: {error}. Give another path."
                ) from error

    def has_mark(self, mark: str) -> bool:
        """Say whether somebody who shares this place left a mark here."""
        if self.is_file:
            return False
        with contextlib.suppress(OSError):
            # A network file system may remember that there was no such folder, unless its parent is listed.
            os.listdir(self.partial.parent)
            return f".{mark}" in os.listdir(self.partial)
        return False

    def remove_mark(self, mark: str) -> None:
        """Remove a mark that was left here."""
        if not self.is_file:
            (self.partial / f".{mark}").unlink(missing_ok=True)

    def publish(self, manifest: str) -> None:
        """Make the finished ranks' files the capture: write the manifest of a folder, and rename.

        Raises:
            CaptureError: the manifest or the rename failed; `NAME.partial` is left.
        """
        try:
            if not self.is_file:
                self._write_manifest(manifest)
            replaced = self.path.with_name(f"{self.path.name}.replaced-{os.getpid()}")
            if self.path.is_dir():
                # A folder can't be renamed onto another: for an instant the older capture has this name.
                self.path.replace(replaced)
            self.partial.replace(self.path)
            _sync(self.path.parent)
            if replaced.is_dir():
                _remove_capture(replaced)
        except OSError as error:
            raise CaptureError(
                f"{self.path}: the capture is written, but can't get its name: {error}. It is left in "
                f"{self.partial}: make {self.path} free and rename it."
            ) from error

    def release(self) -> None:
        """Let go of the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def discard(self) -> None:
        """Remove `NAME.partial` before anything was recorded in it, and let go of the lock."""
        if self.is_file:
            self.partial.unlink(missing_ok=True)
        else:
            self.partial.rmdir()
        self.release()

    def _create(self) -> bool:
        """Create `NAME.partial`; False if there is one. One of two that try at once succeeds."""
        try:
            if self.is_file:
                os.close(os.open(self.partial, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666))
            else:
                self.partial.mkdir()
        except FileExistsError:
            return False
        return True

    def _check_replaceable(self) -> None:
        if not self._overwrite:
            raise CaptureError(
                f"{self.path} exists already. Give another name, remove it, or have it replaced once "
                "the new capture is complete (overwrite=True, --overwrite)."
            )
        if self.path.is_symlink() or self.path.is_dir() == self.is_file or not is_capture(self.path):
            raise CaptureError(f"{self.path} is not a capture, so it is not overwritten. Give another name.")

    def _occupied(self) -> str:
        if is_being_written(self.partial):
            return (
                f"{self.path}: another capture is being written there right now ({self.partial} is locked). "
                "Wait for it to end, or give another name."
            )
        return (
            f"{self.path}: an earlier capture to it was killed or failed, and left {self.partial}. Read that "
            f"with open_capture({str(self.path)!r}, allow_incomplete=True), or remove it to capture anew."
        )

    def _write_manifest(self, manifest: str) -> None:
        draft = self.partial / f"{MANIFEST}.draft"
        with draft.open("w", encoding="utf-8") as stream:
            stream.write(manifest)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(self.partial / MANIFEST)
        _sync(self.partial)


def _remove_capture(folder: Path) -> None:
    # Only files that a capture consists of: whatever else somebody put there stays, and so does the folder.
    for file in folder.iterdir():
        if file.name == MANIFEST or rank_of(file) is not None:
            file.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
