"""What a run asks for and can't have: said before any test runs, not by each of them after minutes."""

import os
from pathlib import Path

from validator.errors import UsageError
from validator.testing.settings import Settings

__all__ = ["card_counts_here", "require_runnable"]


def require_runnable(settings: Settings) -> None:
    """Refuse what no test could run with.

    Args:
        settings: of the whole run.

    Raises:
        TargetError: there is no such target.
        UsageError: no such recipe, dtype, device, number of devices or samples, or a folder of reports that
            can't be written.
    """
    from validator.checkpoint import is_checkpoint
    from validator.launch import require_devices
    from validator.numerics.recipes import recipe_named
    from validator.target import floating_dtype
    from validator.target_file import check_path

    if settings.target is not None and not is_checkpoint(Path(settings.target)):
        check_path(Path(settings.target))
    recipe_named(settings.recipe)
    if settings.dtype is not None:
        floating_dtype(settings.dtype)
    if settings.device is not None:
        require_devices(settings.nproc, settings.device)
        if settings.names_card_counts:
            require_devices(max(settings.card_counts), settings.device, asked="--card-counts")
    for path in settings.samples:
        if not path.is_file():
            raise UsageError(f"--samples {str(path)!r} is no file: name the prompts with their scores")
    if settings.reports is not None:
        _require_folder(settings.reports)


def card_counts_here(settings: Settings) -> tuple[int, ...]:
    """Return the numbers of ranks to compare: those that are named, else those that there are devices for."""
    if settings.names_card_counts or settings.device is None:
        return settings.card_counts
    from validator.launch import device_count

    here = device_count(settings.device)
    return tuple(count for count in settings.card_counts if here is None or count <= here)


def _require_folder(folder: Path) -> None:
    """Refuse a folder that can't be written, and make none: it is made when there is a report."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UsageError(
            f"--reports {str(folder)!r} can't be written: {str(there)!r} is in the way, or read-only"
        )
