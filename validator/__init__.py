"""Say whether a port computes what its reference computes, and which operator is the first that does not.

Names are resolved when they are first used: `import validator` loads neither torch nor numpy, so that the
command line answers at once and a pytest run that does not use the plugin pays nothing for it.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from validator.api import capture, check, compare, open_capture
    from validator.errors import ValidatorError
    from validator.numerics.cache_scales import CacheScale
    from validator.numerics.recipes import Recipe
    from validator.streaming.models import streamed

    __version__: str

__all__ = [
    "CacheScale",
    "Recipe",
    "ValidatorError",
    "__version__",
    "capture",
    "check",
    "compare",
    "open_capture",
    "streamed",
]

_HOMES = {
    "CacheScale": "validator.numerics.cache_scales",
    "Recipe": "validator.numerics.recipes",
    "ValidatorError": "validator.errors",
    "capture": "validator.api",
    "check": "validator.api",
    "compare": "validator.api",
    "open_capture": "validator.api",
    "streamed": "validator.streaming.models",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = version("accuracy-validator")
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'validator' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
