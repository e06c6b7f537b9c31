"""Which rank a fault is on, where it is not the rank's part of the tensor that tells."""

from validator.align.traces import Trace, TraceCall
from validator.checks.findings import Signature

__all__ = ["rank_of"]


def rank_of(call: TraceCall, signature: Signature | None, trace: Trace) -> int | None:
    """Return the only rank whose code can have made an output of a call wrong, or None.

    That is the rank that alone gave a sum something else than what its modules had returned; or the one
    that has all experts whose tokens are wrong.

    Args:
        call: whose output is wrong.
        signature: of what is wrong with it.
        trace: the candidate's run.
    """
    altered = {rank for partial in call.partials for rank in partial.altered}
    if len(altered) == 1:
        return altered.pop()
    if signature is None or signature.kind != "experts":
        return None
    guilty = set(signature.parameters["experts"])
    for name, edge in trace.parameters.items():
        owner = name.rpartition(".")[0]
        if len(edge.shape) != 3 or not (owner == call.module or owner.startswith(f"{call.module}.")):
            continue
        holders = {part.rank for part in edge.parts if guilty <= set(range(*part.box[0]))}
        if len(holders) == 1 and len({part.rank for part in edge.parts}) > 1:
            return holders.pop()
    return None
