"""Parameters and buffers of the candidate, joined under the reference's names."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from validator.align.dims import parameter_dims
from validator.align.edges import JoinedEdge, join
from validator.align.mixtures import Mixtures
from validator.align.traces import View
from validator.capturing.digest import row_hashes
from validator.capturing.records import Parameter, RankCapture
from validator.errors import LayoutError, MismatchError
from validator.sharding.inference import Habits, UndecidedError
from validator.sharding.layout import Declared, Layout
from validator.sharding.plan import Plan
from validator.sharding.runs import Run

__all__ = ["JoinedParameters", "join_parameters"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedParameters:
    """Edges and candidate names by the reference's name, names without partner, and what did not fit.

    `missing` are those of the reference's names without partner that nothing of the candidate can stand for.
    """

    edges: Mapping[str, JoinedEdge]
    candidate_names: Mapping[str, str]
    unmatched: tuple[tuple[str, ...], tuple[str, ...]]
    missing: tuple[str, ...]
    problems: tuple[tuple[str, str], ...]


def join_parameters(
    *,
    cand: Sequence[RankCapture],
    ref: RankCapture,
    rename: Callable[[str], str | None],
    habits: Habits | None = None,
    layouts: Mapping[str, Layout] | None = None,
    mixtures: Mixtures | None = None,
) -> JoinedParameters:
    """Join every parameter and buffer that both sides have.

    Args:
        cand: every rank's capture.
        ref: the reference's.
        rename: the reference's name of a candidate's parameter, or None.
        habits: how the run splits its tensors, of which the parameters tell more; by default not known.
        layouts: what the target declares, by the candidate's module.
        mixtures: the reference's routers and experts; by default it has none.

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
    habits = habits or Habits()
    waiting = [name for name in ref.parameters if name in names]
    retried: set[str] = set()
    while waiting:
        name = waiting.pop(0)
        theirs, ours = ref.parameters[name], by_name[names[name]]
        shape = theirs.ref.meta.shape
        try:
            joined = join(
                {rank: parameter.ref for rank, parameter in ours.items()},
                path=name,
                shape=shape,
                dims_of=lambda shape, name: parameter_dims(
                    shape, experts=mixtures.of_parameter(name) if mixtures else None
                ),
                ref=None if any(p.row_hashes for p in (theirs, *ours.values())) else theirs.ref,
                name=name,
                declared=_declared(names[name], layouts or {}),
                habits=habits,
                side=names[name].rpartition(".")[2],
            )
            edge = replace(
                joined.edge,
                row_hashes=_row_hashes(joined.plan, ours),
                is_quantised=any(parameter.kind == "quantised" for parameter in ours.values()),
                has_two_scales=any(parameter.has_two_scales for parameter in ours.values()),
            )
            edges[name] = replace(joined, edge=edge)
        except LayoutError as error:
            if isinstance(error, UndecidedError) and name not in retried:
                # The same parameter of a later layer may tell.
                retried.add(name)
                waiting.append(name)
                continue
            if _is_vocabulary(name, ref):
                _require_rows(name, ours, shape)
            problems.append((name.rpartition(".")[0], f"{name}: {error}"))
    if len(problems) > len(edges):
        raise MismatchError(
            f"the candidate is another model: {len(problems)} of its {len(names)} parameters don't make up "
            f"the reference's; the first is {problems[0][1]}"
        )
    known = set(names.values())
    unmatched = tuple(name for name in by_name if name not in known)
    lacking = tuple(name for name in ref.parameters if name not in names)
    return JoinedParameters(
        edges=edges,
        candidate_names={new: names[new] for new in edges},
        unmatched=(lacking, unmatched),
        missing=_missing(lacking, cand, rename, [rename(name) or name for name in unmatched]),
        problems=tuple(problems),
    )


def _declared(name: str, layouts: Mapping[str, Layout]) -> Declared | None:
    module, _, leaf = name.rpartition(".")
    return layouts.get(module, Layout()).of(leaf)


def _missing(
    lacking: Sequence[str],
    cand: Sequence[RankCapture],
    rename: Callable[[str], str | None],
    unmatched: Sequence[str],
) -> tuple[str, ...]:
    """Return the parameters that the candidate lacks for sure, although it has their module.

    A parameter of its own in that module, below or around it may be the same under another name, or fused.
    """
    modules = {rename(name) for capture in cand for name in _captured_modules(capture)}

    def is_near(module: str, owner: str) -> bool:
        outer, inner = sorted((f"{name}." if name else "" for name in (module, owner)), key=len)
        return inner.startswith(outer)

    others = {name.rpartition(".")[0] for name in unmatched}
    owners = {name: name.rpartition(".")[0] for name in lacking}
    return tuple(
        name
        for name, module in owners.items()
        if module in modules and not any(is_near(module, other) for other in others)
    )


def _captured_modules(capture: RankCapture) -> set[str]:
    """Return the modules whose parameters the capture would hold: all, unless only some were selected."""
    recorded = {call.module for call in capture.calls}
    if all(name in recorded for name, info in capture.modules.items() if info.calls):
        return set(capture.modules)
    return recorded | {name.rpartition(".")[0] for name in capture.parameters}


def _row_hashes(plan: Plan, ours: Mapping[int, Parameter]) -> Callable[[View], tuple[str, ...]] | None:
    """Return what reads the rows' hashes; None where all values are stored or a row is not on one rank."""
    if plan.reduce is not None or all(parameter.row_hashes is None for parameter in ours.values()):
        return None
    others = slice(1 if len(plan.shape) > 1 else 0, None)
    whole = tuple((Run(local=range(size), logical=range(size)),) for size in plan.shape[others])
    filled = [holding for holding in plan.holdings if not holding.is_empty]
    if any(h.dims[others] != whole or h.shape[others] != plan.shape[others] for h in filled):
        return None
    return partial(_read_hashes, plan=plan, ours=ours)


def _read_hashes(view: View, *, plan: Plan, ours: Mapping[int, Parameter]) -> tuple[str, ...]:
    rows: dict[int, str] = {}
    # The ranks of the view come last: theirs are taken where several hold the same rows.
    for holding in sorted(plan.holdings, key=lambda h: (h.rank in view.ranks, -h.rank)):
        parameter = ours[holding.rank]
        hashes = parameter.row_hashes or row_hashes(parameter.ref.read())[0]
        if len(plan.shape) < 2:
            rows[0] = hashes[0]
            continue
        for run in () if holding.is_empty else holding.dims[0]:
            rows |= {row: hashes[own] for own, row in zip(run.local, run.logical, strict=True)}
    return tuple(rows[row] for row in sorted(rows))


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
