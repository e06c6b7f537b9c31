"""Find a probe, run its cases on ranks of this machine, and conclude.

A probe is a Python file. Its first line says what it probes, `min_ranks` how many ranks it needs, and
`cases(world_size)` yields what has a `run(ranks)`, as those of `probing` do. Running one runs its code.
"""

import ast
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist

from validator.content import ContentKind, content_path
from validator.errors import TargetError, UsageError
from validator.launch import launch
from validator.target_file import run_file

from .draws import Ranks
from .exchanges import meet
from .records import Observation
from .summary import ProbeOutcome, summarise

__all__ = ["find_probe", "list_probes", "run_probe"]


def list_probes() -> dict[str, str]:
    """Return the shipped probes, with the first line of what each says of itself. None is run."""
    folder = content_path(ContentKind.PROBES, ".")
    return {file.stem: _first_line(file) for file in sorted(folder.glob("*.py"))}


def find_probe(name: str) -> Path:
    """Find a shipped probe by its name, or one's own by its path, which ends in `.py`.

    Raises:
        UsageError: there is none; the message lists those that ship.
    """
    if name.endswith(".py"):
        path = Path(name)
        if not path.is_file():
            raise UsageError(f"no such probe: {name!r}. Give a file, or one of {', '.join(list_probes())}")
        return path
    if name not in list_probes():
        raise UsageError(
            f"no probe {name!r}; there is: {', '.join(list_probes())}. One of your own is given by its path"
        )
    return content_path(ContentKind.PROBES, f"{name}.py")


def run_probe(
    name: str,
    *,
    nproc: int | None = None,
    device: str = "cpu",
    repeat: int = 3,
    timeout_s: float | None = None,
) -> ProbeOutcome:
    """Run a probe.

    Args:
        name: as of `find_probe`.
        nproc: number of ranks; None is the fewest that the probe needs.
        device: torch device type whose backend is probed.
        repeat: how often each case is called.
        timeout_s: seconds that all may take together, or None for no limit.

    Raises:
        UsageError: there is no such probe, or it needs more ranks.
        TargetError: the file is no probe.
        LaunchError: a rank failed, died or hung.
    """
    path = find_probe(name)
    fewest = _load(path).min_ranks
    nproc = fewest if nproc is None else nproc
    if nproc < fewest:
        raise UsageError(
            f"--nproc is {nproc}, and {path.name} needs {fewest} ranks: --nproc {fewest} or more"
        )
    with tempfile.TemporaryDirectory(prefix="validator-probe-") as folder:
        kind = device.partition(":")[0]
        launch(_observe, (path, kind, repeat, Path(folder)), nproc=nproc, timeout_s=timeout_s, device=kind)
        observed = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(nproc)]
    if not observed[0]["observations"]:
        raise TargetError(f"{str(path)!r} yields no case for {nproc} ranks: nothing was checked")
    return summarise(
        [[Observation.from_json(fields) for fields in rank["observations"]] for rank in observed],
        name=path.stem,
        backend=observed[0]["backend"],
        device=kind,
    )


def _observe(rank: int, world_size: int, path: Path, kind: str, repeat: int, folder: Path) -> None:
    device = (
        torch.device(kind) if kind == "cpu" else torch.device(kind, torch.accelerator.current_device_index())
    )
    ranks = Ranks(rank=rank, world_size=world_size, device=device, repeat=repeat)
    # Through files: what the collectives under test bring can't be trusted.
    document = {
        "backend": _backend(kind),
        "observations": [seen.to_json() for seen in _observations(_load(path), ranks)],
    }
    meet(device)
    (folder / f"{rank}.json").write_text(json.dumps(document))


def _backend(kind: str) -> str:
    """Return which of the group's backends has a device type's tensors, from `"cpu:gloo,cuda:nccl"`."""
    named = dict(pair.split(":", 1) for pair in str(dist.get_backend_config()).split(","))
    return named[kind]


def _observations(probe: ModuleType, ranks: Ranks) -> Iterator[Observation]:
    for case in probe.cases(ranks.world_size):
        yield from case.run(ranks)


def _load(path: Path) -> ModuleType:
    probe = run_file(path)
    lacks = [name for name in ("min_ranks", "cases") if not hasattr(probe, name)]
    if lacks:
        raise TargetError(f"{str(path)!r} is no probe: it defines no {' and no '.join(lacks)}")
    if not isinstance(probe.min_ranks, int) or probe.min_ranks < 1:
        raise TargetError(
            f"min_ranks in {str(path)!r} is {probe.min_ranks!r}; it must be a number of ranks, 1 or more"
        )
    if not callable(probe.cases):
        raise TargetError(
            f"cases in {str(path)!r} is {probe.cases!r}; it must be a function of the number of ranks"
        )
    return probe


def _first_line(file: Path) -> str:
    try:
        text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    except (SyntaxError, ValueError, OSError):
        return ""
    return (text or "").partition("\n")[0]
