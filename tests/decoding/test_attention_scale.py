"""Another scale of all scores of an attention is named as that, with a cache or without one."""

import pytest
from torch import nn

from tests.decoding.runs import Run, generated, judge, pair, prompts
from tests.selecting import cases
from validator.checks.findings import Verdict
from validator.checks.signatures import signature_words

FACTORS = (1.05, 1.1, 1.414, 1.5, 0.5)
KERNELS = ("sdpa", "eager")


def prefill(*, use_cache: bool) -> Run:
    given = prompts(tokens=24)

    def run(model: nn.Module) -> object:
        return model(**given, use_cache=use_cache).logits

    return run


RUNS = {
    "a prefill": prefill(use_cache=False),
    "a prefill with a cache": prefill(use_cache=True),
    "decode steps": generated(6),
}
CASES = [(name, kernel, factor) for name in RUNS for kernel in KERNELS for factor in FACTORS]
QUICK = (
    ("a prefill", "sdpa", 1.5),
    ("a prefill with a cache", "eager", 1.1),
    ("decode steps", "sdpa", 0.5),
    ("decode steps", "sdpa", 1.05),
)


@pytest.mark.parametrize(
    "case", cases(CASES, quick=QUICK.__contains__, label=lambda case: ", ".join(map(str, case)))
)
def test_a_wrong_scale_of_all_scores_is_named_with_both_numbers_and_no_cache(
    case: tuple[str, str, float],
) -> None:
    name, kernel, factor = case
    reference, candidate = pair("llama", kernel=kernel)
    candidate.model.layers[1].self_attn.scaling *= factor
    found = judge(reference, candidate, RUNS[name]).findings[0]
    assert (found.module, found.verdict) == ("model.layers.1.self_attn", Verdict.DIVERGENT)
    assert found.signature is not None
    parameters = found.signature.parameters
    scale = reference.model.layers[1].self_attn.scaling
    assert (parameters["factor"], parameters["value"]) == (pytest.approx(factor, rel=0.01), scale)
    assert signature_words(found.signature).endswith(f"{scale * parameters['factor']:.6g} in place of 0.25")
