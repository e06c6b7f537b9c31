"""Noise measured on models whose noise is known."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from validator.capturing.noise import Noise
from validator.capturing.watch import Place
from validator.checks.pairs import noise_lambda
from validator.checks.propagation import Propagation
from validator.errors import TargetError
from validator.numerics.formats import FORMATS
from validator.numerics.recipes import EAGER, FUSED, RECIPES, Recipe
from validator.numerics.ulp import ulp

BF16 = FORMATS["bfloat16"]
LAMBDA = noise_lambda(2 * 64 * 32, 12)
"""How many standard deviations of the noise rounding explains, of so many elements and runs."""

X = torch.randn(2, 64, 32, generator=torch.Generator().manual_seed(0))


class Code(nn.Module):
    """A model of one function and one weight."""

    def __init__(self, code: Callable[..., object]) -> None:
        super().__init__()
        self.code = code
        self.weight = nn.Parameter(torch.randn(32, 32, generator=torch.Generator().manual_seed(1)))
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> object:
        return self.code(self, x)


def measured(
    code: Callable[..., object],
    folder: Path,
    *,
    dtype: torch.dtype | None = torch.bfloat16,
    recipe: Recipe = EAGER,
    model: nn.Module | None = None,
    x: Tensor = X,
) -> tuple[dict[tuple[str, str], Tensor], Noise]:
    """Return the noise by side and path, and how it was measured."""
    model = model or Code(code)
    source = Propagation(
        model=model,
        run=lambda: model(x.clone()),
        recipe=recipe,
        dtype=dtype,
        runs=12,
        keeps=lambda module, call: True,
        folder=folder,
    )
    with source:
        return {(place.side, place.path): noise for place, noise in source.noise()}, source.description


def test_what_a_candidate_stores_of_an_input_is_that_far_away(tmp_path: Path) -> None:
    noise, _ = measured(lambda model, x: x * 1, tmp_path)
    # Every run rounds the input to nearest: the distance is the same, and 12/20 of its square are kept.
    far = (X.bfloat16().double() - X.double()).abs()
    found = noise["inputs", "x"]
    assert found.dtype == torch.bfloat16
    assert (found.double() >= 0.99 * (12 / 20) ** 0.5 * far).all()
    assert found.double().square().mean().sqrt() == pytest.approx(far.square().mean().sqrt().item(), rel=0.2)


def test_a_rounded_product_has_the_noise_of_its_rounding_and_of_its_inputs(tmp_path: Path) -> None:
    noise, _ = measured(lambda model, x: x @ model.weight, tmp_path)
    weight = Code(lambda: None).weight.detach().double()
    exact = X.double() @ weight
    shift = X.bfloat16().double() @ weight.bfloat16().double() - exact
    # Stochastic rounding of a value at a fraction f of its ulp has variance f(1 - f) ulp^2, on average 1/6.
    expected = (shift.square() + ulp(exact, BF16).square() / 6).mean().sqrt()
    found = noise["outputs", ""].double().square().mean().sqrt()
    assert found.item() == pytest.approx(expected.item(), rel=0.1)


def test_noise_grows_on_its_way(tmp_path: Path) -> None:
    def code(model: Code, x: Tensor) -> tuple[Tensor, Tensor]:
        once = x @ model.weight / 32**0.5
        for _ in range(8):
            x = x @ model.weight / 32**0.5
        return once, x

    noise, _ = measured(code, tmp_path)
    last, first = (noise["outputs", path].double().square().mean() for path in ("1", "0"))
    assert last > 3 * first


def test_a_recipe_that_rounds_less_has_less_noise(tmp_path: Path) -> None:
    def code(model: Code, x: Tensor) -> Tensor:
        return torch.sin(torch.cos(x) * 3) * torch.cos(x * 5)

    x = X.bfloat16().float()
    eager, fused = (
        measured(code, tmp_path, recipe=recipe, x=x)[0]["outputs", ""] for recipe in (EAGER, FUSED)
    )
    assert 0 < fused.double().square().mean() < 0.7 * eager.double().square().mean()


def test_without_a_dtype_the_noise_is_that_of_the_references_own(tmp_path: Path) -> None:
    noise, description = measured(lambda model, x: x @ model.weight, tmp_path, dtype=None)
    assert noise["outputs", ""].dtype == torch.float32
    assert 1e-8 < noise["outputs", ""].mean() < 1e-5
    assert description == Noise(runs=12, recipe="eager", dtype=None)


def test_integers_that_no_rounded_value_decides_have_none_to_spare(tmp_path: Path) -> None:
    def code(model: Code, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.arange(x.shape[1]), (x @ model.weight).argmax(-1)

    noise, _ = measured(code, tmp_path)
    assert torch.equal(noise["outputs", "0"], torch.zeros(64, dtype=torch.int64))
    assert ("outputs", "1") not in noise, "it may be another in a healthy run"


def test_what_comes_behind_a_choice_is_known(tmp_path: Path) -> None:
    class Router(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.softmax(-1).topk(2).indices

    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.router, self.after = nn.Linear(32, 32), Router(), nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            x = self.before(x)
            chosen = self.router(x)
            return self.after(x * chosen.sum(-1, keepdim=True))

    torch.manual_seed(0)
    _, description = measured(lambda: None, tmp_path, model=Mixture())
    assert description.choice == Place(module="router", call=0, side="outputs", path="")
    _, description = measured(lambda model, x: x @ model.weight, tmp_path)
    assert description.choice is None


def test_nothing_is_said_behind_an_operator_that_is_not_known(tmp_path: Path) -> None:
    noise, description = measured(lambda model, x: (x, torch.special.i0(x @ model.weight)), tmp_path)
    assert description.unknown == ("aten.special_i0",) or description.unknown == ("aten.i0",)
    assert ("outputs", "0") in noise
    assert ("outputs", "1") not in noise


def test_what_overflows_in_some_runs_can_be_anything(tmp_path: Path) -> None:
    noise, _ = measured(lambda model, x: x * 0 + 65519.0, tmp_path, dtype=torch.float16)
    # It lies half-way to the next power of two, and most elements overflow in one of 12 runs.
    assert noise["outputs", ""].isinf().double().mean() > 0.9


def test_the_model_is_left_as_it_was(tmp_path: Path) -> None:
    def code(model: Code, x: Tensor) -> Tensor:
        model.steps += 1  # type: ignore[operator]
        return x * model.steps

    model = Code(code)
    weight = model.weight.detach().clone()
    measured(code, tmp_path, model=model)
    assert torch.equal(model.weight, weight)
    assert model.weight.dtype == torch.float32
    assert model.steps == 1, "as the one plain run leaves it"
    assert not model._forward_hooks
    assert list(tmp_path.iterdir()) == []


def test_code_that_can_not_run_in_simulated_arithmetic_is_one_message(tmp_path: Path) -> None:
    def code(model: Code, x: Tensor) -> Tensor:
        if x.dtype == torch.bfloat16:
            raise RuntimeError("not on this device")
        return x

    with pytest.raises(TargetError, match=r"does not run in simulated arithmetic: not on this device\. Cap"):
        measured(code, tmp_path)
    assert list(tmp_path.iterdir()) == []


class Attends(nn.Module):
    """A model that attends once, fused or by a softmax between two products, through what `coded` does."""

    def __init__(self, *, is_fused: bool, coded: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.is_fused, self.coded = is_fused, coded
        self.k, self.v = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)
        for seed, layer in enumerate((self.k, self.v)):
            generator = torch.Generator().manual_seed(seed)
            layer.weight.data = torch.randn(32, 32, generator=generator) * 1.5 / 32**0.5

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (4, 8)).transpose(1, 2) for y in (x, self.k(x), self.v(x)))
        k, v = self.coded(k), self.coded(v)
        if self.is_fused:
            mixed = functional.scaled_dot_product_attention(q, k, v)
        else:
            mixed = torch.softmax(q @ k.mT / 8**0.5, -1, dtype=torch.float32).to(x.dtype) @ v
        return mixed.transpose(1, 2).flatten(-2)


def fp8_by_head(x: Tensor, *, read_by: float = 1.0) -> Tensor:
    scale = x.float().abs().amax((0, 2, 3), keepdim=True) / 448
    return ((x.float() / scale).to(torch.float8_e4m3fn).float() * scale * read_by).to(x.dtype)


@pytest.mark.parametrize("is_fused", [True, False])
def test_a_declared_cache_is_in_the_noise_and_a_scale_that_is_wrong_is_not(
    tmp_path: Path, is_fused: bool
) -> None:
    model = Attends(is_fused=is_fused)

    def furthest(coded: Callable[[Tensor], Tensor], recipe: Recipe) -> float:
        """Return the largest error of a candidate in standard deviations of the noise."""
        with torch.no_grad():
            made = Attends(is_fused=is_fused, coded=coded).bfloat16()(X.bfloat16())
            noise, _ = measured(lambda model, x: x, tmp_path, model=model, recipe=recipe)
            return float(((made.double() - model(X).double()).abs() / noise["outputs", ""].double()).max())

    declared = RECIPES["fp8-cache-by-head"]
    assert furthest(fp8_by_head, declared) < LAMBDA
    assert furthest(lambda x: x, declared) < LAMBDA
    assert furthest(fp8_by_head, EAGER) > LAMBDA
    assert furthest(partial(fp8_by_head, read_by=2.0), declared) > LAMBDA


class Mixes(nn.Module):
    """A model whose router weighs what batched experts made."""

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.softmax(x @ x.new_ones(32, 4) + x[..., :4], -1)
        made = torch.stack([x * (i + 1) for i in range(4)], -2)
        return (weights.unsqueeze(-2) @ made).squeeze(-2)


class AttendsAndMixes(Attends):
    """A model that does both."""

    def __init__(self) -> None:
        super().__init__(is_fused=True)
        self.mixer = Mixes()

    def forward(self, x: Tensor) -> Tensor:
        return self.mixer(x), super().forward(x)  # type: ignore[return-value]


def test_experts_that_a_router_weighs_are_no_values_of_a_cache(tmp_path: Path) -> None:
    with torch.no_grad():
        cached, eager = (
            measured(lambda: None, tmp_path, model=AttendsAndMixes(), recipe=recipe)[0]
            for recipe in (RECIPES["fp8-cache-by-head"], EAGER)
        )
    mixed, attended = (("outputs", path) for path in ("0", "1"))
    ratio = {
        key: float(cached[key].double().mean() / eager[key].double().mean()) for key in (mixed, attended)
    }
    assert ratio[mixed] == pytest.approx(1.0, rel=0.2)
    assert ratio[attended] > 2


def test_a_cache_that_no_code_reads_from_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(
        TargetError, match=r"declares a cache of int8 codes, .* no attention could be made out"
    ):
        measured(lambda model, x: x @ model.weight, tmp_path, recipe=RECIPES["int8-cache-by-head"])
