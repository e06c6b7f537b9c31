"""Faults of what the model is given: the positions of some tokens are others'.

Shape legend: B = batch, S = sequence.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from validator.errors import UsageError
from validator.faults.decoder import Decoder
from validator.faults.fault import Fault
from validator.wrapping import wrap

__all__ = ["FAULTS"]


def _positions_stale(decoder: Decoder) -> None:
    """Give the last sequence the positions of one step before."""

    def change(positions_BS: Tensor, batch: int) -> Tensor:
        stale = positions_BS.repeat(batch // len(positions_BS), 1)
        stale[-1] = (stale[-1] - 1).clamp(min=0)
        return stale

    _change_positions(decoder, change)


def _positions_restart(decoder: Decoder) -> None:
    """Give the second half of the tokens the positions of the first."""

    def change(positions_BS: Tensor, batch: int) -> Tensor:
        half = (positions_BS.shape[1] + 1) // 2
        return torch.cat((positions_BS[:, :half],) * 2, 1)[:, : positions_BS.shape[1]]

    _change_positions(decoder, change)


def _positions_contiguous(decoder: Decoder) -> None:
    """Give tokens that two ranks took in turn the positions of contiguous halves."""

    def change(positions_BS: Tensor, batch: int) -> Tensor:
        changed = torch.empty_like(positions_BS)
        half = (positions_BS.shape[1] + 1) // 2
        changed[:, ::2], changed[:, 1::2] = positions_BS[:, :half], positions_BS[:, half:]
        return changed

    _change_positions(decoder, change)


def _change_positions(decoder: Decoder, change: Callable[[Tensor, int], Tensor]) -> None:
    def forward(
        inner: Any, *args: Any, input_ids: Any = None, position_ids: Any = None, **kwargs: Any
    ) -> Any:
        if args or input_ids is None:
            raise UsageError("positions can be changed where the decoder is called with input_ids by name")
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        position_ids = change(position_ids, len(input_ids))
        return inner(input_ids=input_ids, position_ids=position_ids, **kwargs)

    wrap(decoder.body, forward)


_NEEDS = ("body.rotary_emb",)

FAULTS = (
    Fault(
        name="positions-stale",
        what="The last sequence still has the positions of the step before.",
        module="*model",
        apply=_positions_stale,
        needs=_NEEDS,
        zoo=("race-async-copy",),
    ),
    Fault(
        name="positions-restart",
        what="A second packed sequence takes the rotary table's rows of the first.",
        module="*model",
        apply=_positions_restart,
        needs=_NEEDS,
        zoo=("cp-thd-rope-packed",),
    ),
    Fault(
        name="positions-contiguous",
        what="Tokens are dealt to two ranks in turn, and have the positions of contiguous halves.",
        module="*model",
        apply=_positions_contiguous,
        needs=_NEEDS,
        zoo=("cp-roundrobin-rope",),
    ),
)
