"""Judge a candidate edge by edge, with the model of the reference whose run a baseline holds."""

from collections.abc import Iterator

from torch import Tensor, nn

from validator.capturing.digest import row_hashes
from validator.capturing.reader import Capture
from validator.errors import MismatchError
from validator.judging import judged
from validator.judging_thin import is_thin
from validator.numerics.recipes import RECIPES, Recipe
from validator.report.result import Result
from validator.runs import feed
from validator.target import Target

__all__ = ["judge_by_edge", "require_whole"]


def require_whole(ref: Capture, name: str) -> None:
    """Refuse a baseline that holds samples of tensors: a module is computed again on whole inputs.

    Raises:
        MismatchError: it does.
    """
    if is_thin(ref.manifest):
        raise MismatchError(
            f"--edges: the baseline {name!r} holds samples of tensors (level {ref.manifest.level}), and each "
            "module is judged on whole ones: leave it out, or record the baseline again with --level full"
        )


def judge_by_edge(*, target: Target, ref: Capture, cand: Capture, name: str) -> Result:
    """Judge every edge of a candidate's run by what its own module, in float64, makes of its own inputs.

    Args:
        target: whose reference is built, and not run as a whole.
        ref: the stored run of the reference.
        cand: the candidate's.
        name: of the baseline.

    Raises:
        MismatchError: the target's reference has other weights than the stored one, or the target no longer
            declares the recipe.
        ValidatorError: it can't be built, or the two sides can't be compared.
    """
    recipe = _recorded_recipe(target, ref, name)
    model, inputs = target.reference(), target.inputs()
    _require_stored_weights(model, ref, target, name)
    return judged(
        reference=model,
        ref=ref,
        cand=cand,
        run=lambda reference: feed(target, inputs, reference),
        recipe=recipe,
        names=target.names,
        layout=target.layout,
        mesh=target.mesh,
        about={"reference": {"source": target.source}, "candidate": {"source": target.source}},
        progress=lambda stage, done, total: None,
    )


def _recorded_recipe(target: Target, ref: Capture, name: str) -> Recipe | None:
    """Return what the device may round as the stored run declared it: by a name, or by the target's own."""
    recorded = ref.manifest.recipe
    if recorded is None or (target.recipe is not None and target.recipe.name == recorded):
        return target.recipe
    if recorded not in RECIPES:
        own = "declares none" if target.recipe is None else f"declares {target.recipe.name!r}"
        raise MismatchError(
            f"--edges: the baseline {name!r} was recorded with a recipe {recorded!r} of the target's own, "
            f"and {target.source} {own}: declare it again, or record the baseline again (--update)"
        )
    return RECIPES[recorded]


def _require_stored_weights(model: nn.Module, ref: Capture, target: Target, name: str) -> None:
    """Refuse a reference that is another by now: its modules would not make what is stored."""
    stored, manifest = ref.rank(0).parameters, ref.manifest
    kept = manifest.selection
    owned = {fqn: tensor for fqn, tensor in _weights(model) if kept.keeps_module(fqn.rpartition(".")[0])}
    known = {fqn: each for fqn, each in stored.items() if each.kind in ("parameter", "buffer")}
    where, remedy = (
        f"the reference of {target.source}",
        "leave it out, or record the baseline again (--update)",
    )
    if owned.keys() != known.keys():
        fqn = next(fqn for fqn in (*known, *owned) if fqn not in owned or fqn not in known)
        has, lacks = (where, f"the one whose run the baseline {name!r} holds")
        if fqn not in owned:
            has, lacks = lacks, has
        raise MismatchError(f"--edges: {has} has {fqn}, and {lacks} has none: {remedy}")
    for fqn, tensor in owned.items():
        if known[fqn].ref.meta.checksum not in (None, row_hashes(tensor)[1]):
            raise MismatchError(
                f"--edges: {where} has another {fqn} than the one whose run the baseline {name!r} holds: "
                f"{remedy}"
            )


def _weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters and the buffers that a checkpoint has, under each of their names."""
    yield from model.named_parameters(remove_duplicate=False)
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            if name not in module._non_persistent_buffers_set:
                yield f"{prefix}.{name}" if prefix else name, buffer
