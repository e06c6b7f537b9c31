"""Healthy runs of several steps are aligned, and judged as one prefill."""

from typing import Any

import pytest
import torch

from tests.decoding.runs import PADDED, Run, chunked, generated, in_turn, judge, pair
from validator.checks.findings import Verdict
from validator.errors import TargetError

CASES: dict[str, tuple[str, Run, dict[str, Any]]] = {
    "generated in float32": ("llama", generated(), {"dtype": torch.float32}),
    "two requests with other padding": (
        "llama",
        in_turn(generated(3, batch=3, padding=PADDED), generated(3, batch=3, padding=PADDED[::-1])),
        {"kernel": "sdpa"},
    ),
    "two generations whose calls alternate": ("llama", generated(3, guidance_scale=1.5), {"kernel": "sdpa"}),
    "static cache with left padding": (
        "llama",
        generated(batch=3, padding=PADDED, cache_implementation="static"),
        {},
    ),
    "chunked prefill": ("llama", chunked(3, 3, 2, 1), {}),
    "beyond the window": ("gemma2", generated(prompt=5), {"sliding_window": 4}),
    "beyond the window, with sinks and experts": ("gpt-oss", generated(prompt=5), {"sliding_window": 4}),
    "recurrent state": ("mamba2", generated(), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_healthy_run_is_aligned(name: str) -> None:
    family, run, options = CASES[name]
    result = judge(*pair(family, **options), run)
    assert result.verdict is Verdict.ALIGNED, str(result)
    calls = {judgement.call for judgement in result.outcome.judgements if not judgement.module}
    assert calls == set(range(2 if name.startswith("two") else 1))


def test_a_beam_search_ends_in_a_message() -> None:
    with pytest.raises(TargetError, match=r"as a beam search does, .* one sequence a prompt"):
        judge(*pair("llama", dtype=torch.float32), generated(new=3, batch=1, num_beams=2))
