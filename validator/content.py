"""Find the content that ships with the package: probes, suites, baselines and examples.

They are folders of files and not import packages, because a user's own repository has folders of the
same names. A wheel carries them under `validator/_shipped`; a checkout has them beside the package.
"""

from enum import StrEnum
from pathlib import Path

from validator.errors import UsageError

__all__ = ["ContentKind", "content_path", "find_model", "find_suite", "suite_names"]

_PACKAGE = Path(__file__).resolve().parent


class ContentKind(StrEnum):
    """An open set of files; the value is its folder's name."""

    PROBES = "probes"
    SUITES = "suites"
    BASELINES = "baselines"
    EXAMPLES = "examples"


def content_path(kind: ContentKind | str, name: str, given: Path | None = None) -> Path:
    """Find a file or folder of content by its name.

    Args:
        kind: which set.
        name: path inside the set's folder, with `/`, such as `"models/tiny-dense"`.
        given: a folder of the user's own to look in; `None` is what ships with the package. The two are never
            mixed: a name that is missing from `given` is an error, even where the package has one.

    Returns:
        An absolute path that exists.

    Raises:
        UsageError: `given` is no folder, or it has no such name; the message lists the names it has.
    """
    kind = ContentKind(kind)
    folder = _shipped(kind) if given is None else given.resolve()
    if not folder.is_dir():
        raise UsageError(f"no folder of {kind}: {str(folder)!r} does not exist or is not a folder")
    found = (folder / name).resolve()
    if not found.is_relative_to(folder):
        raise UsageError(f"{name!r} leads out of the {kind} in {str(folder)!r}; give that folder instead")
    if not found.exists():
        siblings = _names(found.parent if found.parent.is_dir() else folder)
        raise UsageError(
            f"no {name!r} among the {kind} in {str(folder)!r}; there is: {', '.join(siblings) or 'nothing'}"
        )
    return found


def find_model(name: str, given: Path | None = None) -> Path:
    """Find the checkpoint folder of a small trained model, such as `"tiny-dense"`.

    Args:
        name: the folder's name under `baselines/models`.
        given: a folder of baselines of the user's own; `None` is what ships with the package.

    Returns:
        The absolute path of a folder with a `config.json`.

    Raises:
        UsageError: there is no such folder, or it holds no checkpoint.
    """
    folder = content_path(ContentKind.BASELINES, f"models/{name}", given)
    if not (folder / "config.json").is_file():
        raise UsageError(f"{str(folder)!r} is not a checkpoint folder: it has no config.json")
    return folder


def find_suite(name: str) -> Path:
    """Find the file of a suite that ships, such as `"alignment"`; dashes count as underscores.

    Raises:
        UsageError: there is no such suite; the message lists those that there are.
    """
    names = suite_names()
    if name.replace("-", "_") not in names:
        there = ", ".join(names) or "none"
        raise UsageError(f"no suite {name!r}: no such file, and the suites that ship are {there}")
    return content_path(ContentKind.SUITES, f"test_{name.replace('-', '_')}.py")


def suite_names() -> list[str]:
    """Return the names of the suites that ship."""
    return sorted(path.stem.removeprefix("test_") for path in _shipped(ContentKind.SUITES).glob("test_*.py"))


def _shipped(kind: ContentKind) -> Path:
    installed = _PACKAGE / "_shipped" / kind
    checkout = _PACKAGE.parent
    # Beside an installed package lie other distributions, so a folder of that name there proves nothing.
    if not installed.is_dir() and (checkout / "pyproject.toml").is_file():
        return checkout / kind
    return installed


def _names(folder: Path) -> list[str]:
    hidden = (".", "_")
    return sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith(hidden))
