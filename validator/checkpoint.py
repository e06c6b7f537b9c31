"""A Hugging Face checkpoint folder as a target."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from validator.errors import UsageError
from validator.pretrained import load, transformers, without_loading_bars
from validator.streaming.models import streamed

__all__ = ["checkpoint_functions", "is_checkpoint", "without_loading_bars"]

_BATCH, _TOKENS = 2, 64


def is_checkpoint(path: Path) -> bool:
    """Say whether a path is a folder with a `config.json` and safetensors."""
    return path.is_dir() and (path / "config.json").is_file() and any(path.glob("*.safetensors"))


def checkpoint_functions(folder: Path) -> dict[str, Callable[..., Any]]:
    """Return the functions `reference`, `candidate` and `inputs` of a checkpoint.

    The reference has the checkpoint's own dtype, and its weights stay on the disk until they are used. The
    candidate has `dtype`, and with several ranks is sharded by the model's own tensor-parallel plan. The
    inputs are token ids drawn from the whole vocabulary with a fixed seed, `[B=2, S=64]` or as many as the
    model has positions, without padding.
    """

    def reference() -> nn.Module:
        return streamed(folder)

    def candidate(
        dtype: torch.dtype | None = None, device: str | None = None, tp: int | None = None
    ) -> nn.Module:
        world_size = dist.get_world_size() if dist.is_initialized() else 1
        if tp is not None and tp != world_size:
            raise UsageError(f"--tp {tp} must equal --nproc {world_size}: tensor parallelism takes all ranks")
        options: dict[str, Any] = {"dtype": dtype or "auto"}
        if world_size > 1:
            distributed = importlib.import_module("transformers.distributed")
            options["distributed_config"] = distributed.DistributedConfig(tp_plan="auto", tp_size=world_size)
            return load(folder, **options)
        model = load(folder, **options)
        return model if device is None else model.to(device)

    def inputs() -> dict[str, torch.Tensor]:
        config = transformers().AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config()
        tokens = min(_TOKENS, getattr(config, "max_position_embeddings", _TOKENS))
        generator = torch.Generator().manual_seed(0)
        input_ids = torch.randint(config.vocab_size, (_BATCH, tokens), generator=generator)
        return {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}

    return {"reference": reference, "candidate": candidate, "inputs": inputs}
