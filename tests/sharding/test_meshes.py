"""The mesh of a run: as declared, or as all ranks' DTensors have it."""

from dataclasses import replace

import pytest
import torch

from tests.align.build import tensor_ref
from validator.capturing.records import Mesh, Parameter, RankCapture
from validator.errors import LayoutError
from validator.sharding.meshes import declared_mesh, recorded_mesh

WORLD = Mesh(axes=("dp", "tp"), shape=(2, 1), ranks=(0, 1))


def captures(*meshes: Mesh | None) -> list[RankCapture]:
    """Two ranks with a parameter on each of these meshes."""
    ref = tensor_ref(torch.zeros(1))
    refs = {f"p{i}": replace(ref, meta=replace(ref.meta, mesh=mesh)) for i, mesh in enumerate(meshes)}
    parameters = {name: Parameter(name=name, kind="parameter", ref=ref) for name, ref in refs.items()}
    return [
        RankCapture(rank=rank, modules={}, calls=(), collectives=(), parameters=parameters) for rank in (0, 1)
    ]


def test_ranks_lie_row_major_on_the_declared_axes() -> None:
    assert declared_mesh({"dp": 2, "tp": 1}, ranks=[1, 0]) == WORLD


def test_a_mesh_of_more_ranks_than_ran_is_an_error() -> None:
    with pytest.raises(LayoutError, match=r"mesh \{'dp': 2, 'tp': 2\} has 2 \* 2 ranks, .* ran on 2"):
        declared_mesh({"dp": 2, "tp": 2}, ranks=[0, 1])


def test_the_mesh_of_all_ranks_is_taken() -> None:
    alone = Mesh(axes=("tp",), shape=(1,), ranks=(0,))
    assert recorded_mesh(captures(None, WORLD, alone)) == WORLD


def test_two_meshes_of_all_ranks_tell_nothing() -> None:
    other = Mesh(axes=("ep",), shape=(2,), ranks=(0, 1))
    assert recorded_mesh(captures(WORLD, other)) is None
    assert recorded_mesh(captures(None)) is None
