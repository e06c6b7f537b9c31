"""From a bad score to a layer: the token at which a candidate goes astray, and the module behind it."""

import pytest

from validator.content import content_path
from validator.errors import UsageError
from validator.scoring.samples import Sample
from validator.scoring.tracing import trace_sample

PORT = str(content_path("examples", "tiny_dense.py"))


def sample(prompt: str) -> Sample:
    return Sample(name="doc 7", prompt=prompt, metric="acc", ref=1.0, cand=0.0)


def test_a_bad_score_leads_to_the_token_and_the_module() -> None:
    trail = trace_sample(
        PORT, sample("def f(values):\n    return [value "), steps=4, plant="head-is-embedding"
    )
    assert trail.first is not None
    assert trail.module == "lm_head"
    assert trail.problems[0].startswith("doc 7: acc 0, and the reference's is 1. The first token that noise")
    assert "lm_head: " in trail.problems[0]


def test_a_score_that_chance_made_worse_leads_nowhere() -> None:
    trail = trace_sample(PORT, sample("for i in range("), steps=3)
    assert (trail.judged, trail.first, trail.module, trail.problems) == (True, None, None, ())


@pytest.mark.parametrize(
    ("prompt", "says"), [("", "is empty"), ("a" * 256, "has 256 tokens, and the model 256")]
)
def test_a_prompt_that_the_model_cannot_read_is_refused(prompt: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        trace_sample(PORT, sample(prompt))
