"""Operators inside of chosen modules: which are recorded, what they were given, and what they made."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from validator.capturing.manifest import ProofStatus
from validator.capturing.reader import open_capture
from validator.capturing.records import Call, Operator, Origin, OriginKind
from validator.capturing.session import capture, capture_run
from validator.errors import CaptureError


@torch.library.custom_op("validator_tests::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    return x * 2


@torch.library.custom_op("validator_tests::fill_with_twice", mutates_args=("out",))
def fill_with_twice(out: Tensor, x: Tensor) -> None:
    out.copy_(x * 2)


class Child(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"half": x / 2}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(6.0).reshape(2, 3))
        self.child = Child()
        self.outside = [torch.tensor([1.0, 2.0])]

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight.t()
        y = torch.cat((y, self.child(y)["half"]), dim=-1)
        y.mul_(3.0)
        z = y.view(-1)[:2] + self.outside[0]
        kept = torch.empty_like(z)
        fill_with_twice(kept, doubled(z))
        return kept.relu().sum()


def recorded(
    path: Path, model: nn.Module, *given: Tensor, operators: str = "", **options: object
) -> tuple[Call, ...]:
    with torch.no_grad(), capture(model, path / "c.h5", operators=operators, **options):  # type: ignore[arg-type]
        model(*given)
    return open_capture(path / "c.h5").rank(0).calls


def names(call: Call) -> list[str]:
    return [operator.name for operator in call.operators]


def named(call: Call, name: str) -> Operator:
    return next(operator for operator in call.operators if operator.name == name)


def test_operators_belong_to_the_innermost_recorded_call(tmp_path: Path) -> None:
    root, child = recorded(tmp_path, Model(), torch.ones(1, 3), operators="*")
    assert names(child) == ["aten.div.Tensor"]
    assert "aten.div.Tensor" not in names(root)
    assert names(root)[:4] == ["aten.t.default", "aten.mm.default", "aten.cat.default", "aten.mul_.Tensor"]


def test_what_a_module_runs_that_is_not_recorded_is_its_callers(tmp_path: Path) -> None:
    (root,) = recorded(tmp_path, Model(), torch.ones(1, 3), operators="*", exclude="child")
    assert "aten.div.Tensor" in names(root)


@pytest.mark.parametrize("operators", ["child", ["chi*"]])
def test_only_chosen_modules_are_looked_into(operators: str, tmp_path: Path) -> None:
    root, child = recorded(tmp_path, Model(), torch.ones(1, 3), operators=operators)
    assert root.operators == ()
    assert names(child) == ["aten.div.Tensor"]


def test_each_tensor_says_where_it_comes_from(tmp_path: Path) -> None:
    model = Model()
    root, child = recorded(tmp_path, model, torch.ones(1, 3), operators="*")
    transposed = named(root, "aten.t.default").arguments["self"]
    assert (transposed.kind, transposed.name) == (OriginKind.PARAMETER, "weight")
    assert torch.equal(transposed.ref.read(), model.weight)
    product = named(root, "aten.mm.default").arguments
    assert (product["self"].kind, product["self"].name) == (OriginKind.INPUT, "x")
    assert (product["mat2"].kind, product["mat2"].operator) == (OriginKind.OPERATOR, 0)
    joined = named(root, "aten.cat.default").arguments
    assert [x.kind for x in joined["tensors"]] == [OriginKind.OPERATOR, OriginKind.CHILD]
    assert joined["tensors"][1].name == "half"
    assert torch.equal(joined["tensors"][1].ref.read(), child.outputs["half"].read())
    assert joined["dim"] == -1
    constant = named(root, "aten.add.Tensor").arguments["other"]
    assert constant.kind is OriginKind.CONSTANT
    assert torch.equal(constant.ref.read(), torch.tensor([1.0, 2.0]))


def test_results_are_kept_as_they_were_when_the_operator_returned(tmp_path: Path) -> None:
    root, _ = recorded(tmp_path, Model(), torch.ones(1, 3), operators="*")
    (joined,) = named(root, "aten.cat.default").results
    (tripled,) = named(root, "aten.mul_.Tensor").results
    assert torch.equal(tripled.ref.read(), 3 * joined.ref.read())  # type: ignore[union-attr]


def test_a_view_has_no_values_of_its_own_and_what_was_not_written_has_none(tmp_path: Path) -> None:
    root, _ = recorded(tmp_path, Model(), torch.ones(1, 3), operators="*")
    for name in ("aten.t.default", "aten.view.default", "aten.slice.Tensor", "aten.empty_like.default"):
        (result,) = named(root, name).results
        assert result.ref is None
        assert result.dtype == "float32"
    assert named(root, "aten.slice.Tensor").results[0].shape == (2,)


def test_a_foreign_kernel_is_one_operator_also_where_it_only_writes(tmp_path: Path) -> None:
    root, _ = recorded(tmp_path, Model(), torch.ones(1, 3), operators="*")
    assert names(root).count("validator_tests.doubled.default") == 1
    (made,) = named(root, "validator_tests.doubled.default").results
    (written,) = named(root, "validator_tests.fill_with_twice.default").results
    assert torch.equal(written.ref.read(), 2 * made.ref.read())  # type: ignore[union-attr]
    kept = named(root, "aten.relu.default").arguments["self"]
    assert isinstance(kept, Origin)
    assert root.operators[kept.operator].name == "validator_tests.fill_with_twice.default"


def test_looking_inside_changes_no_bit(tmp_path: Path) -> None:
    model = Model()
    summary = capture_run(lambda: model(torch.ones(1, 3)), model, tmp_path / "c.h5", operators="*")
    assert summary.proof.status is ProofStatus.IDENTICAL


def test_without_the_option_nothing_is_looked_into(tmp_path: Path) -> None:
    model = Model()
    with torch.no_grad(), capture(model, tmp_path / "c.h5"):
        model(torch.ones(1, 3))
    assert all(call.operators == () for call in open_capture(tmp_path / "c.h5").rank(0).calls)


def test_each_call_has_its_own_operators(tmp_path: Path) -> None:
    model = Child()
    with torch.no_grad(), capture(model, tmp_path / "c.h5", operators="*"):
        for factor in (1.0, 2.0):
            model(torch.full((2,), factor))
    first, second = open_capture(tmp_path / "c.h5").rank(0).calls
    assert torch.equal(first.operators[0].results[0].ref.read(), torch.full((2,), 0.5))  # type: ignore[union-attr]
    assert torch.equal(second.operators[0].results[0].ref.read(), torch.full((2,), 1.0))  # type: ignore[union-attr]


def test_a_pattern_that_matches_no_module_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="'attention' matches no module of this model"):
        recorded(tmp_path, Model(), torch.ones(1, 3), operators="attention")
