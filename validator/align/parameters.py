"""Parameters and buffers of the candidate, joined under the reference's names."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from validator.align.dims import parameter_dims
from validator.align.edges import JoinedEdge, join
from validator.capturing.records import Parameter, RankCapture
from validator.errors import LayoutError, MismatchError

__all__ = ["JoinedParameters", "join_parameters"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedParameters:
    """Edges and candidate names by the reference's name, names without partner, and what did not fit."""

    edges: Mapping[str, JoinedEdge]
    candidate_names: Mapping[str, str]
    unmatched: tuple[tuple[str, ...], tuple[str, ...]]
    problems: tuple[tuple[str, str], ...]


def join_parameters(
    *, cand: Sequence[RankCapture], ref: RankCapture, rename: Callable[[str], str | None]
) -> JoinedParameters:
    """Join every parameter and buffer that both sides have.

    Args:
        cand: every rank's capture.
        ref: the reference's.
        rename: the reference's name of a candidate's parameter, or None.

    Raises:
        MismatchError: the vocabularies differ in size, or most parameters have other shapes.
    """
    by_name: dict[str, dict[int, Parameter]] = {}
    for capture in cand:
        for name, parameter in capture.parameters.items():
            by_name.setdefault(name, {})[capture.rank] = parameter
    names = {new: name for name in by_name if (new := rename(name)) in ref.parameters}
    edges: dict[str, JoinedEdge] = {}
    problems: list[tuple[str, str]] = []
    for name, theirs in ref.parameters.items():
        if name not in names:
            continue
        ours = by_name[names[name]]
        shape = theirs.ref.meta.shape
        try:
            edges[name] = join(
                {rank: parameter.ref for rank, parameter in ours.items()},
                path=name,
                shape=shape,
                dims_of=lambda shape, _: parameter_dims(shape),
            )
        except LayoutError as error:
            if _is_vocabulary(name, ref):
                _require_rows(name, ours, shape)
            problems.append((name.rpartition(".")[0], f"{name}: {error}"))
    if len(problems) > len(edges):
        raise MismatchError(
            f"the candidate is another model: {len(problems)} of its {len(names)} parameters don't make up "
            f"the reference's; the first is {problems[0][1]}"
        )
    known = set(names.values())
    return JoinedParameters(
        edges=edges,
        candidate_names={new: names[new] for new in edges},
        unmatched=(
            tuple(name for name in ref.parameters if name not in names),
            tuple(name for name in by_name if name not in known),
        ),
        problems=tuple(problems),
    )


def _is_vocabulary(name: str, ref: RankCapture) -> bool:
    owner = name.rpartition(".")[0]
    module = ref.modules.get(owner)
    return owner.rpartition(".")[2] == "lm_head" or (module is not None and module.type.endswith("Embedding"))


def _require_rows(name: str, ours: Mapping[int, Parameter], shape: Sequence[int]) -> None:
    """Raise if what keeps these tables from being joined is their number of rows."""
    metas = {rank: parameter.ref.meta for rank, parameter in ours.items()}
    shapes = {rank: meta.global_shape or meta.shape for rank, meta in metas.items()}
    if any(len(other) != 2 or other[1] != shape[-1] for other in shapes.values()):
        return
    if len(shapes) == 1 or all(meta.global_shape for meta in metas.values()):
        rows = f"{shapes[min(shapes)][0]} rows"
    else:
        rows = ", ".join(f"{other[0]} rows on rank {rank}" for rank, other in shapes.items())
    raise MismatchError(
        f"different vocabularies: {name} has {rows} in the candidate and {shape[0]} in the reference; "
        "build both from one checkpoint and tokenizer"
    )
