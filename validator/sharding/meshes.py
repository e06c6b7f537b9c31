"""The mesh that a layout's axes are on: the target's own, or the one that DTensors were recorded with."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod

from validator.capturing.records import Mesh, RankCapture, TensorMeta, TensorRef
from validator.errors import LayoutError

__all__ = ["declared_mesh", "recorded_mesh"]


def declared_mesh(sizes: Mapping[str, int], *, ranks: Sequence[int]) -> Mesh:
    """Lay ranks along axes of these sizes, row-major.

    Raises:
        LayoutError: there are more or fewer ranks.
    """
    if prod(sizes.values()) != len(ranks):
        product = " * ".join(map(str, sizes.values()))
        raise LayoutError(f"mesh {dict(sizes)} has {product} ranks, and the candidate ran on {len(ranks)}")
    return Mesh(axes=tuple(sizes), shape=tuple(sizes.values()), ranks=tuple(sorted(ranks)))


def recorded_mesh(captures: Iterable[RankCapture]) -> Mesh | None:
    """Return the mesh of all ranks that their DTensors were on, or None where there is none, or several."""
    captures = list(captures)
    ranks = {capture.rank for capture in captures}
    meshes = {meta.mesh for capture in captures for meta in _metas(capture)}
    whole = [mesh for mesh in meshes if mesh is not None and set(mesh.ranks) == ranks]
    return whole[0] if len(whole) == 1 else None


def _metas(capture: RankCapture) -> Iterator[TensorMeta]:
    for parameter in capture.parameters.values():
        yield parameter.ref.meta
    for call in capture.calls:
        for value in (*call.inputs.values(), *call.outputs.values()):
            if isinstance(value, TensorRef):
                yield value.meta
