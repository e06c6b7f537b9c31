"""What an earlier run of a candidate read, and its logits, out of the baseline of a target.

Shape legend: B = sequences, S = tokens, V = vocabulary.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from validator.baselines.records import Kind
from validator.baselines.store import has_baseline, read_baseline
from validator.capturing.reader import open_capture
from validator.capturing.records import TensorRef
from validator.errors import MismatchError, ValidatorError
from validator.numerics.formats import format_of

__all__ = ["StoredLogits", "baseline_name", "find_baseline", "read_logits", "readable_baseline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLogits:
    """What a stored run read and returned.

    Attributes:
        name: of the baseline.
        ids: `[B, S]` int64 tokens that it was fed.
        logits: `[B, S, V]` what it returned.
        dtype: that it computed in, which the baseline's noise is that of.
    """

    name: str
    ids: Tensor
    logits: Tensor
    dtype: torch.dtype


def read_logits(path: Path) -> StoredLogits:
    """Read the candidate's first call of a model out of a baseline.

    Args:
        path: of the baseline's folder, `BASELINES/NAME`.

    Raises:
        UsageError: there is no such baseline.
        CaptureError: it is damaged.
        MismatchError: it holds no candidate, or not the model's own tokens and logits, whole, or tokens are
            padded. The message has the command that mends it.
    """
    baseline = read_baseline(path.name, path.parent)
    if baseline.kind is not Kind.RUN or baseline.candidate is None:
        raise MismatchError(
            f"the baseline {baseline.name!r} holds no run of the candidate, so that nothing says what an "
            f"earlier version computed: record it too, {_again(path, baseline.source)}"
        )
    capture = open_capture(baseline.candidate)
    call = next((c for c in capture.rank(capture.ranks[0]).calls if not c.module and c.n == 0), None)
    found = (
        {}
        if call is None
        else {"input_ids": call.inputs.get("input_ids"), "logits": call.outputs.get("logits")}
    )
    stored = {
        name: value
        for name, value in found.items()
        if isinstance(value, TensorRef) and value.meta.one_in == 1
    }
    if len(stored) < 2:
        lacking = " and ".join(name for name in ("input_ids", "logits") if name not in stored)
        raise MismatchError(
            f"the baseline {baseline.name!r} does not hold {lacking} of the model's own first call, whole, "
            "so that nothing can be compared with it: record it at level full, from inputs() with input_ids, "
            f"{_again(path, baseline.source)}"
        )
    ids, logits = stored["input_ids"].read().to(torch.int64), stored["logits"].read()
    mask = None if call is None else call.inputs.get("attention_mask")
    if isinstance(mask, TensorRef) and not bool(mask.read().all()):
        raise MismatchError(
            f"the tokens of the baseline {baseline.name!r} are padded; record it from inputs() without "
            "padding"
        )
    if logits.ndim != 3 or tuple(logits.shape[:2]) != tuple(ids.shape):
        raise MismatchError(
            f"the baseline {baseline.name!r} has logits {list(logits.shape)} for tokens {list(ids.shape)}: "
            "it must hold those of all tokens, whole on its first rank"
        )
    noise = open_capture(baseline.reference).manifest.noise
    computed = None if noise is None or noise.dtype is None else format_of(noise.dtype).dtype
    return StoredLogits(name=baseline.name, ids=ids, logits=logits, dtype=computed or logits.dtype)


def baseline_name(source: str) -> str:
    """Return what a target's baseline is called: `port` for `port.py`, the folder's name for a checkpoint."""
    path = Path(source)
    return path.stem if path.suffix == ".py" else path.absolute().name


def find_baseline(folder: Path, source: str) -> Path | None:
    """Return the folder of a target's baseline, or None where there is none."""
    name = baseline_name(source)
    return folder / name if has_baseline(name, folder) else None


def readable_baseline(folder: Path, source: str) -> Path | None:
    """Return the same where `read_logits` can read it."""
    path = find_baseline(folder, source)
    try:
        if path is not None:
            read_logits(path)
    except ValidatorError:
        return None
    return path


def _again(path: Path, source: str) -> str:
    return f"`validator baseline record {path.name} {source}:candidate --update --baselines {path.parent}`"
