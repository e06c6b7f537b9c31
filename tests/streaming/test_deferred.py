"""A deferred parameter is read-only, and says what a checkpoint holds of it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from validator.errors import UsageError
from validator.pretrained import transformers
from validator.streaming import library
from validator.streaming.deferred import DeferredParameter

LOST = r"can't be written to \({}\): its values stay in the checkpoint"


def made() -> DeferredParameter:
    values = torch.arange(6.0).view(3, 2)
    return DeferredParameter(values.clone, shape=values.shape, dtype=values.dtype)


def assigned(parameter: DeferredParameter) -> None:
    parameter[0] = 1.0


def replaced(parameter: DeferredParameter) -> None:
    parameter.data = torch.ones(3, 2)


WRITES: dict[str, Callable[[DeferredParameter], Any]] = {
    "__setitem__": assigned,
    "data": replaced,
    "mul_": lambda parameter: parameter.mul_(2),
    "copy_": lambda parameter: parameter.data.copy_(torch.ones(3, 2)),
    "normal_": nn.init.normal_,
    "add": lambda parameter: torch.add(torch.ones(3, 2), 1, out=parameter),
    "_foreach_add_": lambda parameter: torch._foreach_add_([parameter], 1.0),
}


@pytest.mark.parametrize("name", WRITES)
def test_writing_to_a_deferred_parameter_is_an_error(name: str) -> None:
    with torch.no_grad(), pytest.raises(UsageError, match=LOST.format(name)):
        WRITES[name](made())


def test_writing_where_single_operators_are_looked_at_is_an_error() -> None:
    class Looking(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    with Looking(), torch.no_grad(), pytest.raises(UsageError, match=LOST.format("aten::mul_")):
        made().mul_(2)


def test_reading_and_freezing_are_none() -> None:
    parameter = made()
    assert torch.equal(parameter.data * 2, parameter + parameter)
    assert parameter.requires_grad_(False) is not None
    plain = torch.zeros(3, 2)
    plain.copy_(parameter)
    plain += parameter
    assert torch.equal(plain, 2 * parameter)


def test_a_version_of_transformers_without_its_functions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers.core_model_loading as loading

    base = transformers().PreTrainedModel  # importing it takes what is removed
    monkeypatch.delattr(loading, "rename_source_key")
    with pytest.raises(UsageError, match=r"has no core_model_loading.rename_source_key.*install another"):
        library.conversions()
    monkeypatch.delattr(base, "_load_pretrained_model")
    with (
        pytest.raises(UsageError, match=r"has no PreTrainedModel._load_pretrained_model"),
        library.filling_with(lambda *args: None),
    ):
        pass
