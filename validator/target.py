"""A target: how to build the reference and the candidate, and what to feed them.

A Python file with the functions `reference`, `candidate` and `inputs`, or a Hugging Face checkpoint folder.
Loading a Python file runs it, as pytest runs a conftest; its folder can be imported from while its code runs.

torch's global generator is seeded with 0 before each of its functions, so that what one draws doesn't
depend on which ran before, on which rank, or how often.
"""

import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from validator.capturing.compiled import require_uncompiled
from validator.capturing.values import flatten, rebuild
from validator.checkpoint import checkpoint_functions, is_checkpoint
from validator.errors import TargetError, UsageError, ValidatorError
from validator.numerics.recipes import RECIPES, Recipe
from validator.target_file import check_path, describe, importable, run_file

__all__ = ["Target", "floating_dtype", "inputs_checksum", "load_target", "moved"]

_FUNCTIONS = ("reference", "candidate", "inputs", "run", "process_logits")


def load_target(
    source: str | Path, *, dtype: str | None = None, device: str | None = None, tp: int | None = None
) -> "Target":
    """Load a target.

    Args:
        source: a Python file or a checkpoint folder.
        dtype: torch's name of a floating format for the candidate, passed to `candidate(dtype=...)` as a
            `torch.dtype`.
        device: torch device for the candidate, passed to `candidate(device=...)` as a string.
        tp: size of the candidate's tensor-parallel group, passed to `candidate(tp=...)`.

    Raises:
        TargetError: there is no such target, it fails when loaded, or it lacks `reference` or `inputs`.
        UsageError: an option that `candidate` doesn't take, or a `dtype` that torch doesn't know.
    """
    path = Path(source)
    options = {"dtype": None if dtype is None else floating_dtype(dtype), "device": device, "tp": tp}
    options = {name: value for name, value in options.items() if value is not None}
    if is_checkpoint(path):
        return Target(source=str(source), functions=checkpoint_functions(path), options=options)
    check_path(path)
    module = run_file(path)
    functions = {name: getattr(module, name) for name in _FUNCTIONS if hasattr(module, name)}
    target = Target(
        source=str(source),
        functions=functions,
        options=options,
        folder=path.resolve().parent,
        others=tuple(name for name in vars(module) if not name.startswith("_") and name not in _FUNCTIONS),
        recipe=_recipe(source, getattr(module, "recipe", None)),
        layout=_names(source, "layout", getattr(module, "layout", {})),
        mesh=_mesh(source, getattr(module, "mesh", None)),
        names=_names(source, "names", getattr(module, "names", {})),
    )
    target.require("reference", "inputs")
    return target


