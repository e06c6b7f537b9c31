"""Quantised weights that lie on several ranks, as DTensors have them."""

from collections.abc import Mapping
from functools import partial

import pytest
import torch
from torch import Tensor

from tests.quantised.checkpoints import encode
from validator.align.parameters import join_parameters
from validator.align.traces import View
from validator.capturing.digest import row_hashes
from validator.capturing.records import Mesh, Parameter, Placement, RankCapture, TensorMeta, TensorRef
from validator.errors import CaptureError
from validator.quantised.captures import with_values
from validator.quantised.formats import dequantised, quantised_weights
from validator.quantised.reading import reading_steps
from validator.quantised.rows import differing_coded_rows

MESH = Mesh(axes=("tp",), shape=(2,), ranks=(0, 1))
WHOLE = View(ranks=(0, 1))


def part(
    tensor: Tensor,
    rank: int,
    dim: int | None,
    *,
    name: str = "",
    is_hashed: bool = False,
    is_placed: bool = True,
) -> Parameter:
    """Return a rank's half of a tensor along `dim`, or all of it, as a DTensor or one that says no more."""
    local = tensor if dim is None else tensor.chunk(2, dim)[rank].contiguous()
    kind = Placement(kind="replicate") if dim is None else Placement(kind="shard", dim=dim)
    hashes, checksum = row_hashes(local)
    meta = TensorMeta(
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(local.shape),
        checksum=checksum,
        placements=(kind,) if is_placed else None,
        mesh=MESH if is_placed else None,
        global_shape=tuple(tensor.shape) if is_placed else None,
    )
    ref = TensorRef(meta=meta, read=local.clone)
    return Parameter(name=name, kind="parameter", ref=ref, row_hashes=hashes if is_hashed else None)


def capture(rank: int, parts: Mapping[str, Parameter]) -> RankCapture:
    return RankCapture(rank=rank, modules={}, calls=(), collectives=(), parameters=dict(parts))


def reference(weights: Mapping[str, Tensor]) -> RankCapture:
    made = {}
    for name, weight in weights.items():
        meta = TensorMeta(dtype="float32", shape=tuple(weight.shape), checksum="")
        made[name] = Parameter(name=name, kind="parameter", ref=TensorRef(meta=meta, read=weight.clone))
    return capture(0, made)


def whole(tensors: Mapping[str, Tensor]) -> Tensor:
    dtypes = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()}
    (weight,) = quantised_weights(dtypes)
    return dequantised(weight.kind, {what: tensors[name] for what, name in weight.parts.items()})


def encoded(fmt: str) -> dict[str, Tensor]:
    torch.manual_seed(0)
    if fmt == "mxfp4":
        blocks = torch.randint(256, (4, 6, 8, 16), dtype=torch.uint8)
        return {
            "weight_blocks": blocks,
            "weight_scales": torch.randint(120, 130, (4, 6, 8), dtype=torch.uint8),
        }
    return encode(torch.randn(64, 128), fmt)


@pytest.mark.parametrize(
    ("fmt", "dim"),
    [("fp8", 0), ("fp8", 1), ("int4", 0), ("int4", 1), ("int8", 0), ("mxfp4", 0), ("mxfp4", 1), ("mxfp4", 2)],
)
def test_shards_are_put_together_to_the_whole_weight(fmt: str, dim: int) -> None:
    tensors = encoded(fmt)
    split = {name: None if name.endswith("_shape") else dim for name in tensors}
    held = [
        capture(rank, {f"m.{name}": part(x, rank, split[name]) for name, x in tensors.items()})
        for rank in (0, 1)
    ]
    cand = with_values(held, weights="float32")
    expected = whole(tensors)
    joined = join_parameters(cand=cand, ref=reference({"m.weight": expected}), rename=lambda name: name)
    edge = joined.edges["m.weight"].edge
    assert edge.is_quantised
    assert torch.equal(edge.read(WHOLE).data, expected)
    with reading_steps() as steps:
        half = edge.read(WHOLE).data
    assert len(steps.formats) == 2
    assert half.shape == expected.shape
    assert bool((half >= 0).all())


def plain_halves(weights: Mapping[str, tuple[Mapping[str, Tensor], int]]) -> list[RankCapture]:
    """Return two ranks' captures of weights that are split along a dim, none of them a DTensor."""
    return [
        capture(
            rank,
            {
                f"{module}.{name}": part(x, rank, None if name.endswith("_shape") else dim, is_placed=False)
                for module, (tensors, dim) in weights.items()
                for name, x in tensors.items()
            },
        )
        for rank in (0, 1)
    ]


@pytest.mark.parametrize("fmt", ["int4", "packed-int8"])
def test_plain_tensors_of_packed_codes_are_put_together_along_rows_and_columns(fmt: str) -> None:
    weights = {"up": (encoded(fmt), 0), "down": (encode(torch.randn(128, 64), fmt), 1)}
    expected = {f"{module}.weight": whole(tensors) for module, (tensors, _) in weights.items()}
    joined = join_parameters(
        cand=with_values(plain_halves(weights), weights="float32"),
        ref=reference(expected),
        rename=lambda name: name,
    )
    assert not joined.problems
    for name, values in expected.items():
        assert torch.equal(joined.edges[name].edge.read(WHOLE).data, values), name


def test_codes_whose_width_nothing_tells_are_left_unread() -> None:
    weights = {
        "eight": (encoded("packed-int8"), 0),
        "four": (encoded("int4"), 1),
        "unsure": (encoded("int4"), 0),
    }
    made = with_values(plain_halves(weights))[0].parameters
    assert made["eight.weight"].ref.read().shape == (32, 128)
    assert made["four.weight"].ref.read().shape == (64, 64)
    with pytest.raises(
        CaptureError, match="may have codes of 4 bits, or codes of 8 bits of some of the columns"
    ):
        made["unsure.weight"].ref.read()


def test_scales_that_lie_elsewhere_than_their_codes_leave_a_weight_unread() -> None:
    tensors = encoded("fp8")
    parts = {
        f"m.{name}": part(x, 0, 0 if name == "weight" else None, name=f"m.{name}")
        for name, x in tensors.items()
    }
    weight = with_values([capture(0, parts)])[0].parameters["m.weight"]
    with pytest.raises(CaptureError, match=r"m.weight_scale_inv is not placed on the ranks as m.weight is"):
        weight.ref.read()


@pytest.mark.parametrize("fmt", ["fp8", "int4", "int4-asymmetric"])
def test_hashes_of_shards_are_those_of_the_whole(fmt: str) -> None:
    tensors = encoded(fmt)
    wrong = dict(tensors)
    name = next(name for name in tensors if "scale" in name)
    wrong[name] = tensors[name].clone()
    wrong[name][-1] *= 2
    said = []
    for held in (tensors, wrong):
        rows: list[str] = []
        for rank in (0, 1):
            parts = {
                f"m.{name}": part(x, rank, None if name.endswith("_shape") else 0, is_hashed=x.numel() > 100)
                for name, x in held.items()
            }
            weight = with_values([capture(rank, parts)])[0].parameters["m.weight"]
            assert weight.row_hashes is not None
            rows += weight.row_hashes
        said.append(partial(differing_coded_rows, tensors)(rows))
    assert said[0] == []
    assert said[1] == (list(range(32, 64)) if fmt == "fp8" else [63])
