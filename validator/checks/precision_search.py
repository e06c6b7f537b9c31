"""Which looser recipe is behind an edge that no declared one explains.

Shape legend: * = the edge's shape.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from validator.checks.cache_reads import reading_cache
from validator.checks.explaining import Account, Explainer
from validator.checks.findings import Arm
from validator.checks.judge import Band
from validator.checks.likeness import Elements
from validator.checks.module_code import Code, CodeEdge
from validator.checks.policy import Policy
from validator.checks.suspects import Suspect, suspects
from validator.checks.undeclared import Lineup
from validator.numerics.recipes import Recipe

__all__ = ["Behind", "PrecisionSearch"]

NEAR = 0.25
"""A cache that leaves up to this share of the candidate's squared error is what it read from.

Measured: the right one leaves 0.01 to 0.05, others 1 to 3.
"""

MUCH_NEARER = 0.5
"""A looser recipe whose model leaves less than this share of what a stricter one's leaves is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """That a looser recipe is behind an edge.

    Attributes:
        recipe: which.
        op: aten name of the operator that is narrower than declared, where it is known.
    """

    recipe: Recipe
    op: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Explained:
    """That a looser recipe explains an edge.

    Attributes:
        account: what the rules say under it.
        op: in which operator.
        left: share of the squared error that its model leaves; None where only the kind of its errors is like
            the candidate's.
    """

    account: Account
    op: str | None
    left: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionSearch:
    """Looks for recipes behind edges.

    Attributes:
        policy: what is declared, and what may be behind an edge besides.
        explainer: judges edges under recipes.
    """

    policy: Policy
    explainer: Explainer

    def undeclared(
        self, code: Code, edge: CodeEdge, judged: Tensor | None, *, is_near: bool = False
    ) -> Behind | None:
        """Return the undeclared recipe that is behind an edge, or None.

        It is the strictest whose model is near to the candidate unless another's is much nearer, else the
        strictest that makes such errors.

        Args:
            code: that made the edge.
            edge: the edge.
            judged: `[*]` boolean, or None for all.
            is_near: whether the model's values must be near. Errors of a kind that some recipe makes are also
                those of inputs that are a little off.
        """
        allowed = self.policy.allowed
        behind: Behind | None = None
        least = math.inf
        for suspect in suspects(code, edge, self.policy.others, allowed[-1]):
            explained = self._explained_by(code, edge, suspect, allowed, judged)
            if explained is None or (is_near and explained.left is None):
                continue
            left = explained.left
            if behind is None or (left is not None and left < MUCH_NEARER * least):
                behind = Behind(recipe=suspect.recipe, op=explained.op)
                least = math.inf if left is None else left
            if left == 0:
                break
        return behind

    def undeclared_cache(
        self, code: Code, edge: CodeEdge, computed: Code, band: Band, judged: Tensor | None
    ) -> Behind | None:
        """Return the recipe of the cache that attention read from, where another was declared, or None.

        Args:
            code: that made the edge, reading from the declared cache.
            edge: the edge.
            computed: the code as it is where nothing is cached.
            band: under the loosest declared recipe.
            judged: `[*]` boolean, or None for all.
        """
        trace = self.explainer.trace
        if trace is None or edge.depth == 0:
            return None
        elements = Elements.of(edge, band=band, judged=judged)
        before = self._left(code, edge, elements)
        tried = []
        for known in self.policy.caches:
            read = reading_cache(computed, known, trace)
            if read is None:
                continue
            left = self._left(read, read.edge(edge.key), elements)
            if left <= NEAR * before:
                tried.append((left, known, read))
        # Where scales are nearly alike, several are near.
        for _, known, read in sorted(tried, key=lambda x: x[0]):
            moved = read.edge(edge.key)
            accounts = (self.explainer.account(read, moved, x, judged) for x in self.policy.allowed)
            if any(account is not None and account.assessment.arm is None for account in accounts):
                return Behind(recipe=known, op=None)
        return None

    def hidden_sums(
        self, code: Code, edge: CodeEdge, recipe: Recipe, account: Account, judged: Tensor | None
    ) -> Behind | None:
        """Return the undeclared recipe of narrow sums that a wide band would hide.

        Args:
            code: that made the edge.
            edge: the edge.
            recipe: the declared one that is wide enough for it.
            account: what the rules say under that.
            judged: `[*]` boolean, or None for all.
        """
        if account.control is None:
            return None
        declared = self.policy.allowed[-1]
        # Sums that may be accumulated in a format may have parts in it.
        known = ("float32", declared.partials, declared.accumulate)
        others = [
            other
            for other in self.policy.others
            if other.partials not in known
            or (other.sums not in ("float32", declared.sums) and other.operators == declared.operators)
        ]
        for suspect in suspects(code, edge, others, declared):
            lineup = Lineup(code, edge, suspect=suspect, band=account.band, allowed=(recipe,), judged=judged)
            found = lineup.hidden_sums(account.control)
            if found is not None:
                return Behind(recipe=suspect.recipe, op=found.op)
        return None

    def modelled_anew(
        self, code: Code, edge: CodeEdge, recipe: Recipe, judged: Tensor | None
    ) -> Account | None:
        """Judge an edge that only a gain speaks against by the model of the recipe that is nearest to it.

        Where a recipe allows several operators to be narrow, a candidate in which some of them are has other
        systematic errors than the control, in which all are.
        """
        strict = self.policy.allowed[:-1]
        for suspect in suspects(code, edge, (recipe,), strict[-1]) if strict else ():
            explained = self._explained_by(code, edge, suspect, strict, judged)
            if explained is not None:
                return explained.account
        return None

    def _left(self, code: Code, edge: CodeEdge, elements: Elements) -> float:
        """Return the least squared error that code leaves under a declared recipe."""
        if code.replays is None:
            return math.inf
        made = (code.replays.control(recipe).get(edge.key) for recipe in self.policy.allowed)
        return min((elements.energy(control) for control in made if control is not None), default=math.inf)

    def _explained_by(
        self,
        code: Code,
        edge: CodeEdge,
        suspect: Suspect,
        strict: tuple[Recipe, ...],
        judged: Tensor | None,
    ) -> _Explained | None:
        """Judge an edge under a looser recipe, whose model must look like the candidate."""
        op, model = suspect.op, None
        left: float | None = 0.0
        if suspect.steps:
            found = self.explainer.band(code, edge, suspect.recipe)
            if found is None:
                return None
            if self.explainer.assess(edge, found[0], None, judged).arm in (Arm.CLASS, Arm.MAX):
                return None
            lineup = Lineup(code, edge, suspect=suspect, band=found[0], allowed=strict, judged=judged)
            alike = lineup.resemblance()
            if alike is None:
                return None
            op, model, left = alike.op, alike.control, alike.left
        account = self.explainer.account(code, edge, suspect.recipe, judged, model)
        if account is None or account.assessment.arm is not None:
            return None
        return _Explained(account=account, op=op, left=left)
