"""The candidate's choices inside one call: the oracle's code goes on with them, and judges them by margin.

A choice (`topk`, `argmax`) shows in the candidate's run where its indices are an output of the call or an
input of a child. Which of several such edges belongs to which choice is a guess while the code runs, and is
known when it has ended: then the code runs again if the guess was wrong.

A choice of groups, among whose members a later choice is made, shows at no edge. Where the candidate's
later choice is not the best among the oracle's groups, but would be better among those with the runner-up in
place of the last, its groups were these; they are judged by margin in turn.

Shape legend: N = rows, k = chosen of each.
"""

from collections.abc import Iterator, Mapping
from enum import Enum, auto

import torch
from torch import Tensor

from validator.align.traces import Edge, Trace, TraceCall, View
from validator.checks.selections import Choice

__all__ = ["Following", "Place"]

Place = tuple[str, int, str]
"""An edge: module and number of a call, and path among its outputs, or of a child's call among its inputs."""


class _Groups(Enum):
    """What is known of a choice that shows at no edge."""

    UNTRIED = auto()
    TRIED = auto()
    SETTLED = auto()


class Following:
    """Prescribes the candidate's choices to the code of one call.

    Args:
        trace: the candidate's run.
        call: whose code it is.
        view: whose copies of replicated tensors to take.
    """

    def __init__(self, trace: Trace, call: TraceCall, view: View) -> None:
        self._trace = trace
        self._call = call
        self._view = view
        self._prescribed: dict[str, Tensor | None] = {}
        self._groups = _Groups.UNTRIED
        self._losses = torch.zeros(0)
        self._made: dict[Place, Tensor] | None = None

    def __call__(self, name: str, own: Tensor) -> Tensor | None:
        """Return the candidate's indices for the choice `name`, or None where no edge shows them."""
        if name not in self._prescribed:
            alike = [x for x in self._shown().values() if x.shape == own.shape]
            # Of several, the one that agrees most; among ties any choice is as good.
            self._prescribed[name] = max(alike, key=lambda x: int((x == own).sum()), default=None)
        return self._prescribed[name]

    def revise(self, choices: list[Choice], places: Mapping[Place, str]) -> bool:
        """Learn from a run of the code, and tell whether it has to run again.

        Args:
            choices: that the run made.
            places: the names of the choices whose indices stood at an edge.
        """
        return self._revise_guesses(choices, places) or self._revise_groups(choices)

    def _revise_guesses(self, choices: list[Choice], places: Mapping[Place, str]) -> bool:
        shown = self._shown()
        known = {name: shown[place] for place, name in places.items() if place in shown}
        is_wrong = False
        for choice in choices:
            guess = self._prescribed.get(choice.name)
            truth = known.get(choice.name)
            if truth is not None and truth.shape != choice.own.indices.shape:
                continue
            if guess is None and truth is None:
                continue
            if truth is None and not any(guess is x for x in known.values()):
                continue
            if guess is None or truth is None or not torch.equal(guess, truth):
                self._prescribed[choice.name] = truth
                is_wrong = True
        return is_wrong

    def _revise_groups(self, choices: list[Choice]) -> bool:
        if self._groups is _Groups.SETTLED:
            return False
        members = next((x for x in reversed(choices) if x.is_followed and x.own.is_best), None)
        if members is None:
            return False
        losses = _losses(members)
        before = choices[: choices.index(members)]
        if self._groups is _Groups.UNTRIED:
            groups = next((x for x in reversed(before) if _chooses_groups(x, members)), None)
            if groups is None or not bool(losses.any()):
                self._groups = _Groups.SETTLED
                return False
            self._prescribed[groups.name] = _with_runner_up(groups, losses > 0)
            self._groups, self._losses = _Groups.TRIED, losses
            return True
        self._groups = _Groups.SETTLED
        groups = next(x for x in reversed(before) if x.is_followed and x.indices is self._prescribed[x.name])
        # The groups themselves must be nearly as good, else they explain nothing.
        is_better = (losses + _losses(groups) < self._losses) | (self._losses == 0)
        if bool(is_better.all()):
            return False
        kept = torch.where(is_better.unsqueeze(-1), groups.indices, groups.own.indices)
        self._prescribed[groups.name] = None if torch.equal(kept, groups.own.indices) else kept
        return True

    def _shown(self) -> dict[Place, Tensor]:
        """Return the integer tensors that the code may have made: those that it was not given."""
        if self._made is None:
            given = [self._read(edge) for edge in self._call.inputs.values() if _is_integer(edge)]
            made = {place: self._read(edge) for place, edge in self._edges() if _is_integer(edge)}
            self._made = {
                place: x
                for place, x in made.items()
                if not any(x.shape == y.shape and torch.equal(x, y) for y in given)
            }
        return self._made

    def _edges(self) -> Iterator[tuple[Place, Edge]]:
        here = (self._call.module, self._call.n)
        for path, edge in self._call.outputs.items():
            yield (*here, path), edge
        for child in self._trace.calls.values():
            if child.parent == here:
                for path, edge in child.inputs.items():
                    yield (child.module, child.n, path), edge

    def _read(self, edge: Edge) -> Tensor:
        return edge.read(self._view).data.to(torch.int64)


def _is_integer(edge: Edge) -> bool:
    return edge.dtype in ("int64", "int32")


def _chooses_groups(choice: Choice, members: Choice) -> bool:
    """Tell whether a choice that no edge shows may be that of the groups whose members are chosen later."""
    own = choice.own
    return (
        not choice.is_followed
        and own.is_best
        and own.indices.dim() == choice.source.dim()
        and own.dim % choice.source.dim() == choice.source.dim() - 1
        and own.indices.shape[:-1] == members.own.indices.shape[:-1]
        and own.indices.shape[-1] < choice.source.shape[-1]
    )


def _losses(choice: Choice) -> Tensor:
    """Return `[N]` float64: by how much the chosen values are less than the best."""
    best, chosen = choice.values_at(choice.own.indices), choice.values_at(choice.indices)
    return torch.where(best == chosen, torch.zeros_like(best), (best - chosen).abs()).sum(-1)


def _with_runner_up(groups: Choice, rows: Tensor) -> Tensor:
    """Return `[N, k]` indices: in some rows the best of those not chosen in place of the last one chosen."""
    own = groups.own.indices
    left = groups.source.scatter(-1, own, -torch.inf)
    last = groups.source.gather(-1, own).argmin(-1, keepdim=True)
    changed = own.scatter(-1, last, left.argmax(-1, keepdim=True))
    return torch.where(rows.unsqueeze(-1), changed, own)
