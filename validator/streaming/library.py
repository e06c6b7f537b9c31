"""What streaming takes of transformers beyond its public interface: all of it is named here.

These are the function that fills a model while it is loaded, whose place another takes, and the functions
that this one would call to make parameters of a checkpoint's tensors.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from validator.errors import UsageError
from validator.pretrained import transformers

__all__ = ["conversions", "filling_with"]

_FILL = "_load_pretrained_model"
_CONVERSIONS = (
    "WeightConverter",
    "WeightRenaming",
    "convert_and_load_state_dict_in_model",
    "dot_natural_key",
    "rename_source_key",
)


def conversions() -> Any:
    """Return the module that makes a model's parameters of a checkpoint's tensors.

    Raises:
        UsageError: transformers is not installed, or is a version that has no such functions.
    """
    library = transformers()
    try:
        module = importlib.import_module("transformers.core_model_loading")
    except ImportError:
        raise _unfit(library, "core_model_loading") from None
    for name in _CONVERSIONS:
        if not hasattr(module, name):
            raise _unfit(library, f"core_model_loading.{name}")
    return module


@contextmanager
def filling_with(fill: Callable[..., Any]) -> Iterator[None]:
    """Let `from_pretrained` call a function in place of the one that reads the weights into a model.

    Args:
        fill: takes the model, a state dict or None, the checkpoint's files, transformers' settings of this
            load and the keys that it expects; returns what was and was not loaded, and what was offloaded.

    Raises:
        UsageError: as of `conversions`.
    """
    library = transformers()
    base: Any = library.PreTrainedModel
    own = base.__dict__.get(_FILL)
    if not isinstance(own, staticmethod):
        raise _unfit(library, f"PreTrainedModel.{_FILL}")
    setattr(base, _FILL, staticmethod(fill))
    try:
        yield
    finally:
        setattr(base, _FILL, own)


def _unfit(library: Any, name: str) -> UsageError:
    return UsageError(
        f"transformers {library.__version__} has no {name}, which it takes to stream a checkpoint: install "
        "another version (5.24 has it), or write a target whose reference() returns a model in memory"
    )
