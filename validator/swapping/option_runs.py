"""Run a candidate with chosen switches in fresh processes, since variables are read when code is loaded."""

import json
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from validator.capturing.formats_hdf5 import dtype_name
from validator.errors import MismatchError
from validator.faults import parse
from validator.launch import launch
from validator.numerics.formats import weights_dtype
from validator.runs import feed
from validator.swapping.logits import Logits, root_calls, stitched
from validator.swapping.options import Setting, environment
from validator.target import load_target

__all__ = ["CandidateRun", "Ran", "run_candidate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a run gave.

    Attributes:
        logits: its logits.
        weights: format of most of the candidate's weights.
    """

    logits: Logits
    weights: torch.dtype | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRun:
    """A candidate as a new process can be told of it.

    Attributes:
        source: the target's path.
        nproc: number of ranks.
        device, dtype, tp: options of the candidate.
        plant: a fault to plant in it first, or None.
        timeout_s: seconds that a run may take, or None for no limit.
        arguments: further arguments of `candidate`.
    """

    source: str
    nproc: int = 1
    device: str | None = None
    dtype: str | None = None
    tp: int | None = None
    plant: str | None = None
    timeout_s: float | None = None
    arguments: dict[str, Any] = field(default_factory=dict)


def run_candidate(run: CandidateRun, setting: Setting) -> Ran:
    """Run the candidate and return what the lowest rank has that has logits.

    Raises:
        LaunchError: a rank failed, died or took too long.
        MismatchError: no rank returned logits.
        ValidatorError: the target fails.
    """
    run = replace(run, arguments={**run.arguments, **setting.arguments})
    with tempfile.TemporaryDirectory(prefix="validator-") as name:
        with environment(setting.variables):
            device = (run.device or "cpu").partition(":")[0]
            launch(_run_rank, (run, name), nproc=run.nproc, timeout_s=run.timeout_s, device=device)
        reasons = []
        for rank in range(run.nproc):
            why = Path(name) / f"{rank}.json"
            told = json.loads(why.read_text(encoding="utf-8"))
            if "error" not in told:
                return _loaded(Path(name), rank, told)
            reasons.append(told["error"])
    raise MismatchError(reasons[0])


def _run_rank(rank: int, world_size: int, run: CandidateRun, folder: str) -> None:
    target = load_target(run.source, device=run.device, dtype=run.dtype, tp=run.tp)
    target = replace(target, options={**target.options, **run.arguments})
    model = target.candidate()
    if run.plant is not None:
        parse(run.plant).plant(model)
    inputs = target.inputs()
    weights = weights_dtype(model)
    told: dict[str, Any] = {"weights": None if weights is None else dtype_name(weights)}
    try:
        logits = stitched(root_calls(model, lambda: feed(target, inputs, model, "candidate")))
    except MismatchError as error:
        told["error"] = str(error)
    else:
        told["dtype"] = dtype_name(logits.values.dtype)
        for name in ("values", "ids", "mask"):
            value = getattr(logits, name)
            if value is not None:
                # float32 holds each value of a narrower format, which NumPy does not have.
                wide = value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
                np.save(Path(folder) / f"{rank}-{name}.npy", wide.numpy(), allow_pickle=False)
    (Path(folder) / f"{rank}.json").write_text(json.dumps(told), encoding="utf-8")


def _loaded(folder: Path, rank: int, told: dict[str, Any]) -> Ran:
    parts: dict[str, torch.Tensor | None] = {}
    for name in ("values", "ids", "mask"):
        path = folder / f"{rank}-{name}.npy"
        parts[name] = torch.from_numpy(np.load(path, allow_pickle=False)) if path.exists() else None
    values = parts["values"]
    assert values is not None
    values = values.to(getattr(torch, told["dtype"]))
    return Ran(
        logits=Logits(values=values, ids=parts["ids"], mask=parts["mask"]),
        weights=None if told["weights"] is None else getattr(torch, told["weights"]),
    )
