"""Weights and settings of a model that a run leaves without effect, and the input that would use them.

A bias of zeros, a norm weight of ones, an expert that no token reached, equal positions, a window that is
longer than the sequence: code that leaves these out, or gets them wrong, gives the same values.
"""

import re
from collections.abc import Iterator, Sequence

from torch import nn

from validator.align.traces import Edge, Trace, View
from validator.checks.findings import Unobservable

__all__ = ["unexercised"]

_WINDOWS = ("sliding_window", "attention_chunk_size")
_NUMBERED = re.compile(r"(.*)\.(\d+)")
_LISTED = 8


def unexercised(reference: nn.Module, trace: Trace, view: View) -> list[Unobservable]:
    """List what the weights, the routing and the positions of a run could not have shown.

    Args:
        reference: the trusted model.
        trace: the candidate's run in the reference's names.
        view: whose copies of replicated tensors to take.
    """
    return [
        *_trivial_parameters(reference, trace),
        *_unreached_experts(reference, trace, view),
        *_uncalled_siblings(reference, trace),
        *_equal_positions(trace, view),
        *_long_windows(reference, trace, view),
    ]


def _trivial_parameters(reference: nn.Module, trace: Trace) -> Iterator[Unobservable]:
    called = {module for module, _ in trace.calls}
    for name, tensor in (*reference.named_parameters(), *reference.named_buffers()):
        module, _, leaf = name.rpartition(".")
        if module not in called or name not in trace.parameters or not tensor.is_floating_point():
            continue
        for value in (0, 1):
            if tensor.numel() and bool((tensor.flatten()[0] == value) & (tensor == value).all()):
                yield Unobservable(
                    module=module,
                    what=f"{leaf} left out",
                    why=f"all its values are {value}",
                    propose=f"a checkpoint with another {leaf}, or random values for it",
                )


def _unreached_experts(reference: nn.Module, trace: Trace, view: View) -> Iterator[Unobservable]:
    """Look into modules that hold the weights of several experts and are given the choice of each token."""
    reached: dict[str, set[int]] = {}
    sizes: dict[str, int] = {}
    for call in trace.calls.values():
        chosen = [edge for edge in call.inputs.values() if _is_integer(edge)]
        if not chosen:
            continue
        module = reference.get_submodule(call.module)
        counts = {len(p) for p in module.parameters(recurse=False) if p.dim() == 3}
        if len(counts) == 1:
            sizes[call.module] = counts.pop()
            for edge in chosen:
                reached.setdefault(call.module, set()).update(edge.read(view).data.unique().tolist())
    for fqn, size in sizes.items():
        missing = sorted(set(range(size)) - reached[fqn])
        if missing:
            yield _unrouted(fqn, missing)


def _uncalled_siblings(reference: nn.Module, trace: Trace) -> Iterator[Unobservable]:
    """Look into lists of modules of which some were called and some, with parameters, were not.

    What was left out by choice, or was called in the reference alone, may have been reached.
    """
    called = {module for module, _ in trace.calls} | set(trace.unmatched_reference)
    left_out = set(trace.left_out.modules)
    active = {fqn[:i] for fqn in called for i, c in enumerate(fqn + ".") if c == "."}
    silent: dict[str, list[int]] = {}
    for fqn, module in reference.named_modules():
        match = _NUMBERED.fullmatch(fqn)
        if match is None or fqn in active:
            continue
        owners = {f"{fqn}.{name}".rpartition(".")[0] for name, _ in module.named_parameters()}
        if owners - left_out:
            silent.setdefault(match[1], []).append(int(match[2]))
    for fqn, numbers in silent.items():
        siblings = [f"{fqn}.{name}" for name, _ in reference.get_submodule(fqn).named_children()]
        if any(sibling in active for sibling in siblings):
            yield _unrouted(fqn, sorted(numbers))


def _unrouted(fqn: str, numbers: Sequence[int]) -> Unobservable:
    shown = ", ".join(map(str, numbers[:_LISTED]))
    more = f" and {len(numbers) - _LISTED} more" if len(numbers) > _LISTED else ""
    return Unobservable(
        module=fqn,
        what="a wrong expert",
        why="no token reached it",
        propose=f"a prompt that routes tokens to {shown}{more}",
    )


def _equal_positions(trace: Trace, view: View) -> Iterator[Unobservable]:
    for call in trace.calls.values():
        for path, edge in call.inputs.items():
            if "position" in path and _is_integer(edge):
                positions = edge.read(view).data
                if positions.numel() and int(positions.min()) == int(positions.max()):
                    yield Unobservable(
                        module=call.module,
                        what="a wrong rotation or embedding of positions",
                        why=f"all positions are {int(positions.min())}",
                        propose="a sequence of several tokens",
                    )
                    return


def _long_windows(reference: nn.Module, trace: Trace, view: View) -> Iterator[Unobservable]:
    called = {module for module, _ in trace.calls}
    length = max(_lengths(trace, view), default=0)
    for fqn, module in reference.named_modules():
        for name in _WINDOWS:
            window = getattr(module, name, None)
            if fqn in called and type(window) is int and 0 < length <= window:
                yield Unobservable(
                    module=fqn,
                    what=f"{name} {window} left out",
                    why=f"the longest sequence has {length} tokens",
                    propose=f"a sequence longer than {window}",
                )


def _lengths(trace: Trace, view: View) -> Iterator[int]:
    for call in trace.calls.values():
        for path, edge in call.inputs.items():
            yield from (n for n, dim in zip(edge.shape, edge.dims, strict=False) if dim == "token")
            if "position" in path and _is_integer(edge) and len(edge.shape) and 0 not in edge.shape:
                yield int(edge.read(view).data.max()) + 1


def _is_integer(edge: Edge) -> bool:
    return edge.dtype in ("int64", "int32")
