"""Fused weights in another order than they are taken for: named by what all their parts show together."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.align.build import Recorder
from tests.checks.build import captured
from validator.align.builder import build_trace
from validator.checks.findings import Finding
from validator.checks.parameters import check_parameters

WIDTH, HEAD = 16, 4
ROWS = {"q_proj": 8 * HEAD, "k_proj": 4 * HEAD, "v_proj": 4 * HEAD}
LINE = "weight=(q=8|k=4|v=4){steps} i"


class Attention(nn.Module):
    """Three projections, side by side."""

    def __init__(self) -> None:
        super().__init__()
        for name, rows in ROWS.items():
            setattr(self, name, nn.Linear(WIDTH, rows, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([getattr(self, name)(x) for name in ROWS], -1)


class Block(nn.Module):
    """An attention in a model."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = Attention()

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.attn(x)
        return made


def by_rank(weights: list[Tensor], ranks: int, rank: int) -> Tensor:
    return torch.cat([weight.chunk(ranks)[rank] for weight in weights])


def per_kv_group(weights: list[Tensor], ranks: int, rank: int) -> Tensor:
    per_rank = [weight.chunk(ranks)[rank].chunk(4 // ranks) for weight in weights]
    return torch.cat([pieces[group] for group in range(4 // ranks) for pieces in per_rank])


def concatenated_then_cut(weights: list[Tensor], ranks: int, rank: int) -> Tensor:
    return torch.cat(weights).chunk(ranks)[rank]


def findings(lay: Callable[[list[Tensor], int, int], Tensor], ranks: int, steps: str = "") -> list[Finding]:
    """Check the parameters of a candidate whose ranks hold the three weights as one."""
    torch.manual_seed(0)
    reference, x = Block(), torch.randn(1, 3, WIDTH)
    weights = [getattr(reference.attn, name).weight.detach() for name in ROWS]
    captures = []
    for rank in range(ranks):
        weight, recorder = lay(weights, ranks, rank), Recorder(rank)
        with recorder.call("", {"x": x}) as out, recorder.call("attn", {"x": x}) as inner:
            recorder.parameter("attn.qkv_proj.weight", weight)
            recorder.leaf("attn.qkv_proj", x, x @ weight.T)
            inner[""] = out[""] = reference(x).detach()
        captures.append(recorder.capture())
    layout = {"*.qkv_proj": f"output=b s (q=8|k=4|v=4){steps}, {LINE.format(steps=steps)}"} if steps else {}
    trace = build_trace(cand=captures, ref=captured(reference, {"x": x}), layout=layout)
    _, found, _ = check_parameters(reference=reference, trace=trace, view=trace.views[0])
    return found


@pytest.mark.parametrize(
    ("lay", "ranks", "steps", "is_", "should_be"),
    [
        (per_kv_group, 1, ":per_kv_group", "Q, K and V per kv group", "all of Q, then K, then V"),
        (
            per_kv_group,
            2,
            ":per_kv_group[tp]",
            "Q, K and V per kv group",
            "Q, K and V of each of 2 ranks together",
        ),
        (
            concatenated_then_cut,
            2,
            None,
            "all of Q, then K, then V",
            "Q, K and V of each of 2 ranks together",
        ),
    ],
    ids=["per kv group", "per kv group on two ranks", "cut as one dim"],
)
def test_the_order_of_a_fused_weight_is_named_and_quiet_where_it_is_declared(
    lay: Callable[[list[Tensor], int, int], Tensor], ranks: int, steps: str | None, is_: str, should_be: str
) -> None:
    found = findings(lay, ranks)
    assert found
    for finding in found:
        assert finding.signature is not None
        assert finding.signature.kind == "layout"
        named = finding.signature.parameters
        assert (named["is"], named["should_be"]) == (is_, should_be)
    if steps is not None:
        assert findings(lay, ranks, steps) == []


def test_per_rank_blocks_are_quiet() -> None:
    assert findings(by_rank, 2) == []


def test_other_values_in_a_fused_weight_are_no_layout() -> None:
    found = findings(lambda weights, ranks, rank: by_rank(weights, ranks, rank).roll(1, 1) + 0.1, 2)
    assert len(found) == 3
    assert all(finding.signature is None or finding.signature.kind != "layout" for finding in found)
