"""A finding on steps that were judged as one call says in which step, and which call, it begins."""

from typing import Any

import pytest
import torch
from torch import Tensor

from validator.align.traces import LogicalTensor, StepTokens, Trace, TraceCall, View
from validator.checks.findings import Arm, Check, Evidence, Finding, Verdict
from validator.checks.stepping import first_step, steps_of, told_by_step

STEPS = tuple(
    StepTokens(call=call, number=number, count=3, start=start, stop=stop, kept=(stop - 1,))
    for call, number, start, stop in ((5, 1, 0, 4), (6, 2, 4, 6), (7, 3, 6, 7))
)
"""The second generation of a run: calls 5 to 7, on 4, 2 and 1 tokens, each of which kept the last logits."""


def call(module: str, n: int, parent: tuple[str, int] | None) -> TraceCall:
    return TraceCall(
        module=module,
        candidate_module=module,
        n=n,
        parent=parent,
        order=0,
        inputs={},
        outputs={},
        values={},
        root=(module if parent is None else "", n),
    )


def trace(*calls: TraceCall) -> Trace:
    return Trace(
        calls={(call.module, call.n): call for call in calls},
        parameters={},
        candidate_parameters={},
        views=(View(ranks=(0,)),),
        world_size=1,
        steps={1: STEPS},
    )


ROOTS = (call("", 0, None), call("", 1, None))
LAYER = call("layer", 1, ("", 1))
RUN = trace(*ROOTS, LAYER)


def edge(*shape: int, dims: tuple[str, ...]) -> LogicalTensor:
    return LogicalTensor(data=torch.zeros(shape), parts=(), dims=dims)


def found(outside: list[list[int]], cand: LogicalTensor, of: TraceCall = LAYER) -> int | None:
    indices: Tensor = torch.tensor(outside, dtype=torch.int64).reshape(-1, len(cand.dims))
    step = first_step(of, indices, cand, RUN)
    return None if step is None else step.number


def test_calls_inside_have_the_steps_of_the_call_of_the_model_around_them() -> None:
    inner = call("layer.mlp", 1, ("layer", 1))
    run = trace(*ROOTS, LAYER, inner)
    assert steps_of(inner, run) == steps_of(ROOTS[1], run) == STEPS


def test_a_call_whose_caller_was_left_out_has_the_steps_of_that() -> None:
    assert steps_of(call("layer", 1, ("", 1)), trace(ROOTS[0])) == STEPS


def test_a_model_that_was_called_once_and_a_module_outside_of_it_have_no_steps() -> None:
    assert steps_of(call("layer", 0, ("", 0)), RUN) == ()
    assert steps_of(call("vision", 1, None), RUN) == ()


@pytest.mark.parametrize(
    ("shape", "dims", "outside", "number"),
    [
        ((2, 7, 3), ("batch", "token", "channel"), [[0, 6, 0], [1, 5, 2]], 2),
        ((2, 7, 3), ("batch", "token", "channel"), [[1, 6, 0]], 3),
        # Rows are the first sequence's tokens, then the second one's.
        ((14, 3), ("token", "channel"), [[6, 0], [7 + 3, 1]], 1),
        ((14, 3), ("token", "channel"), [[6, 0], [7 + 4, 1]], 2),
        # Of queries and keys it is the query that is computed.
        ((2, 3, 7, 7), ("batch", "head", "token", "token"), [[0, 0, 5, 0]], 2),
        # Logits that were kept are of tokens 3, 5 and 6.
        ((2, 3, 9), ("batch", "", "channel"), [[0, 1, 8], [1, 2, 0]], 2),
    ],
    ids=["tokens", "last token", "first rows", "rows", "scores", "kept logits"],
)
def test_it_is_the_step_that_computed_the_first_guilty_element(
    shape: tuple[int, ...], dims: tuple[str, ...], outside: list[list[int]], number: int
) -> None:
    assert found(outside, edge(*shape, dims=dims)) == number


def test_no_step_is_named_where_no_dim_is_of_tokens_or_nothing_is_guilty() -> None:
    assert found([[3, 1]], edge(7, 3, dims=("expert", "channel"))) is None
    assert found([[0, 4, 1]], edge(2, 5, 3, dims=("batch", "token", "channel"))) is None
    assert found([], edge(2, 7, 3, dims=("batch", "token", "channel"))) is None
    assert found([[0, 6, 0]], edge(2, 7, 3, dims=("batch", "token", "channel")), ROOTS[0]) is None


def finding(**changes: Any) -> Finding:
    return Finding(
        module="layer",
        candidate_module="layer",
        check=Check.WIRING,
        verdict=Verdict.DIVERGENT,
        arm=Arm.MAX,
        summary="layer: wrong",
        order=1,
        evidence=Evidence(),
        call=1,
        **changes,
    )


def test_a_finding_is_told_by_the_candidate_s_own_call() -> None:
    told = told_by_step(finding(step=STEPS[0]))
    assert told.call == 5
    assert told.summary == "layer: wrong; first in step 1 of 3"


def test_a_finding_of_a_later_step_says_that_without_a_cache_all_is_right() -> None:
    told = told_by_step(finding(step=STEPS[1]))
    assert told.call == 6
    assert told.summary == (
        "layer: wrong; first in step 2 of 3, while step 1, which goes on from no cache, is right"
    )


def test_a_finding_of_no_step_is_told_as_it_is() -> None:
    assert told_by_step(finding()) == finding()
