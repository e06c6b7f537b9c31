"""From a module's code to judgements: each of its edges under each recipe that is allowed.

Shape legend: * = the edge's shape.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from torch import Tensor

from validator.align.traces import Trace, TraceCall, View
from validator.checks.cache_reads import reading_cache, unread_edges
from validator.checks.choices import judge_choice
from validator.checks.explaining import Account, Explainer
from validator.checks.findings import Arm, Check, Verdict
from validator.checks.hidden import look_behind, unwrapped
from validator.checks.inside.culprit import Inside
from validator.checks.judge import Assessment, Bench, judge_equal
from validator.checks.module_code import Code, CodeChoice, CodeEdge, Key
from validator.checks.observability import unobservable_in_code
from validator.checks.observing import Observer
from validator.checks.padding import Real, real_of
from validator.checks.places import judged_region
from validator.checks.policy import Policy, is_alike
from validator.checks.precision_search import Behind, PrecisionSearch
from validator.checks.rank_sums import Term, judge_terms, summed
from validator.checks.recorder import Recorder, Ruling
from validator.checks.resolution import Resolution
from validator.numerics.formats import format_of
from validator.numerics.recipes import Recipe
from validator.numerics.rounding import round_nearest

__all__ = ["EdgeJudge"]

_UNREAD = (
    "a cache of codes is declared for it, and which of its operators attend could not be made out, so that "
    "nothing tells what they read: let the reference attend once in a module, by "
    "scaled_dot_product_attention or by a softmax between two products, or judge a run whose cache is not "
    "quantised. If it reads from no cache, name those that do by CacheScale(module=...)"
)
_DIVERTED = "a replay of its code took another path than the first run"


@dataclass(slots=True, kw_only=True)
class EdgeJudge:
    """Judges the code of every call of one view.

    Attributes:
        trace, view: the candidate's run and whose copies are judged.
        policy: what rounding is allowed.
        bench: what is common to the run.
        real: the positions that the attention mask calls real, or None for all.
        regions: modules of the candidate that were compiled with all that is inside of them.
        observer: keeps what each edge looks like, or None.
        said: what was said of the edges.
        explainer: judges edges under recipes.
    """

    trace: Trace
    view: View
    policy: Policy
    bench: Bench
    real: Real | None = None
    regions: Collection[str] = ()
    observer: Observer | None = None
    said: Recorder = field(init=False)
    explainer: Explainer = field(init=False)
    _search: PrecisionSearch = field(init=False)
    _resolutions: dict[Key, Resolution] = field(init=False, default_factory=dict)
    _behind: list[Recipe] = field(init=False, default_factory=list)
    _inside: Inside | None = field(init=False, default=None)
    _unread: frozenset[Key] = field(init=False, default=frozenset())

    def __post_init__(self) -> None:
        self.said = Recorder(trace=self.trace, view=self.view, bench=self.bench, observer=self.observer)
        self.explainer = Explainer(policy=self.policy, bench=self.bench, trace=self.trace)
        self._search = PrecisionSearch(policy=self.policy, explainer=self.explainer)

    def judge(self, code: Code) -> bool:
        """Judge every edge of a call's code, and tell whether its outputs were judged."""
        said = self.said
        before, found_before = len(said.gaps), len(said.findings)
        self._resolutions, self._behind, self._inside = {}, [], None
        computed = code
        declared = self.policy.allowed[-1]
        read = reading_cache(computed, declared, self.trace)
        self._unread = unread_edges(computed, declared) if read is None else frozenset()
        code = read or computed
        for edge in code.edges:
            if edge.obstacle:
                self.skip(code.call, edge.obstacle)
                continue
            narrow_terms = self._judge_terms(code, edge) if edge.into is None else None
            self._judge_edge(code, edge, computed, narrow_terms)
        for choice in code.choices:
            self._judge_choice(code, choice)
        if len(said.gaps) == before and len(said.findings) == found_before:
            said.unobservable += unobservable_in_code(code, self._resolutions, self.view)
            if unwrapped(code.call.candidate_module) in self.regions:
                self._look_behind(code)
        self._inside = None  # it holds the values of the code that it looked into
        return len(said.gaps) == before and any(edge.into is None for edge in code.edges)

    def real_of(self, call: TraceCall) -> Tensor | None:
        """Return `[batch, tokens]` boolean, the positions of a call that are judged, or None for all."""
        return real_of(call, self.real)

    def skip(self, call: TraceCall, why: str) -> None:
        """Keep that a call's code was judged by no check."""
        self.said.skip(call, why)

    def _look_behind(self, code: Code) -> None:
        """Keep which faults inside of a compiled region would not have shown."""
        hidden = look_behind(code, self._resolutions, self.policy.allowed[-1])
        if hidden is None:
            return
        self.said.too_deep += [] if hidden.gap is None else [hidden.gap]
        self.said.unobservable += [] if hidden.unobservable is None else [hidden.unobservable]

    def _judge_choice(self, code: Code, choice: CodeChoice) -> None:
        """Judge a choice: under what is declared, then under what is behind other edges of the same code."""
        declared = self.policy.allowed[-1]
        first: tuple[CodeEdge, Assessment] | None = None
        verdict: Verdict | None = Verdict.DIVERGENT
        for recipe in (declared, *self._behind):
            spread = None if code.replays is None else code.replays.spread(recipe).get(choice.key)
            if spread is None:
                self.skip(code.call, _DIVERTED)
                return
            edge, assessment = judge_choice(choice, spread, self.bench)
            if assessment.arm is None:
                verdict = None if first is None else Verdict.UNDECLARED_PRECISION
                break
            first = first or (edge, assessment)
        else:
            recipe = declared
        edge, assessment = first or (edge, assessment)
        ruling = Ruling(
            check=Check.EXACT, assessment=assessment, verdict=verdict, recipe=recipe, op=choice.op
        )
        self.said.record(code, edge, ruling)

    def _judge_edge(
        self, code: Code, edge: CodeEdge, computed: Code, narrow_terms: tuple[Behind, Tensor] | None
    ) -> None:
        """Judge an edge of code as it is declared to read from a cache; `computed` is it without one."""
        check = _check(code, edge)
        cand = edge.cand
        judged = self._judged(code, edge)
        if edge.depth == 0 or not cand.data.is_floating_point():
            exact = edge.exact
            if check is Check.INPUT and cand.data.is_floating_point():
                # What a run is fed with may be rounded once, to the format that the candidate takes.
                exact = round_nearest(exact, format_of(cand.data.dtype))
            assessment = judge_equal(exact=exact, cand=cand.data, judged=judged, dims=cand.dims)
            verdict = _verdict(assessment)
            op = None if verdict is None else self._op(code, edge)
            ruling = Ruling(check=check, assessment=assessment, verdict=verdict, judged=judged, op=op)
            self.said.record(code, edge, ruling)
            return
        failed: tuple[Account, Recipe] | None = None
        for recipe in self.policy.allowed:
            if failed is not None and edge.depth == 1 and is_alike(recipe, failed[1]):
                continue
            account = self.explainer.account(code, edge, recipe, judged)
            if account is None:
                self.skip(code.call, _DIVERTED)
                return
            if account.assessment.arm is None:
                hidden = None
                if failed is not None:
                    hidden = self._search.hidden_sums(code, edge, recipe, account, judged)
                if hidden is not None and failed is not None:
                    self._record_undeclared(code, edge, check, failed[0], hidden, judged)
                else:
                    self._record_explained(code, edge, check, recipe, account, judged)
                return
            failed = account, recipe
        assert failed is not None
        if edge.key in self._unread:
            self.skip(code.call, _UNREAD)
            return
        account, recipe = failed
        if account.assessment.arm is Arm.GAIN:
            modelled = self._search.modelled_anew(code, edge, recipe, judged)
            if modelled is not None:
                self._record_explained(code, edge, check, recipe, modelled, judged)
                return
        behind = self._behind_terms(code, edge, judged, narrow_terms)
        behind = behind or self._search.undeclared_cache(code, edge, computed, account.band, judged)
        behind = behind or self._search.undeclared(code, edge, judged)
        if behind is not None:
            self._record_undeclared(code, edge, check, account, behind, judged)
            return
        ruling = Ruling(
            check=check,
            assessment=account.assessment,
            verdict=Verdict.DIVERGENT,
            band=account.band,
            recipe=recipe,
            judged=judged,
            op=self._op(code, edge),
        )
        # What attention read wrongly is told from the keys as they were computed.
        self.said.record(computed, computed.edge(edge.key), ruling)

    def _op(self, code: Code, edge: CodeEdge) -> str | None:
        """Return the operator of a call's code that is behind an edge that diverges, where it can be told."""
        if code.log is not None:
            if self._inside is None:
                real = self.real_of(code.call)
                self._inside = Inside(code=code, explainer=self.explainer, view=self.view, real=real)
            culprit = self._inside.culprit(edge, self._judged(code, edge))
            if culprit is not None:
                return culprit.op
        return code.steps[0].op if len(code.steps) == 1 and edge.depth else None

    def _judge_terms(self, code: Code, edge: CodeEdge) -> tuple[Behind, Tensor] | None:
        """Judge what each rank gave to a sum over ranks.

        Returns:
            The undeclared recipe behind what some ranks gave, and the sum of what all gave; None where no
            such recipe is behind them, or does not explain them all.
        """
        judged = self._judged(code, edge)
        recipe = self.policy.allowed[-1]
        alternatives = judge_terms(
            code,
            edge,
            recipe=recipe,
            trace=self.trace,
            view=self.view,
            judged=judged,
            bench=self.bench,
        )
        terms: list[Term] = []
        found: list[Behind] = []
        is_explained = True
        for tried in alternatives:
            term, behind = tried[0], None
            verdict = _verdict(term.assessment)
            if verdict is not None:
                searched = ((t, self._search.undeclared(t.code, t.edge, judged, is_near=True)) for t in tried)
                term, behind = next((hit for hit in searched if hit[1] is not None), (term, None))
                is_explained = is_explained and behind is not None
            if behind is not None:
                verdict = Verdict.UNDECLARED_PRECISION
                found.append(behind)
            terms.append(term)
            ruling = Ruling(
                check=Check.PARTIAL,
                assessment=term.assessment,
                verdict=verdict,
                band=term.band,
                recipe=recipe if behind is None else behind.recipe,
                judged=judged,
                rank=term.rank,
                op=None if behind is None else behind.op,
            )
            self.said.record(code, term.edge, ruling)
        is_explained = is_explained and len(terms) == self.trace.world_size
        if not found or not is_explained:
            return None
        return found[0], summed(code.module, terms)

    def _behind_terms(
        self, code: Code, edge: CodeEdge, judged: Tensor | None, narrow_terms: tuple[Behind, Tensor] | None
    ) -> Behind | None:
        """Return the recipe behind the ranks' terms, if their sum explains a layer's output as well."""
        if narrow_terms is None:
            return None
        behind, total = narrow_terms
        model = round_nearest(total, format_of(edge.cand.data.dtype))
        account = self.explainer.account(code, edge, behind.recipe, judged, model)
        return behind if account is not None and account.assessment.arm is None else None

    def _record_explained(
        self,
        code: Code,
        edge: CodeEdge,
        check: Check,
        recipe: Recipe,
        account: Account,
        judged: Tensor | None,
    ) -> None:
        """Keep that a declared recipe explains an edge."""
        resolution = self.explainer.resolution(code, edge, recipe, account, judged)
        self._resolutions[edge.key] = resolution
        ruling = Ruling(
            check=check,
            assessment=account.assessment,
            verdict=None,
            band=account.band,
            recipe=recipe,
            judged=judged,
        )
        self.said.record(code, edge, ruling, resolution)

    def _record_undeclared(
        self, code: Code, edge: CodeEdge, check: Check, failed: Account, behind: Behind, judged: Tensor | None
    ) -> None:
        """Keep that a looser recipe is behind an edge, with what a declared one says of it."""
        self._behind += [behind.recipe] if behind.recipe not in self._behind else []
        ruling = Ruling(
            check=check,
            assessment=failed.assessment,
            verdict=Verdict.UNDECLARED_PRECISION,
            band=failed.band,
            recipe=behind.recipe,
            judged=judged,
            op=behind.op if behind.op is not None or code.log is None else self._op(code, edge),
        )
        self.said.record(code, edge, ruling)

    def _judged(self, code: Code, edge: CodeEdge) -> Tensor | None:
        return judged_region(edge.cand, self.real_of(code.call), self.view, self.trace.world_size)


def _check(code: Code, edge: CodeEdge) -> Check:
    if edge.into is not None and edge.into is code.call:
        return Check.INPUT
    if not edge.cand.data.is_floating_point():
        return Check.EXACT
    return Check.WIRING if edge.into is not None or code.has_children else Check.FUNCTION


def _verdict(assessment: Assessment) -> Verdict | None:
    return None if assessment.arm is None else Verdict.DIVERGENT
