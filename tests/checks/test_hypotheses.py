"""Signatures of edges of real code: each search finds its fault there, and what is healthy has none."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.checks.build import check
from validator.checks.findings import Finding, Verdict
from validator.emulate import Emulation, emulate_module
from validator.numerics.formats import FORMATS
from validator.numerics.rounding import round_nearest, round_toward_zero

WIDTH = 64
Change = Callable[[Tensor], Tensor]


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Projection(nn.Module):
    """A projection, and a `change` of its result before it is rounded."""

    def __init__(self, change: Change | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)
        self.linear.weight.data = seeded(WIDTH, WIDTH, seed=1) / WIDTH**0.5
        if change is not None:
            layer = self.linear

            def forward(given: Tensor) -> Tensor:
                y = functional.linear(given.double(), layer.weight.double())
                return change(y).to(given.dtype)

            layer.forward = forward  # type: ignore[method-assign]

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def found(candidate: nn.Module, dtype: torch.dtype) -> list[Finding]:
    x = seeded(2, 64, WIDTH).to(dtype)
    return list(check(Projection(), candidate.to(dtype), {"x": x}).findings)


def described(candidate: nn.Module, dtype: torch.dtype = torch.bfloat16) -> tuple[str, dict[str, object]]:
    (finding,) = found(candidate, dtype)
    assert finding.module == "linear"
    assert finding.signature is not None
    return finding.signature.kind, dict(finding.signature.parameters)


def test_rounding_toward_zero() -> None:
    kind, parameters = described(Projection(lambda y: round_toward_zero(y, FORMATS["bfloat16"])))
    assert kind == "truncation"
    assert parameters["gain"] == pytest.approx(-0.65 * 2**-8, rel=0.1)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda y: y.clamp(-1, 1), "clamp"),
        (lambda y: -y, "sign"),
        (lambda y: round_nearest(y, FORMATS["float8_e4m3fn"]), "narrower_format"),
        (lambda y: torch.where(torch.arange(64)[:, None] < 48, y, 0.0), "zeros"),
        (lambda y: y.roll(1, 1), "shifted"),
        (lambda y: torch.where(torch.arange(64)[:, None] < 48, y, y + 0.3 * y.flip(-1)), "tokens"),
        (lambda y: torch.where(torch.arange(WIDTH) == 7, torch.nan, y), "not_finite"),
    ],
    ids=["clamp", "sign", "narrower format", "zeros", "shifted", "tokens", "NaN"],
)
def test_a_change_of_the_result(change: Change, kind: str) -> None:
    assert described(Projection(change))[0] == kind


def test_a_factor_that_hardly_any_element_shows() -> None:
    (finding,) = found(Projection(lambda y: y * 1.0005), torch.bfloat16)
    assert finding.signature is not None
    assert finding.signature.kind == "factor"
    assert finding.signature.parameters["factor"] == pytest.approx(1.0005, abs=1e-4)


@pytest.mark.parametrize(
    ("factors", "name"), [("tf32", "tf32"), ("bfloat16", "bfloat16"), ("float16", "tf32")]
)
def test_factors_of_a_float32_product_that_were_rounded(factors: str, name: str) -> None:
    """Where nothing over- or underflows, float16 has the values of TF32."""
    candidate = Projection()
    emulate_module(candidate.linear, Emulation(factors=factors))
    (finding,) = found(candidate, torch.float32)
    assert finding.verdict is Verdict.UNDECLARED_PRECISION
    assert finding.signature is not None
    assert (finding.signature.kind, finding.signature.parameters) == ("narrow_factors", {"format": name})
    assert finding.signature.residual_ulp is not None
    assert finding.signature.residual_ulp < 10


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_what_is_rounded_once_to_nearest_is_not_found(dtype: torch.dtype) -> None:
    assert found(Projection(lambda y: y), dtype) == []


class Residual(nn.Module):
    """A projection beside which its input, and a second projection, are added some number of times."""

    def __init__(self, inputs: int = 1, shared: int = 1) -> None:
        super().__init__()
        self.linear, self.other = Projection().linear, nn.Linear(WIDTH, WIDTH, bias=False)
        self.other.weight.data = seeded(WIDTH, WIDTH, seed=2) / WIDTH**0.5
        self.inputs, self.shared = inputs, shared

    def forward(self, x: Tensor) -> Tensor:
        return self.inputs * x + self.linear(x) + self.shared * self.other(x)


@pytest.mark.parametrize(
    ("given", "kind", "parameters"),
    [
        ({"inputs": 0}, "missing_addend", {"of": "the input x"}),
        ({"shared": 0}, "missing_addend", {"of": "what other returned"}),
        ({"shared": 2}, "repeated_addend", {"of": "what other returned", "times": 1}),
        ({"shared": 4}, "repeated_addend", {"of": "what other returned", "times": 3}),
        ({"inputs": 2, "shared": 2}, None, {}),
        ({"shared": 1.5}, None, {}),
    ],
    ids=str,
)
def test_what_is_added_too_often_or_not_at_all(
    given: dict[str, int], kind: str | None, parameters: dict[str, object]
) -> None:
    x = seeded(2, 16, WIDTH).bfloat16()
    (finding,) = check(Residual(), Residual(**given).bfloat16(), {"x": x}).findings
    signature = finding.signature
    if kind is None:
        assert signature is None
    else:
        assert signature is not None
        assert (signature.kind, signature.parameters) == (kind, parameters)
