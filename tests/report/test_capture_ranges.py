"""Ranges of a capture's tensors, held to what its values say themselves."""

import math
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch

from tests.align.build import tensor_ref
from tests.report.captures import Near, Overflowing, Tiny, WithNan, captured
from validator.capturing.files import StoredValue
from validator.capturing.manifest import Manifest, Proof, ProofStatus
from validator.capturing.reader import Capture
from validator.capturing.records import Statistics
from validator.numerics.formats import FORMATS
from validator.report.capture_ranges import CaptureRanges, TensorRange, ranges_of
from validator.report.capture_values import has_mask_infinities, shares


def find(ranges: CaptureRanges, module: str, side: str = "output", path: str | None = None) -> TensorRange:
    return next(
        tensor
        for tensor in ranges.tensors
        if (tensor.module, tensor.side) == (module, side) and path in (None, tensor.path)
    )


def test_a_tensor_has_the_statistics_of_all_its_calls(tmp_path: Path) -> None:
    capture = captured(tmp_path / "run", calls=3)
    found = find(ranges_of(capture), "layers.0.up")
    values = torch.stack([c.outputs[""].read() for c in capture.rank(0).calls if c.module == "layers.0.up"])
    exact = values.double()
    assert (found.calls, found.elements, found.dtype) == (3, exact.numel(), "float16")
    assert found.shape == tuple(values.shape[1:])
    numbers = found.statistics
    assert (numbers.min, numbers.max, numbers.nan, numbers.inf) == (exact.min(), exact.max(), 0, 0)
    assert numbers.mean == pytest.approx(exact.mean().item(), rel=1e-12)
    assert numbers.rms == pytest.approx(exact.square().mean().sqrt().item(), rel=1e-12)


def test_parameters_come_first_and_then_the_order_of_the_run(tmp_path: Path) -> None:
    sides = [tensor.side for tensor in ranges_of(captured(tmp_path / "run")).tensors]
    assert "parameter" not in sides[sides.index("input") :]
    modules = [t.module for t in ranges_of(captured(tmp_path / "again")).tensors if t.side == "output"]
    assert modules.index("layers.0.down") < modules.index("layers.0") < modules.index("layers.1.up")
    assert modules[-1] == ""


def test_a_healthy_run_has_neither_nan_nor_infinity_besides_its_mask(tmp_path: Path) -> None:
    ranges = ranges_of(captured(tmp_path / "run"))
    assert ranges.first_nan is None
    assert ranges.first_inf is None
    assert [t.module for t in ranges.tensors if t.is_mask] == ["layers.0", "layers.1", "layers.2"]
    assert not any(tensor.is_near_overflow or tensor.is_near_underflow for tensor in ranges.tensors)


@pytest.mark.parametrize(("level", "index"), [("full", (0, 3, 2)), ("stats", None)])
def test_the_first_nan_is_where_it_was_made(
    tmp_path: Path, level: str, index: tuple[int, ...] | None
) -> None:
    first = ranges_of(captured(tmp_path / "run", WithNan, level=level)).first_nan
    assert first is not None
    # `down` is changed in place behind its own output, which was copied before.
    assert (first.module, first.side, first.path, first.call) == ("layers.1", "output", "", 0)
    assert first.index == index


@pytest.mark.parametrize("level", ["full", "stats"])
def test_the_first_infinity_is_where_it_was_made_and_comes_before_the_nan(tmp_path: Path, level: str) -> None:
    ranges = ranges_of(captured(tmp_path / "run", Overflowing, level=level))
    assert ranges.first_inf is not None
    assert ranges.first_nan is not None
    assert (ranges.first_inf.module, ranges.first_inf.side) == ("layers.1", "output")
    assert (ranges.first_nan.module, ranges.first_nan.side) == ("layers.2.up", "output")
    assert ranges.first_inf.order < ranges.first_nan.order


def test_what_lies_within_a_factor_of_two_of_the_largest_number_is_near_overflow(tmp_path: Path) -> None:
    ranges = ranges_of(captured(tmp_path / "run", Near))
    found = find(ranges, "layers.1")
    assert found.is_near_overflow
    assert found.headroom_bits == pytest.approx(math.log2(65504 / found.statistics.max))
    assert not find(ranges, "layers.0").is_near_overflow
    assert ranges.first_inf is None


def test_elements_below_the_smallest_normal_value_are_counted_where_they_weigh(tmp_path: Path) -> None:
    ranges = ranges_of(captured(tmp_path / "run", Tiny))
    scaled = find(ranges, "layers.1.scale")
    assert scaled.is_near_underflow
    assert (scaled.zeros, scaled.subnormals) == (0.5, 0.5)
    assert find(ranges, "layers.1").subnormals is None


