"""What a check of the layers says of parameters alone, and of a text that went astray."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from validator.checks.findings import Check, Verdict
from validator.errors import ValidatorError
from validator.report.finding_text import next_command
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


def blame(
    source: str, ids: Tensor | None, check: Callable[[], Result], **options: Any
) -> tuple[str, str | None]:
    """Return what the layers say of a candidate that went astray: some sentences, and the module or None.

    That it went astray stands, whatever becomes of its layers: where they can't be checked that is said.

    Args:
        source: the target.
        ids: `[1, N]` the tokens at which it did, or None where no single text did.
        check: checks the layers on the target's own inputs. Where it finds nothing, `ids` are looked into.
        **options: of `check_target`.
    """
    checks = [("the target's inputs", check)]
    if ids is not None:
        checks.append(("these very tokens", lambda: check_tokens(source, ids, **options)))
    open_ones = []
    for where, run in checks:
        try:
            result = run()
        except ValidatorError as error:
            open_ones.append(f"The layers could not be checked on {where}: {error}.")
            continue
        finding = result.first_divergence or next(iter(result.findings), None)
        if finding is not None:
            command = next_command(result.outcome, finding)
            advice = "" if command is None else f"\nNext: {command}"
            return f"The layers, on {where}: {finding.summary}{advice}", finding.module
        if result.verdict is Verdict.INCONCLUSIVE:
            why = "; ".join(result.outcome.why_inconclusive)
            open_ones.append(f"The check of the layers on {where} is inconclusive: {why}.")
    if open_ones:
        return "\n".join(open_ones), None
    return "No layer is wrong: look at what is done with the logits, and at the cache.", None
