"""The attention in a module's code is found on its tape, whatever kernel it is, and its keys are named."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.checks.build import check
from validator.checks.findings import Finding
from validator.checks.signatures import signature_words

BATCH, TOKENS, HEADS, KEY_HEADS, CHANNELS = 2, 24, 4, 2, 16
WIDTH = HEADS * CHANNELS


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Attention(nn.Module):
    """Causal attention by one of two kernels, with more query heads than key heads; `drops` some keys."""

    def __init__(self, kernel: str, *, drops: bool = False, sink: bool = False, gain: float = 1.0) -> None:
        super().__init__()
        self.kernel, self.drops, self.sink = kernel, drops, sink
        self.scale = gain * CHANNELS**-0.5
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
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=self.scale)
        else:
            scores = q @ k.mT * self.scale
            hidden = torch.zeros(1, 1, tokens, tokens, dtype=x.dtype)
            scores = scores + hidden.masked_fill(~seen, torch.finfo(x.dtype).min)
            if self.sink:
                scores = torch.cat([scores, torch.ones_like(scores[..., :1])], -1)
            p = torch.softmax(scores, -1, dtype=torch.float32).to(x.dtype)
            mixed = p[..., :tokens] @ v
        return self.o(mixed.transpose(1, 2).reshape(batch, tokens, -1))


def found(fault: dict[str, Any], **options: Any) -> tuple[Finding, ...]:
    x = seeded(BATCH, TOKENS, WIDTH).bfloat16()
    candidate = Attention(**fault, **options).bfloat16()
    return check(Attention(**options), candidate, {"x": x}).findings


KERNELS = pytest.mark.parametrize(
    "options",
    [{"kernel": "sdpa"}, {"kernel": "eager"}, {"kernel": "eager", "sink": True}],
    ids=["one operator", "products and a softmax", "with a sink"],
)


@KERNELS
def test_keys_that_were_left_out_are_named_of_every_kernel(options: dict[str, Any]) -> None:
    (finding,) = found({"drops": True}, **options)
    assert (finding.module, finding.into) == ("", "o")
    assert finding.signature is not None
    assert (finding.signature.kind, finding.signature.parameters) == (
        "keys_left_out",
        {"start": 4, "stop": 8},
    )


@KERNELS
@pytest.mark.parametrize("gain", [1.1, 1.414, 1.5, 0.5, 4.0])
def test_another_scale_of_scores_is_named_with_the_constant_of_every_kernel(
    options: dict[str, Any], gain: float
) -> None:
    (finding,) = found({"gain": gain}, **options)
    assert (finding.module, finding.into) == ("", "o")
    assert finding.signature is not None
    assert finding.signature.kind == "attention_scale"
    assert finding.signature.parameters == {"factor": pytest.approx(gain, rel=0.01), "value": CHANNELS**-0.5}
    made = finding.signature.parameters["factor"] * CHANNELS**-0.5
    assert signature_words(finding.signature) == f"the scale of attention {made:.6g} in place of 0.25"
