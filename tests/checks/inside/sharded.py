"""A gated MLP on two ranks, captured with its operators. It imports little: each rank is a process."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from validator.capturing.session import capture_run

__all__ = ["Model", "capture_rank", "inputs"]

WIDTH = 32


class Mlp(nn.Module):
    """A gated MLP whose activation is part of its own code."""

    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(self.gate(x)) * (self.up(x) * self.factor))
        return out


class Model(nn.Module):
    """One MLP under a name."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.mlp = Mlp()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.mlp(x)
        return out


def inputs(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    """Return what the model is fed: the same numbers in each dtype."""
    x = torch.randn(2, 16, WIDTH, generator=torch.Generator().manual_seed(7)).to(torch.bfloat16)
    return {"x": x.to(dtype)}


def capture_rank(rank: int, world_size: int, path: Path, uses_dtensor: bool, is_faulty: bool) -> None:
    """Capture a rank's run, in which rank 1 scales its half of what it gates by 1.05 if it is faulty."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.set_num_threads(1)
    model: Any = Model().to(torch.bfloat16).eval()
    if is_faulty and rank == 1:
        model.mlp.factor = 1.05
    mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("tp",))
    columns = ColwiseParallel(use_local_output=not uses_dtensor)
    parallelize_module(model.mlp, mesh, {"gate": columns, "up": columns, "down": RowwiseParallel()})
    given = inputs()
    capture_run(lambda: model(**given), model, path, operators="mlp", inputs=given)
