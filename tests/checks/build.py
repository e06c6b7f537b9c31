"""A candidate's trace from two small modules in this process, and logical tensors made by hand."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tests.align.build import Recorder
from validator.align.builder import build_trace
from validator.align.traces import Edge, LogicalTensor, Trace, View
from validator.capturing.naming import NameDealer, Scope
from validator.capturing.records import RankCapture
from validator.capturing.values import flatten, flatten_arguments
from validator.checks.engine import policy_of, run_checks
from validator.checks.findings import Outcome
from validator.checks.padding import real_positions
from validator.numerics.recipes import Recipe

ALL = View(ranks=(0,))


def captured(model: nn.Module, *inputs: dict[str, Any]) -> RankCapture:
    """Run a model once for each of `inputs`, and record every module's call."""
    recorder = Recorder()
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    for name, tensor in named:
        recorder.parameter(name, tensor)
    with recorded(recorder, model), torch.no_grad():
        for given in inputs:
            model(**copied(given))
    return recorder.capture()


def traced(reference: nn.Module, candidate: nn.Module, *inputs: dict[str, Any]) -> Trace:
    """Run both, and return the candidate's run in the reference's names."""
    ours = captured(reference, *(copied(given, torch.float32) for given in inputs))
    return build_trace(cand=[captured(candidate, *inputs)], ref=ours)


def check(
    reference: nn.Module, candidate: nn.Module, *inputs: dict[str, Any], recipe: Recipe | None = None
) -> Outcome:
    """Judge one module against another."""
    ours = captured(reference, *(copied(given, torch.float32) for given in inputs))
    return run_checks(
        reference=reference,
        trace=build_trace(cand=[captured(candidate, *inputs)], ref=ours),
        run=feed(*inputs),
        policy=policy_of(recipe),
        real=real_positions(ours),
    )


def feed(*inputs: dict[str, Any]) -> Callable[[nn.Module], None]:
    """Return what runs a float32 reference on fresh copies of the inputs."""

    def run(model: nn.Module) -> None:
        for given in inputs:
            model(**copied(given, torch.float32))

    return run


def copied(given: Mapping[str, Any], dtype: torch.dtype | None = None) -> dict[str, Any]:
    """Return inputs that a run may change, floating ones in `dtype`."""

    def copy(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return (
            value.to(dtype, copy=True) if dtype is not None and value.is_floating_point() else value.clone()
        )

    return {name: copy(value) for name, value in given.items()}


@contextmanager
def recorded(recorder: Recorder, model: nn.Module) -> Iterator[None]:
    """Record the calls of a model's modules."""
    dealer, scopes = NameDealer(model), [Scope()]
    modules = list(model.modules())
    saved = [module.__dict__.get("forward") for module in modules]
    for module in modules:
        module.forward = _recording(recorder, dealer, scopes, module, module.forward)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for module, forward in zip(modules, saved, strict=True):
            del module.__dict__["forward"]
            if forward is not None:
                module.forward = forward  # type: ignore[method-assign]


def edge(
    tensor: Tensor, path: str = "", dims: tuple[str, ...] = (), disagreeing: tuple[int, ...] = ()
) -> Edge:
    """Return an edge that every view reads alike."""
    logical = LogicalTensor(data=tensor, parts=(), dims=dims or ("",) * tensor.dim())
    dtype = str(tensor.dtype).removeprefix("torch.")
    shape = tuple(tensor.shape)
    return Edge(path=path, dtype=dtype, shape=shape, read=lambda view: logical, disagreeing=disagreeing)


def _recording(
    recorder: Recorder,
    dealer: NameDealer,
    scopes: list[Scope],
    module: nn.Module,
    original: Callable[..., Any],
) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        name = dealer.name(module, scopes[-1])
        kind = f"{type(module).__module__}.{type(module).__qualname__}"
        given = {
            path: value
            for path, value in flatten_arguments(module, args, kwargs).items()
            if _is_stored(value)
        }
        scopes.append(Scope(name))
        with recorder.call(name, given, kind) as outputs:
            made = original(*args, **kwargs)
            outputs.update({path: value for path, value in flatten(made).items() if _is_stored(value)})
        scopes.pop()
        return made

    return forward


def _is_stored(value: Any) -> bool:
    return value is None or isinstance(value, Tensor | bool | int | float | str)
