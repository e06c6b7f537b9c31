"""Where controls are planted, and what they change."""

import pytest
import torch
from torch import Tensor, nn

from validator.determinism.controls import Control, planted, site_of

X = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0))


class Tupled(nn.Linear):
    """Returns its bias beside, as layers do whose caller adds it later."""

    def forward(self, x: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return super().forward(x), None


class Calls(nn.Module):
    """Calls its modules in this order."""

    def __init__(self, order: str, **modules: nn.Module) -> None:
        super().__init__()
        self.order = order
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        for name in self.order:
            made = getattr(self, name)(x)
            x = made[0] if isinstance(made, tuple) else made
        return x


def linear() -> nn.Linear:
    return nn.Linear(4, 4)


def applied(module: nn.Module, control: Control, x: Tensor, *, runs: int = 1, **more: int) -> list[Tensor]:
    """Return what a model of this module alone gives in each run with a control."""
    model = Calls("a", a=module)
    with torch.no_grad(), planted(model, "a", control, **{"rank": 0, "sequences": len(x), **more}):
        return [model(x) for _ in range(runs)]


@pytest.mark.parametrize(
    ("model", "site"),
    [
        (Calls("abc", a=linear(), b=linear(), c=linear()), "b"),
        (Calls("aabaa", a=linear(), b=linear()), "b"),
        (Calls("aa", a=linear()), "a"),
        (Calls("ab", a=nn.LayerNorm(4), b=Tupled(4, 4)), "b"),
        (Calls("ab", a=nn.Conv1d(5, 5, 1), b=nn.LayerNorm(4)), "a"),
        (Calls("a", a=nn.LayerNorm(4)), None),
        (Calls("", a=linear()), None),
    ],
    ids=[
        "in the middle",
        "called once",
        "called again",
        "a tuple",
        "no weight of 2 dims",
        "no matrix",
        "unused",
    ],
)
def test_controls_are_planted_at_a_module_with_a_matrix(model: nn.Module, site: str | None) -> None:
    assert site_of(model, lambda: model(X)) == site


def test_a_module_that_keeps_sequences_apart_is_preferred_to_one_of_packed_tokens() -> None:
    model = Calls("abc", a=linear(), b=nn.Flatten(0, 1), c=linear())
    assert site_of(model, lambda: model(X)) == "a"
    packed = Calls("ac", a=linear(), c=linear())
    assert site_of(packed, lambda: packed(X[0])) == "c"


def test_a_table_is_no_place_for_controls() -> None:
    model = nn.Sequential(nn.Embedding(4, 4))
    assert site_of(model, lambda: model(torch.arange(4)[None])) is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1.0, 0.0], ids=["values", "zeros"])
def test_the_last_bit_of_one_element_is_another(dtype: torch.dtype, scale: float) -> None:
    module = linear().to(dtype)
    with torch.no_grad():
        module.weight *= scale
        assert module.bias is not None
        module.bias *= scale
        plain = module(X.to(dtype))
    (made,) = applied(module, Control.LAST_BIT, X.to(dtype))
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    steps = (made.view(bits) - plain.view(bits)).abs().flatten()
    assert steps.sum() == 1


@pytest.mark.parametrize("is_packed", [False, True], ids=["[B, s, d]", "[B s, d]"])
def test_a_sequence_gets_a_part_of_its_neighbours_token_at_the_same_place(is_packed: bool) -> None:
    x = X.flatten(0, 1) if is_packed else X
    module = linear()
    plain = module(X).detach()
    (made,) = applied(module, Control.NEIGHBOUR, x, sequences=2)
    made = made.reshape(plain.shape)
    assert torch.equal(made[..., 1:], plain[..., 1:])
    assert torch.equal(made[0, :, 0], plain[0, :, 0] + plain[1, :, 0])


def test_later_runs_alone_are_off_however_often_a_run_calls_the_module() -> None:
    model = Calls("aa", a=linear())
    with torch.no_grad():
        plain = model(X)
        with planted(model, "a", Control.LATER, rank=0, sequences=2):
            first, second = model(X), model(X)
    assert torch.equal(first, plain)
    assert not torch.equal(second, plain)


def test_all_ranks_but_the_first_are_off() -> None:
    module = linear()
    plain = module(X).detach()
    assert torch.equal(applied(module, Control.CARD, X, rank=0)[0], plain)
    assert not torch.equal(applied(module, Control.CARD, X, rank=1)[0], plain)


def test_a_model_without_the_module_is_left_alone() -> None:
    model = Calls("b", b=linear())
    with torch.no_grad():
        plain = model(X)
        with planted(model, "a", Control.CARD, rank=1, sequences=2):
            assert torch.equal(model(X), plain)


def test_nothing_is_planted_after_the_block() -> None:
    model = Calls("a", a=linear())
    with torch.no_grad():
        plain = model(X)
        with planted(model, "a", Control.CARD, rank=1, sequences=2):
            pass
        assert torch.equal(model(X), plain)
