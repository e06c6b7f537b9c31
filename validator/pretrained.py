"""What is asked of transformers to load a checkpoint folder."""

import importlib
import importlib.util
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from validator.errors import UsageError

__all__ = ["config_of", "load", "model_class", "transformers", "without_loading_bars"]


def transformers() -> Any:
    """Return the library.

    Raises:
        UsageError: it is not installed.
    """
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise UsageError(
            f"a checkpoint folder needs transformers ({error}): pip install 'accuracy-validator[hf]'"
        ) from error


def config_of(folder: Path) -> Mapping[str, Any]:
    """Return what `config.json` holds; nothing where it can't be read."""
    try:
        found = json.loads((folder / "config.json").read_text())
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def model_class(folder: Path) -> Any:
    """Return the class that the checkpoint names, else that of causal language models.

    Code that the checkpoint ships is not run.
    """
    library = transformers()
    try:
        named = config_of(folder)["architectures"][0]
    except (LookupError, TypeError):
        named = ""
    found: Any = getattr(library, str(named), None)
    if isinstance(found, type) and issubclass(found, nn.Module):
        return found
    return library.AutoModelForCausalLM


def load(folder: Path, **options: Any) -> nn.Module:
    """Load a checkpoint's model with `from_pretrained`, from the folder alone."""
    with without_loading_bars():
        model: nn.Module = model_class(folder).from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, **options
        )
    return model


@contextmanager
def without_loading_bars() -> Iterator[None]:
    """Keep transformers' progress bars for the loading of weights off the terminal, where it is installed."""
    if importlib.util.find_spec("transformers") is None:
        yield
        return
    logging = importlib.import_module("transformers.utils.logging")
    were_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_enabled:
            logging.enable_progress_bar()