def test_on_request_they_are_counted_everywhere(tmp_path: Path) -> None:
    capture = captured(tmp_path / "run", Tiny)
    relu = next(c.inputs["input"].read() for c in capture.rank(0).calls if c.module == "layers.0.down")
    found = find(ranges_of(capture, counts=True), "layers.0.down", "input")
    assert found.zeros == (relu == 0).double().mean().item() > 0.2
    assert found.subnormals == ((relu != 0) & (relu.abs() < 2.0**-14)).double().mean().item()
    assert find(ranges_of(capture), "layers.0.down", "input").zeros is None


def test_of_a_healthy_run_no_value_is_read_but_the_masks_bits_once(tmp_path: Path) -> None:
    capture = captured(tmp_path / "run")
    with (
        mock.patch.object(StoredValue, "blocks", autospec=True, side_effect=StoredValue.blocks) as blocks,
        mock.patch.object(StoredValue, "__call__", side_effect=AssertionError("a value was read")),
    ):
        ranges_of(capture)
    assert [call.args[0].shape for call in blocks.call_args_list] == [(4, 4)]


def test_of_several_ranks_the_rank_is_named(tmp_path: Path) -> None:
    healthy, faulty = captured(tmp_path / "a").rank(0), captured(tmp_path / "b", WithNan).rank(0)
    proof = Proof(status=ProofStatus.SKIPPED, reason="put together here")
    both = Capture(
        path=tmp_path,
        manifest=Manifest(world_size=2, ranks=(0, 1), proof=proof),
        ranks=(0, 1),
        complete=True,
        _read={0: healthy, 1: replace(faulty, rank=1)},
    )
    ranges = ranges_of(both)
    assert ranges.first_nan is not None
    assert (ranges.first_nan.rank, ranges.first_nan.module) == (1, "layers.1")
    assert {tensor.rank for tensor in ranges.tensors if tensor.statistics.nan} == {1}
    assert [t.rank for t in ranges.tensors if (t.module, t.side) == ("head", "output")] == [0, 1]


def tensor(dtype: str, **numbers: float) -> TensorRange:
    statistics = Statistics(
        **{"min": -1.0, "max": 1.0, "mean": 0.0, "rms": 0.5, "nan": 0, "inf": 0} | numbers
    )
    return TensorRange(
        rank=0,
        module="m",
        side="output",
        path="",
        dtype=dtype,
        shape=(4,),
        calls=1,
        elements=4,
        statistics=statistics,
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_mask_that_is_written_as_the_smallest_number_is_not_near_overflow(dtype: str) -> None:
    limit = torch.finfo(getattr(torch, dtype)).max
    assert not tensor(dtype, min=-limit, max=0.0).is_near_overflow
    assert tensor(dtype, min=-limit * 0.99, max=0.0).is_near_overflow
    assert tensor(dtype, max=limit).is_near_overflow


def test_formats_that_are_used_with_scales_reach_their_limits_in_good_health() -> None:
    full = tensor("float8_e4m3fn", max=448.0)
    assert full.headroom_bits == 0
    assert not full.is_near_overflow


def test_integers_have_no_limits_and_zeros_no_headroom() -> None:
    assert tensor("int64", max=1e18).headroom_bits is None
    assert tensor("float16", min=0.0, max=0.0, rms=0.0).headroom_bits is None


@pytest.mark.parametrize(
    ("least", "most", "zeros", "subnormals"),
    [(0.0, 0.0, 1.0, 0.0), (1.0, 2.0, 0.0, 0.0), (-2.0, -1.0, 0.0, 0.0), (1e-6, 1.0, 0.0, None)],
)
def test_extremes_tell_shares_without_values(
    least: float, most: float, zeros: float | None, subnormals: float | None
) -> None:
    numbers = replace(tensor("float16").statistics, min=least, max=most)
    assert shares(numbers, FORMATS["float16"], []) == (zeros, subnormals)


@pytest.mark.parametrize(("sign", "is_mask"), [(-1, True), (1, False)])
def test_negative_infinities_alone_are_a_masks(sign: int, is_mask: bool) -> None:
    ref = tensor_ref(torch.tensor([0.0, sign * torch.inf, 5.0]))
    numbers = Statistics(min=0, max=5, mean=2.5, rms=3.5, nan=0, inf=1)
    assert has_mask_infinities(ref, numbers) is is_mask
