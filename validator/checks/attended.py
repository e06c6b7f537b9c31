"""What the attention behind an edge does with its keys, for the search for those that it read wrongly.

Shape legend: * = any shape; B = sequences, S = queries, T = keys, H = heads, D = channels of a head.
"""

import torch
from torch import Tensor

from validator.align.traces import Trace, TraceCall, View
from validator.checks.attention_sites import AttentionSite, find_attention
from validator.checks.module_code import Code
from validator.checks.replays import Replays
from validator.checks.signatures.key_fits import Attended
from validator.checks.stepping import earlier_keys

__all__ = ["attended_by"]


def attended_by(code: Code, trace: Trace, view: View) -> Attended | None:
    """Return what the attention in a module's code does; None where there is none, or several.

    Args:
        code: of the module.
        trace: the candidate's run.
        view: whose copies are judged.
    """
    if not isinstance(code.replays, Replays):
        return None
    site = find_attention(code.replays.tape)
    if site is None:
        return None
    return Attended(
        weights=site.weights,
        seen=site.seen,
        keys=site.keys,
        values=site.values,
        earlier=_earlier(code.call, trace, site),
        weights_of=site.weights_of,
        past=lambda: _past(code.call, trace, view, site),
        scale=lambda: site.scale(code.constants),
    )


def _earlier(call: TraceCall, trace: Trace, site: AttentionSite) -> Tensor | None:
    """Return `[S, T]` boolean, the keys of earlier steps than each query's; None for a single step."""
    earlier = earlier_keys(call, trace)
    return None if earlier is None or earlier.shape != site.seen.shape[-2:] else earlier


def _past(call: TraceCall, trace: Trace, view: View, site: AttentionSite) -> tuple[Tensor, Tensor] | None:
    """Return the keys and values that the call before this one had at the same places."""
    before = (call.module, call.n - 1)
    if before not in trace.calls:
        return None
    theirs = {c.module: c for c in trace.calls.values() if c.parent == before}
    changes = []
    for child in trace.calls.values():
        if child.parent != (call.module, call.n) or child.module not in theirs:
            continue
        for path, made in child.outputs.items():
            other = theirs[child.module].outputs.get(path)
            if other is not None and len(made.shape) == len(other.shape):
                own, old = (x.read(view).data.to(torch.float64) for x in (made, other))
                changes.append((own, _resized(old, own.shape)))
    return site.given_otherwise([pair for pair in changes if pair[0].shape == pair[1].shape])


def _resized(x: Tensor, shape: torch.Size) -> Tensor:
    """Cut or pad `[B, t, *]` along its tokens."""
    if x.dim() < 2 or x.shape[1] == shape[1]:
        return x
    kept = x[:, : shape[1]]
    missing = shape[1] - kept.shape[1]
    return torch.cat([kept, kept.new_zeros(kept.shape[0], missing, *kept.shape[2:])], 1)
