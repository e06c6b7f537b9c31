"""Judge a candidate edge by edge, with the model of the reference whose run a baseline holds."""

from torch import nn

from validator.capturing.digest import row_hashes
from validator.capturing.reader import Capture
from validator.capturing.records import RankCapture
from validator.errors import MismatchError
from validator.judging import judged
from validator.judging_thin import is_thin
from validator.numerics.recipes import recipe_named
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
        MismatchError: the target's reference has other weights than the stored one.
        ValidatorError: it can't be built, or the two sides can't be compared.
    """
    model, inputs = target.reference(), target.inputs()
    _require_stored_weights(model, ref.rank(0), target, name)
    return judged(
        reference=model,
        ref=ref,
        cand=cand,
        run=lambda reference: feed(target, inputs, reference),
        recipe=recipe_named(ref.manifest.recipe) or target.recipe,
        names=target.names,
        layout=target.layout,
        mesh=target.mesh,
        about={"reference": {"source": target.source}, "candidate": {"source": target.source}},
        progress=lambda stage, done, total: None,
    )


def _require_stored_weights(model: nn.Module, stored: RankCapture, target: Target, name: str) -> None:
    """Refuse a reference that is another by now: its modules would not make what is stored."""
    for fqn, parameter in model.named_parameters():
        known = stored.parameters.get(fqn)
        if known is not None and known.ref.meta.checksum not in (None, row_hashes(parameter)[1]):
            raise MismatchError(
                f"--edges: the reference of {target.source} has another {fqn} than the one whose run the "
                f"baseline {name!r} holds: leave it out, or record the baseline again (--update)"
            )
