"""What an earlier run of a candidate read, and its logits, out of its capture.

Shape legend: B = sequences, S = tokens, V = vocabulary.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from validator.capturing.reader import open_capture
from validator.capturing.records import TensorRef
from validator.errors import MismatchError

__all__ = ["Baseline", "find_baseline", "read_baseline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A stored run.

    Attributes:
        path: of the capture.
        ids: `[B, S]` int64 tokens that it was fed.
        logits: `[B, S, V]` what it returned.
    """

    path: Path
    ids: Tensor
    logits: Tensor


def read_baseline(path: Path) -> Baseline:
    """Read the first call of a model in a capture.

    Raises:
        CaptureError: there is no capture, or it is damaged.
        MismatchError: it does not hold the model's own tokens and logits, whole, or tokens are padded.
    """
    capture = open_capture(path)
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
            f"the baseline {path} does not hold {lacking} of the model's own first call, so that nothing can "
            "be compared with it: capture it at level full, from inputs() with input_ids"
        )
    ids, logits = stored["input_ids"].read().to(torch.int64), stored["logits"].read()
    mask = None if call is None else call.inputs.get("attention_mask")
    if isinstance(mask, TensorRef) and not bool(mask.read().all()):
        raise MismatchError(
            f"the tokens of the baseline {path} are padded; capture it from inputs() without padding"
        )
    if logits.ndim != 3 or tuple(logits.shape[:2]) != tuple(ids.shape):
        raise MismatchError(
            f"the baseline {path} has logits {list(logits.shape)} for tokens {list(ids.shape)}: it must hold "
            "those of all tokens, whole on its first rank"
        )
    return Baseline(path=path, ids=ids, logits=logits)


def find_baseline(folder: Path, source: str) -> Path | None:
    """Return the capture of a target's candidate in a folder of baselines, or None where there is none.

    Args:
        folder: of baselines.
        source: path of the target. For `port.py` it is the candidate of the baseline `port`, or a capture
            called `port.h5`.
    """
    name = Path(source).stem
    places = (folder / name / "candidate.h5", folder / name / "candidate", folder / f"{name}.h5")
    return next((path for path in places if path.exists()), None)
