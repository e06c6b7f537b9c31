"""Functions that are called in another way under the arithmetic give what torch gives without it."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from validator.checks.arithmetic import Arithmetic, Rounding
from validator.checks.shadow import ShadowTensor

F32, BF16 = torch.float32, torch.bfloat16


def values(made: Any) -> list[Tensor]:
    made = made if isinstance(made, tuple) else (made,)
    return [x.data64 if isinstance(x, ShadowTensor) else x for x in made]


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "logsumexp of two dims": lambda x: x.logsumexp((0, 2), keepdim=True),
    "logsumexp of nothing": lambda x: torch.logsumexp(torch.full_like(x, -math.inf), -1),
    "std_mean": lambda x: torch.std_mean(x),
    "std_mean biased": lambda x: torch.std_mean(x, False),
    "var_mean": lambda x: torch.var_mean(x, (0, 1), correction=0, keepdim=True),
    "var_mean in order": lambda x: torch.var_mean(x, 1, False, True),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_rewritten_function_gives_what_torch_gives(name: str) -> None:
    x = normal(3, 4, 5)
    arithmetic = Arithmetic(Rounding.none())
    shadow = arithmetic.shadow(x)
    with arithmetic:
        made = FUNCTIONS[name](shadow)
    for ours, theirs in zip(values(made), values(FUNCTIONS[name](x.double())), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch_first", [True, False])
def test_a_recurrent_layer_runs_in_float64(kind: type[nn.RNNBase], batch_first: bool) -> None:
    torch.manual_seed(0)
    layer = kind(5, 6, num_layers=2, batch_first=batch_first, bidirectional=True).eval()
    x = normal(3, 4, 5)
    arithmetic = Arithmetic(Rounding.none())
    shadow = arithmetic.shadow(x)
    with torch.no_grad():
        with arithmetic:
            made, state = layer(shadow)
        wanted, last = layer.double()(x.double())
    torch.testing.assert_close(made.data64, wanted)
    for ours, theirs in zip(values(state), values(last), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [F32, BF16, torch.float16])
def test_infinity_becomes_the_largest_number_of_the_dtype_that_the_code_sees(dtype: torch.dtype) -> None:
    x = torch.tensor([math.inf, -math.inf, math.nan, 1.0], dtype=dtype)
    arithmetic = Arithmetic(Rounding.none())
    shadow = arithmetic.shadow(x)
    with arithmetic:
        made = torch.nan_to_num(shadow)
    assert torch.equal(made.data64, torch.nan_to_num(x).double())


READERS: dict[str, Callable[[Tensor], torch.dtype]] = {
    "dtype": lambda p: p.dtype,
    "to it": lambda p: torch.ones(2).to(p).dtype,
    "to its dtype": lambda p: torch.ones(2).to(p.dtype).dtype,
    "type_as": lambda p: torch.ones(2).type_as(p).dtype,
    "data": lambda p: p.data.dtype,
    "detached": lambda p: p.detach().dtype,
    "like it": lambda p: torch.ones_like(p).dtype,
}


@pytest.mark.parametrize("name", READERS)
def test_code_that_asks_for_a_parameters_dtype_is_told_the_candidates(name: str) -> None:
    """Mamba-2 casts its residual stream, kept in float32, to the dtype of a norm's weight."""
    parameter = nn.Parameter(torch.ones(3))
    with Arithmetic(Rounding.none(), lambda tensor: (tensor.detach().double(), BF16)):
        assert READERS[name](parameter) == BF16


@pytest.mark.parametrize("cast", [torch.Tensor.float, lambda p: p.to(F32)], ids=["float", "to"])
def test_a_parameter_that_the_candidate_stores_in_bfloat16_is_widened_by_a_cast_to_float32(
    cast: Callable[[Tensor], Tensor],
) -> None:
    """A cast to the reference's own dtype does nothing there, but it does in the candidate."""
    parameter = nn.Parameter(torch.ones(3))
    with Arithmetic(Rounding.none(), lambda tensor: (tensor.detach().double(), BF16)):
        made = cast(parameter)
    assert isinstance(made, ShadowTensor)
    assert made.dtype == F32


def test_operators_that_return_lists_may_return_more_the_next_time() -> None:
    x = normal(7, 4)
    arithmetic = Arithmetic(Rounding.none())
    shadow = arithmetic.shadow(x)
    with arithmetic:
        few, many = shadow[:2].unbind(0), shadow.unbind(0)
    assert (len(few), len(many)) == (2, 7)
    assert torch.equal(many[6].data64, x[6].double())
