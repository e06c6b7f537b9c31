"""What a check of the layers says of parameters alone, and of a text that went astray."""

from typing import Any

from torch import Tensor

from validator.checks.findings import Check
from validator.report.result import Result
from validator.scoring.localising import check_tokens

__all__ = ["blame", "parameters_judged", "wrong_parameters"]


def parameters_judged(result: Result) -> int:
    """Return how many parameters and buffers were compared."""
    return sum(judgement.check is Check.PARAMETER for judgement in result.outcome.judgements)


def wrong_parameters(result: Result) -> tuple[tuple[str, str], ...]:
    """Return module and sentence of each parameter or buffer that is not the reference's."""
    return tuple(
        (finding.module, finding.summary) for finding in result.findings if finding.check is Check.PARAMETER
    )


def blame(source: str, ids: Tensor | None, checked: Result, **options: Any) -> tuple[str, str | None]:
    """Return what the layers say of a candidate that went astray: a sentence, and the module or None.

    Args:
        source: the target.
        ids: `[1, N]` the tokens at which it did, or None where no single text did.
        checked: the check of the layers on the target's own inputs. Where it found nothing, the layers are
            checked on `ids`.
        **options: of `check_target`.
    """
    for result, where in ((checked, "the target's inputs"), (None, "these very tokens")):
        if result is None:
            if ids is None:
                continue
            result = check_tokens(source, ids, **options)
        finding = result.first_divergence or next(iter(result.findings), None)
        if finding is not None:
            return f"The layers, on {where}: {finding.summary}", finding.module
    return "No layer is wrong: look at what is done with the logits, and at the cache.", None
