"""What is asked of transformers to load a checkpoint folder."""

import importlib
import importlib.util
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from validator.errors import TargetError, UsageError

__all__ = ["config_of", "load", "model_class", "transformers", "without_loading_bars"]

_SHOWN = 3  # names after the first one, in a message


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
    """Load a checkpoint's model with `from_pretrained`, from the folder alone.

    Raises:
        TargetError: the checkpoint lacks a parameter of the model, or holds a tensor in another shape, for
            which transformers would take numbers of its own, most often random ones.
    """
    with without_loading_bars():
        model: nn.Module
        model, info = model_class(folder).from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **options,
        )
    # Buffers that are not there begin as the model's code makes them, which is the same each time.
    made = {name for name, _ in model.named_buffers(remove_duplicate=False)}
    missing, wrong = sorted(set(info["missing_keys"]) - made), sorted(info["mismatched_keys"])
    if missing:
        raise TargetError(
            f"the checkpoint {folder} lacks {_some(missing)}, which transformers would make up: save all "
            f"weights of {type(model).__name__}, or name another class in config.json"
        )
    if wrong:
        shapes = [f"{name} as {list(held)}, not {list(wanted)}" for name, held, wanted in wrong]
        raise TargetError(
            f"the checkpoint {folder} holds {_some(shapes)}: its config.json describes another model"
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


def _some(names: Iterable[str]) -> str:
    first, *others = names
    shown, left = others[:_SHOWN], len(others[_SHOWN:])
    return ", ".join((first, *shown)) + (f" and {left} more" if left else "")
