"""Which operator of a module's code is behind an edge that diverges.

The candidate's values are put in place of the reference's, operator by operator from the first on, and the
reference's own code goes on from there in float64 to the edge. With none of them the edge is right; with all
of them it is as wrong as the candidate's. After the last place up to which it is right begins what makes it
wrong. A rearrangement (queries that are scaled in place of scores, rotary halves in another order) makes
it wrong for a while and is right again at its end, so it is not blamed.

From that place on each operator is judged by itself, on the candidate's values: the first that rounding can't
explain is named. Where rounding explains each, nothing is: errors that only together are too large are no
operator's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from validator.align.traces import View
from validator.checks.explaining import Explainer
from validator.checks.inside.alignment import Ours, Pair, align, ours_of
from validator.checks.inside.naming import Culprit, Place, is_narrower, name_between, name_operator
from validator.checks.inside.positions import hidden_scores, real_rows
from validator.checks.inside.reruns import NotRerunError, rerun
from validator.checks.judge import judge_equal
from validator.checks.module_code import Code, CodeEdge
from validator.checks.operator_log import OperatorLog
from validator.checks.policy import is_alike
from validator.checks.replays import RUNS
from validator.checks.shadow import widened
from validator.numerics.formats import format_of
from validator.numerics.rounding import round_nearest

__all__ = ["Alone", "Inside"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """The guilty part of the code by itself.

    Attributes:
        code: with one edge, the result.
        slot: of the result.
        positions: of the operators that make it, in order.
        starts: `[*]` float64 by position, the candidate's values in place of running them.
        judged: `[*]` boolean, or None for all.
    """

    code: Code
    slot: int
    positions: Sequence[int]
    starts: Mapping[int, Tensor]
    judged: Tensor | None

    @property
    def works(self) -> int:
        """How many operators are run that do more than change the form of values."""
        assert self.code.log is not None
        calls = [self.code.log.calls[x] for x in self.positions if x not in self.starts]
        return sum(not call.is_trivial for call in calls)


@dataclass(slots=True, kw_only=True)
class Inside:
    """Looks into the code of one call.

    Attributes:
        code: of a call whose operators were recorded.
        explainer: judges values under recipes.
        view: whose copies of replicated tensors to take.
        real: `[batch, tokens]` boolean, the positions to judge, or None for all.
        runs: stochastic runs behind a measured sigma.
    """

    code: Code
    explainer: Explainer
    view: View
    real: Tensor | None = None
    runs: int = RUNS
    _log: OperatorLog = field(init=False)
    _pairs: dict[int, Ours] = field(init=False)
    _starts: dict[int, Tensor] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        assert self.code.log is not None
        self._log = self.code.log
        # What the run's explainer notes of outputs must not come from here.
        self.explainer = Explainer(policy=self.explainer.policy, bench=self.explainer.bench)
        pairs: Sequence[Pair] = align(self._log.calls, ours_of(self.code.call.operators), self.view.ranks)
        self._pairs = {pair.theirs: pair.ours for pair in pairs}

    def culprit(self, edge: CodeEdge, judged: Tensor | None) -> Culprit | None:
        """Return the operator behind an edge that diverges; None where none can be named.

        Args:
            edge: of the code.
            judged: `[*]` boolean, its elements to judge, or None for all.
        """
        mark = self._log.marks.get(edge.key)
        if mark is None:
            return None
        values = {x: y for x in self._log.behind(*mark) if (y := self._start(x)) is not None}
        known = list(values)
        right = len(known)
        while right and not self._is_right(edge, mark, {x: values[x] for x in known[:right]}, judged):
            right -= 1
        self._starts = {x: values[x] for x in known[:right]}
        for position in known[right:]:
            if self._is_wrong(position):
                return name_operator(self._place, position, self._is_right_on)
            self._starts[position] = values[position]
        behind = self._log.behind(*mark, self._starts)
        code = self._rerun(mark[0], behind, self._starts, edge.cand.data)
        if code is None or self._is_explained(code.edges[0], code, edge.cand.data, judged):
            return None
        return name_between(self._place, behind)

    def alone(self, culprit: Culprit) -> Alone | None:
        """Return what was named last, on the candidate's values; None where only the edge shows it."""
        position = culprit.shown
        value = None if position is None else self._value(position)
        if position is None or value is None:
            return None
        slot = self._log.calls[position].main
        if self._is_explained_at(position, value):
            value = self._widened(position, value)  # what is wrong is that bits are missing
        positions = self._behind(position)
        code = self._again(position, value)
        if slot is None or code is None:
            return None
        return Alone(
            code=replace(code, log=self._log),
            slot=slot,
            positions=positions,
            starts={x: y for x, y in self._starts.items() if x in positions},
            judged=self._judged(code.edges[0].exact, value),
        )

    @property
    def _place(self) -> Place:
        return Place(
            calls=self._log.calls,
            operators=self.code.call.operators,
            pairs=self._pairs,
            starts=self._starts,
            behind=self._behind,
        )

    def _behind(self, position: int) -> list[int]:
        slot = self._log.calls[position].main
        assert slot is not None
        return self._log.behind(slot, position + 1, self._starts)

    def _value(self, position: int) -> Tensor | None:
        """Return `[*]` what the candidate has where the reference has an operator's result."""
        call, ours = self._log.calls[position], self._pairs.get(position)
        if ours is None or call.main is None or call.shape is None:
            return None
        return ours.value(call.shape, self.view.ranks)

    def _start(self, position: int) -> Tensor | None:
        """Return `[*]` float64 a value that can take the place of the reference's."""
        call, value = self._log.calls[position], self._value(position)
        if value is None or value.is_complex() or call.main is None:
            return None
        # A view that is written to later shares its memory: it can't have values of its own.
        return None if call.is_view and self._log.is_written(call.main) else widened(value)

    def _is_right(
        self,
        edge: CodeEdge,
        mark: tuple[int, int],
        starts: Mapping[int, Tensor],
        judged: Tensor | None,
    ) -> bool:
        """Tell whether the reference's code makes the edge right of some of the candidate's values."""
        slot, end = mark
        code = self._rerun(slot, self._log.behind(slot, end, starts), starts, edge.cand.data)
        if code is None or code.edges[0].exact.shape != edge.exact.shape:
            return False
        made, dtype = code.edges[0].exact, edge.cand.data.dtype
        made = round_nearest(made, format_of(dtype)) if dtype.is_floating_point else made
        hybrid = replace(edge, cand=replace(edge.cand, data=made.to(dtype)))
        return self._is_explained(hybrid, self.code, hybrid.cand.data, judged)

    def _is_wrong(self, position: int) -> bool:
        """Tell whether rounding fails to explain an operator's value, or it lacks bits that the code has.

        A value that is right but held in fewer bits than in the code is a rounding of its own that the code
        knows nothing of.
        """
        value = self._value(position)
        if value is None:
            return False
        wide = self._widened(position, value)
        if self._is_explained_at(position, value) is False:
            return True
        return wide is not value and self._is_explained_at(position, wide) is False

    def _is_right_on(self, position: int, replaced: Mapping[int, Tensor]) -> bool:
        """Tell whether an operator of the reference's makes the candidate's value of other arguments."""
        value = self._value(position)
        return value is not None and self._is_explained_at(position, value, replaced) is True

    def _widened(self, position: int, value: Tensor) -> Tensor:
        dtype = self._log.calls[position].dtype
        return value if dtype is None or not is_narrower(value.dtype, dtype) else value.to(dtype)

    def _is_explained_at(
        self, position: int, value: Tensor, replaced: Mapping[int, Tensor] | None = None
    ) -> bool | None:
        """Tell whether rounding explains a value of an operator; None where that can't be told."""
        code = self._again(position, value, replaced)
        edge = None if code is None else code.edges[0]
        if code is None or edge is None or edge.obstacle or edge.exact.shape != value.shape:
            return None
        return self._is_explained(edge, code, value, self._judged(edge.exact, value))

    def _is_explained(self, edge: CodeEdge, code: Code, value: Tensor, judged: Tensor | None) -> bool:
        if edge.depth == 0 or not value.is_floating_point():
            found = judge_equal(exact=edge.exact, cand=value, judged=judged, dims=edge.cand.dims)
            return found.arm is None
        tried = None
        for recipe in self.explainer.policy.allowed:
            if edge.depth == 1 and tried is not None and is_alike(recipe, tried):
                continue
            account = self.explainer.account(code, edge, recipe, judged)
            if account is None or account.assessment.arm is None:
                return True  # of what can't be replayed nothing is said
            tried = recipe
        return False

    def _again(
        self, position: int, value: Tensor, replaced: Mapping[int, Tensor] | None = None
    ) -> Code | None:
        """Run what is behind an operator's result since the last values that are known."""
        slot = self._log.calls[position].main
        assert slot is not None
        return self._rerun(slot, self._behind(position), self._starts, value, replaced)

    def _rerun(
        self,
        slot: int,
        positions: Sequence[int],
        starts: Mapping[int, Tensor],
        cand: Tensor,
        replaced: Mapping[int, Tensor] | None = None,
    ) -> Code | None:
        try:
            return rerun(
                self._log,
                code=self.code,
                slot=slot,
                positions=positions,
                starts=starts,
                cand=cand,
                runs=self.runs,
                replaced=replaced,
            )
        except NotRerunError:
            return None

    def _judged(self, exact: Tensor, value: Tensor) -> Tensor | None:
        judged = real_rows(self.real, value.shape)
        masked = hidden_scores(exact, value)
        if bool(masked.any()):
            judged = ~masked if judged is None else judged & ~masked
        return judged
