"""A target whose models are deep and narrow: many layers of a small Llama, with weights that show a fault."""

from pathlib import Path

__all__ = ["write_deep_net", "write_deep_port"]

_DEEP_PORT = """
import torch
import transformers

from tests.families import FAMILIES

LAYERS, SEED, TOKENS, BATCH = {layers}, {seed}, {tokens}, {batch}
FAMILY = FAMILIES[{family!r}]


def _built():
    config = FAMILY.config(False)
    config.num_hidden_layers = LAYERS
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = [config.layer_types[i % 2] for i in range(LAYERS)]
    config._attn_implementation = "sdpa"
    model = transformers.AutoModelForCausalLM.from_config(config)
    FAMILY.fill(model, torch.Generator().manual_seed(SEED))
    return model


def reference():
    return _built()


def candidate(dtype=torch.{dtype}):
    model = _built()
    for parameter in model.parameters():  # not the buffers: rotary frequencies stay float32
        parameter.data = parameter.data.to(dtype)
    return model


def inputs():
    generator = torch.Generator().manual_seed(1000 + SEED)
    ids = torch.randint(256, (BATCH, TOKENS), generator=generator)
    return {{"input_ids": ids, "use_cache": False}}
"""


def write_deep_port(
    folder: Path,
    *,
    layers: int = 12,
    seed: int = 0,
    tokens: int = 32,
    batch: int = 2,
    family: str = "llama",
    dtype: str = "bfloat16",
    changes: str = "",
) -> Path:
    """Write the target, with definitions that replace its own, and return its path."""
    path = folder / "port.py"
    text = _DEEP_PORT.format(layers=layers, seed=seed, tokens=tokens, batch=batch, family=family, dtype=dtype)
    path.write_text(text + changes, encoding="utf-8")
    return path


_DEEP_NET = """
from pathlib import Path

import torch
from torch import nn


class Norm(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)
        self.eps = eps

    def forward(self, x):
        x32 = x.float()
        return self.weight * (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = Norm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, layers={layers}, width=32):
        super().__init__()
        self.embed = nn.Embedding(64, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = Norm(width)
        self.head = nn.Linear(width, 64, bias=False)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def reference():
    return Net()


def candidate():
    with Path(__file__).with_name("built").open("a") as log:
        log.write("x")
    model = Net().to(torch.bfloat16)
    with torch.no_grad():
        spoil(model)
    return model


def inputs():
    return {{"input_ids": torch.arange(192).remainder(64).view(4, 48)}}
"""


def write_deep_net(folder: Path, spoil: str = "pass", *, layers: int = 12, changes: str = "") -> Path:
    """Write a target in plain torch that is run in moments; `spoil` is code that changes its candidate."""
    path = folder / "port.py"
    text = _DEEP_NET.format(layers=layers)
    path.write_text(text + changes + f"\n\ndef spoil(model):\n    {spoil}\n", encoding="utf-8")
    return path
