"""Texts are generated and followed token by token, with a cache or without."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from validator.content import find_model
from validator.errors import MismatchError, TargetError
from validator.scoring.asking import read
from validator.scoring.generation import follow, generate
from validator.scoring.sampling import GREEDY, Sampling


@pytest.fixture(scope="module")
def model() -> nn.Module:
    model: nn.Module = AutoModelForCausalLM.from_pretrained(find_model("tiny-dense"), dtype=torch.float64)
    return model.eval()


PROMPTS = torch.tensor([list(b"def f(x"), list(b"for i i")])


class Bare(nn.Module):
    """Returns bare logits and knows no cache."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: Tensor) -> Tensor:
        logits: Tensor = self.inner(input_ids=input_ids).logits
        return logits


def test_greedy_text_is_that_of_transformers(model: Any) -> None:
    text = generate(model, PROMPTS, steps=6, sampling=GREEDY)
    theirs = model.generate(PROMPTS, max_new_tokens=6, do_sample=False, pad_token_id=0)
    assert torch.equal(text, theirs[:, PROMPTS.shape[1] :])


def test_a_model_without_a_cache_generates_the_same(model: nn.Module) -> None:
    sampling = Sampling(temperature=1.0, top_p=0.95, seed=4)
    text = generate(model, PROMPTS, steps=6, sampling=sampling)
    assert torch.equal(text, generate(Bare(model), PROMPTS, steps=6, sampling=sampling))


def test_sampled_text_depends_on_the_seed(model: nn.Module) -> None:
    texts = [
        generate(model, PROMPTS, steps=12, sampling=Sampling(temperature=2.0, seed=s)) for s in (0, 0, 1)
    ]
    assert torch.equal(texts[0], texts[1])
    assert not torch.equal(texts[0], texts[2])


def test_following_a_text_gives_the_logits_that_reading_it_gives(model: nn.Module) -> None:
    text = generate(model, PROMPTS, steps=5, sampling=GREEDY)
    whole = torch.cat((PROMPTS, text), dim=1)
    logits = follow(model, PROMPTS, text)
    torch.testing.assert_close(logits, read(model, whole)[:, PROMPTS.shape[1] - 1 : -1])
    assert torch.equal(logits.argmax(-1), text)


class Pooled(Bare):
    """Returns one number a sequence."""

    def forward(self, input_ids: Tensor) -> Tensor:
        return super().forward(input_ids).mean((1, 2))


def test_a_model_that_returns_no_logits_is_refused(model: nn.Module) -> None:
    with pytest.raises(MismatchError, match="to generate it must return logits"):
        generate(Pooled(model), PROMPTS, steps=1, sampling=GREEDY)


def test_a_model_that_fails_on_tokens_alone_is_told_in_one_message() -> None:
    with pytest.raises(TargetError, match=r"the model fails on input_ids \[2, 7\]: TypeError"):
        generate(nn.Embedding(10, 4), PROMPTS, steps=1, sampling=GREEDY)
