"""From a bad score to a layer: the token at which a candidate goes astray, and the module behind it."""

from typing import Any

import pytest
import torch

from validator.content import content_path
from validator.errors import MismatchError, UsageError
from validator.scoring import tracing
from validator.scoring.samples import Sample
from validator.scoring.texts import TextTokens
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


def test_a_prompt_that_is_text_is_refused_without_the_models_own_tokenizer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    no_tokens = TextTokens(ids=torch.tensor([1]), note="no tokenizer of 'x' can be loaded on this machine")
    monkeypatch.setattr(tracing, "tokens_of", lambda *_, **__: no_tokens)
    with pytest.raises(
        UsageError, match=r"the prompt of doc 7 is text, and no tokenizer of 'x'.*as input_ids"
    ):
        trace_sample(PORT, sample("for i in range("), steps=3)


def test_a_score_that_chance_made_worse_leads_nowhere() -> None:
    trail = trace_sample(PORT, sample("for i in range("), steps=3)
    assert (trail.judged, trail.first, trail.module, trail.problems) == (True, None, None, ())
    assert trail.undecided is None


def test_a_token_that_went_astray_stands_where_the_layers_cannot_be_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise MismatchError("other vocabularies")

    monkeypatch.setattr(tracing, "check_tokens", failing)
    astray = trace_sample(PORT, sample("for i in range("), steps=3, plant="head-is-embedding")
    assert astray.first is not None
    assert astray.module is None
    assert astray.undecided is None
    (text,) = astray.problems
    assert "The first token that noise does not explain is" in text
    assert text.endswith(". The layers could not be checked: other vocabularies")
    healthy = trace_sample(PORT, sample("for i in range("), steps=3)
    assert healthy.problems == ()
    assert str(healthy.undecided).endswith("The layers could not be checked: other vocabularies")


def test_tokens_that_no_noise_judges_are_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "logit_noise", lambda *_, **__: None)
    trail = trace_sample(PORT, sample("for i in range("), steps=3)
    assert (trail.judged, trail.problems) == (False, ())
    assert str(trail.undecided).endswith("No token was judged, since the reference's noise can't be measured")
    # What the layers show is known all the same.
    found = trace_sample(PORT, sample("for i in range("), steps=3, plant="head-is-embedding")
    assert (found.module, found.undecided) == ("lm_head", None)


@pytest.mark.parametrize(
    ("prompt", "says"), [("", "is empty"), ("a" * 256, "has 256 tokens, and the model 256")]
)
def test_a_prompt_that_the_model_cannot_read_is_refused(prompt: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        trace_sample(PORT, sample(prompt))
