"""The attention in a module's code is found on its tape, whatever kernel it is, and its keys are named."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.checks.build import check
from validator.checks.findings import Finding

BATCH, TOKENS, HEADS, KEY_HEADS, CHANNELS = 2, 24, 4, 2, 16
WIDTH = HEADS * CHANNELS


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Attention(nn.Module):
    """Causal attention by one of two kernels, with more query heads than key heads; `drops` some keys."""

    def __init__(self, kernel: str, *, drops: bool = False, sink: bool = False) -> None:
        super().__init__()
        self.kernel, self.drops, self.sink = kernel, drops, sink
        for i, (name, width) in enumerate({"q": HEADS, "k": KEY_HEADS, "v": KEY_HEADS, "o": HEADS}.items()):
            layer = nn.Linear(WIDTH, width * CHANNELS, bias=False)
            layer.weight.data = seeded(width * CHANNELS, WIDTH, seed=i + 1) * 1.5 / WIDTH**0.5
            setattr(self, name, layer)

    def forward(self, x: Tensor) -> Any:
        batch, tokens, _ = x.shape
        q, k, v = (getattr(self, n)(x).view(batch, tokens, -1, CHANNELS).transpose(1, 2) for n in "qkv")
        k, v = (y.repeat_interleave(HEADS // KEY_HEADS, 1) for y in (k, v))
        seen = torch.ones(tokens, tokens, dtype=torch.bool).tril()
        if self.drops:
            seen = seen & ~((torch.arange(tokens) >= 4) & (torch.arange(tokens) < 8))
            seen = seen | torch.eye(tokens, dtype=torch.bool)
        if self.kernel == "sdpa":
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        else:
            scores = q @ k.mT * CHANNELS**-0.5
            hidden = torch.zeros(1, 1, tokens, tokens, dtype=x.dtype)
            scores = scores + hidden.masked_fill(~seen, torch.finfo(x.dtype).min)
            if self.sink:
                scores = torch.cat([scores, torch.ones_like(scores[..., :1])], -1)
            p = torch.softmax(scores, -1, dtype=torch.float32).to(x.dtype)
            mixed = p[..., :tokens] @ v
        return self.o(mixed.transpose(1, 2).reshape(batch, tokens, -1))


def found(**options: Any) -> tuple[Finding, ...]:
    x = seeded(BATCH, TOKENS, WIDTH).bfloat16()
    candidate = Attention(drops=True, **options).bfloat16()
    return check(Attention(**options), candidate, {"x": x}).findings


@pytest.mark.parametrize(
    "options",
    [{"kernel": "sdpa"}, {"kernel": "eager"}, {"kernel": "eager", "sink": True}],
    ids=["one operator", "products and a softmax", "with a sink"],
)
def test_keys_that_were_left_out_are_named_of_every_kernel(options: dict[str, Any]) -> None:
    (finding,) = found(**options)
    assert (finding.module, finding.into) == ("", "o")
    assert finding.signature is not None
    assert (finding.signature.kind, finding.signature.parameters) == (
        "keys_left_out",
        {"start": 4, "stop": 8},
    )