def floating_dtype(name: str) -> torch.dtype:
    """Return the dtype that `--dtype` names.

    Raises:
        UsageError: torch has no floating format of this name.
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UsageError(
            f"--dtype {name!r} is no floating format of torch; try bfloat16, float16, float32 or float64"
        )
    return dtype


def inputs_checksum(inputs: Mapping[str, Any]) -> str:
    """Return the BLAKE2b-128, in hex, of the inputs' names, dtypes, shapes and bits.

    It is the same on every rank, or their inputs differ. Of objects that are neither tensors nor plain
    values only the type counts.
    """
    digest = hashlib.blake2b(digest_size=16)
    for path, leaf in flatten(inputs).items():
        if isinstance(leaf, torch.Tensor):
            digest.update(f"{path}={leaf.dtype}{tuple(leaf.shape)}".encode())
            digest.update(leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        elif leaf is None or isinstance(leaf, bool | int | float | str):
            digest.update(f"{path}={leaf!r};".encode())
        else:
            digest.update(f"{path}={type(leaf).__qualname__};".encode())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A loaded target.

    Attributes:
        source: the file or folder, as it was given.
        functions: those of `reference`, `candidate`, `inputs`, `run` and `process_logits` that it has.
        options: what is passed to `candidate`.
        folder: what its code may import from, or None for a checkpoint.
        others: its other public names, for messages.
        recipe: what the device may round, or None for the default.
        layout: line by fqn pattern of the candidate, as `sharding.layout` reads it.
        mesh: sizes of the axes that the candidate's ranks stand on, or None for those of its DTensors.
        names: fqn pattern of the reference by fqn pattern of the candidate.
    """

    source: str
    functions: Mapping[str, Callable[..., Any]]
    options: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    others: tuple[str, ...] = ()
    recipe: Recipe | None = None
    layout: dict[str, str] = field(default_factory=dict)
    mesh: dict[str, int] | None = None
    names: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, function in self.functions.items():
            if not callable(function):
                raise TargetError(
                    f"{name} in {self.source} is {_a(function)}, not a function; write `def {name}(...)`"
                )
        if "candidate" in self.functions:
            self._check_options()

    def require(self, *names: str) -> None:
        """Raise `TargetError` where the target lacks one of these functions."""
        missing = [name for name in names if name not in self.functions]
        if missing:
            has = [*self.functions, *self.others]
            raise TargetError(
                f"{self.source} has no {_listed(missing)}; it has {_listed(has) or 'no public names'}. "
                f"A target defines the functions reference, candidate and inputs: "
                f"add `def {missing[0]}(): ...`"
            )

    def fed_from(self, path: Path) -> "Target":
        """Return this target with inputs that `torch.save` wrote to `path` in place of its own."""

        def inputs() -> Any:
            return torch.load(path, weights_only=True)

        return replace(self, functions={**self.functions, "inputs": inputs})

    def reference(self) -> nn.Module:
        """Build the reference, in eval mode."""
        model = self._model("reference")
        require_uncompiled(model, f"what reference() of {self.source} returned")
        return model

    def candidate(self) -> nn.Module:
        """Build this rank's candidate, in eval mode, with the options of the command line."""
        return self._model("candidate", **self.options)

    def inputs(self) -> dict[str, Any]:
        """Make the model's keyword arguments."""
        made = self._call("inputs")
        if not isinstance(made, dict):
            raise TargetError(
                f"inputs() of {self.source} returned {_a(made)}; it must return a dict of the model's "
                'keyword arguments, such as {"input_ids": ...}'
            )
        wrong = next((key for key in made if not isinstance(key, str)), None)
        if wrong is not None:
            raise TargetError(
                f"inputs() of {self.source} returned a dict with the key {wrong!r}; its keys must be names "
                "of the model's arguments"
            )
        return made

    @property
    def has_sampler(self) -> bool:
        """Whether the target brings the port's own sampler."""
        return "process_logits" in self.functions

    def process_logits(
        self, logits: torch.Tensor, *, temperature: float, top_k: int | None, top_p: float
    ) -> Any:
        """Do what the port's own sampler does to `[B, V]` logits before a token is drawn."""
        return self._call("process_logits", logits, temperature=temperature, top_k=top_k, top_p=top_p)

    def run(self, model: nn.Module, inputs: dict[str, Any], *, side: str = "reference") -> Any:
        """Run a model on the inputs: `run(model, inputs)` of the target, or `model(**inputs)`.

        Without a `run` of its own, the target's tensors are first moved to the device of the model's first
        parameter.

        Args:
            model: the reference or the candidate.
            inputs: what `inputs()` returned.
            side: the word for the model in an error, `"reference"` or `"candidate"`.

        Raises:
            TargetError: the model fails on the inputs.
        """
        torch.manual_seed(0)
        try:
            with importable(self.folder):
                if "run" in self.functions:
                    return self.functions["run"](model, inputs)
                return model(**moved(inputs, model))
        except ValidatorError:
            raise
        except Exception as error:
            raise TargetError(
                f"the {side} fails on inputs(): {describe(error)}. inputs() of {self.source} gave "
                f"{_shapes(inputs)}"
            ) from error

    def _model(self, name: str, **options: Any) -> nn.Module:
        model = self._call(name, **options)
        if not isinstance(model, nn.Module):
            raise TargetError(
                f"{name}() of {self.source} returned {_a(model)}; it must return a torch.nn.Module"
            )
        return model.eval()

    def _call(self, name: str, *args: Any, **options: Any) -> Any:
        self.require(name)
        torch.manual_seed(0)
        try:
            with importable(self.folder):
                return self.functions[name](*args, **options)
        except ValidatorError:
            raise
        except Exception as error:
            raise TargetError(f"{name}() of {self.source} failed: {describe(error)}") from error

    def _check_options(self) -> None:
        parameters = inspect.signature(self.functions["candidate"]).parameters
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        for name, value in self.options.items():
            if name not in parameters and not takes_all:
                given = str(value).removeprefix("torch.")
                raise UsageError(
                    f"--{name} {given} can't be passed on: candidate() of {self.source} takes "
                    f"no argument {name!r}. Write `def candidate({name}=...)`, or leave --{name} out"
                )


def _recipe(source: str | Path, value: Any) -> Recipe | None:
    if value is None or isinstance(value, Recipe):
        return value
    if isinstance(value, str) and value in RECIPES:
        return RECIPES[value]
    legal = ", ".join(repr(name) for name in RECIPES)
    raise TargetError(f"recipe in {source} is {value!r}; it must be {legal} or a validator.Recipe")


def _names(source: str | Path, attribute: str, value: Any) -> dict[str, str]:
    if isinstance(value, dict) and all(isinstance(text, str) for pair in value.items() for text in pair):
        return value
    raise TargetError(
        f"{attribute} in {source} is {value!r}; it must be a dict from module patterns to strings"
    )


def _mesh(source: str | Path, value: Any) -> dict[str, int] | None:
    if value is None:
        return None
    is_mesh = isinstance(value, dict) and all(
        isinstance(axis, str) and isinstance(size, int) and size > 0 for axis, size in value.items()
    )
    if is_mesh and value:
        return dict(value)
    raise TargetError(f'mesh in {source} is {value!r}; it must be a dict such as {{"dp": 2, "tp": 2}}')


def moved(inputs: dict[str, Any], model: nn.Module) -> dict[str, Any]:
    """Return inputs whose tensors are on the device of a model's first parameter."""
    parameter = next(model.parameters(), None)
    if parameter is None or parameter.device.type == "meta":
        return inputs
    device = parameter.device
    there: dict[str, Any] = rebuild(
        inputs, lambda _, leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf
    )
    return there


def _shapes(inputs: Mapping[str, Any]) -> str:
    described = [
        f"{path} {list(leaf.shape)} {str(leaf.dtype).removeprefix('torch.')}"
        if isinstance(leaf, torch.Tensor)
        else f"{path} {type(leaf).__name__}"
        for path, leaf in flatten(inputs).items()
    ]
    return ", ".join(described) or "nothing"


def _listed(names: list[str]) -> str:
    return ", ".join(names)


def _a(value: Any) -> str:
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
