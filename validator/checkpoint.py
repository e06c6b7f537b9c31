"""A Hugging Face checkpoint folder as a target."""

import importlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from validator.errors import UsageError

__all__ = ["checkpoint_functions", "is_checkpoint", "without_loading_bars"]

_BATCH, _TOKENS = 2, 64


def is_checkpoint(path: Path) -> bool:
    """Say whether a path is a folder with a `config.json` and safetensors."""
    return path.is_dir() and (path / "config.json").is_file() and any(path.glob("*.safetensors"))


def checkpoint_functions(folder: Path) -> dict[str, Callable[..., Any]]:
    """Return the functions `reference`, `candidate` and `inputs` of a checkpoint.

    The reference has the checkpoint's own dtype. The candidate has `dtype`, and with several ranks is sharded
    by the model's own tensor-parallel plan. The inputs are token ids drawn from the whole vocabulary with a
    fixed seed, `[B=2, S=64]` or as many as the model has positions, without padding.
    """

    def reference() -> nn.Module:
        return _load(folder, dtype="auto")

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
            return _load(folder, **options)
        model = _load(folder, **options)
        return model if device is None else model.to(device)

    def inputs() -> dict[str, torch.Tensor]:
        config = _transformers().AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config()
        tokens = min(_TOKENS, getattr(config, "max_position_embeddings", _TOKENS))
        generator = torch.Generator().manual_seed(0)
        input_ids = torch.randint(config.vocab_size, (_BATCH, tokens), generator=generator)
        return {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}

    return {"reference": reference, "candidate": candidate, "inputs": inputs}


@contextmanager
def without_loading_bars() -> Iterator[None]:
    """Keep transformers' progress bars for the loading of weights off the terminal."""
    logging = importlib.import_module("transformers.utils.logging")
    were_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_enabled:
            logging.enable_progress_bar()


def _load(folder: Path, **options: Any) -> nn.Module:
    """Load the model with the class that the checkpoint names; code that it ships is not run."""
    transformers = _transformers()
    try:
        named = json.loads((folder / "config.json").read_text())["architectures"][0]
    except (ValueError, LookupError, TypeError):
        named = ""
    model_class: Any = getattr(transformers, str(named), None)
    if not (isinstance(model_class, type) and issubclass(model_class, nn.Module)):
        model_class = transformers.AutoModelForCausalLM
    with without_loading_bars():
        model: nn.Module = model_class.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, **options
        )
    return model


def _transformers() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise UsageError(
            f"a checkpoint folder needs transformers ({error}): pip install 'accuracy-validator[hf]'"
        ) from error
