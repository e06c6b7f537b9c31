"""The suite `alignment` passes on healthy ports, and fails on each fault with its module or its cause."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from validator import target_check
from validator.baselines.recording import RunOptions, record_run
from validator.content import content_path, find_model
from validator.errors import MismatchError
from validator.scoring import alignment, localising, tracing
from validator.scoring.alignment import Plan, score_target
from validator.scoring.texts import TextTokens

pytest_plugins = ["pytester"]

PORT = """
import os

import torch
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig

from validator.content import find_model
from validator.faults import parse

CHECKPOINT = find_model("{model}")
TEXT = b"def moving_average(values, size):\\n    window = collections.deque(maxlen=size)\\n"


def reference():
    return AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)


def candidate(dtype=torch.bfloat16):
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    sharding = DistributedConfig(tp_plan="auto", tp_size=ranks) if ranks > 1 else None
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=dtype, distributed_config=sharding)
{spoil}
    return model


def inputs():
    return {{"input_ids": torch.tensor([list(TEXT[:64])])}}
"""
HEALTHY = "    pass"
SMALL = "PLAN = Plan(prompts=2, prompt_tokens=16, steps=6, windows=2, window_tokens=48)"


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """Import what the suite needs: pytest inside pytest forgets it, and torch registers nothing twice."""
    for model in ("tiny-dense", "tiny-moe"):
        AutoModelForCausalLM.from_pretrained(find_model(model))(
            input_ids=torch.zeros(1, 2, dtype=torch.int64)
        )
    one = Plan(prompts=1, prompt_tokens=2, steps=1, windows=1, window_tokens=2)
    score_target(str(content_path("examples", "tiny_dense.py")), plan=one, plant="head-is-embedding")
    target_check.check_target(str(content_path("examples", "tiny_dense.py")), include=("lm_head",))


@pytest.fixture
def suite(pytester: pytest.Pytester) -> Path:
    """The shipped suite, which a user copies, with less to do."""
    lines = content_path("suites", "test_alignment.py").read_text(encoding="utf-8").splitlines()
    plans = [line for line in lines if line.startswith("PLAN = ")]
    assert len(plans) == 1
    return pytester.makepyfile(test_alignment="\n".join(SMALL if line in plans else line for line in lines))


def run(
    pytester: pytest.Pytester, suite: Path, *options: str, model: str = "tiny-dense", spoil: str = HEALTHY
) -> pytest.RunResult:
    port = pytester.path / "port.py"
    port.write_text(PORT.format(model=model, spoil=spoil), encoding="utf-8")
    return pytester.runpytest_inprocess(
        str(suite), "--validator-target", str(port), "-p", "no:cacheprovider", "-p", "no:xdist", *options
    )


def failed(result: pytest.RunResult) -> set[str]:
    """Return the names of the tests that failed."""
    return {
        line.split("::")[1].split(" ")[0]
        for line in result.outlines
        if line.startswith("FAILED ") and "::" in line
    }


def text_of(result: pytest.RunResult) -> str:
    """Return all that was printed, in one line."""
    return " ".join(" ".join(result.outlines).split())


PASSED, SKIPPED = 7, 4
"""Parameters, layers, two texts, two distributions, perplexity; no copies on ranks, no sampler, no
baseline, no samples."""


@pytest.mark.parametrize(
    ("model", "ranks"),
    [
        pytest.param("tiny-dense", 1, marks=pytest.mark.slow),
        ("tiny-dense", 2),
        ("tiny-moe", 1),
        pytest.param("tiny-moe", 2, marks=pytest.mark.slow),
    ],
)
def test_a_healthy_port_passes(pytester: pytest.Pytester, suite: Path, model: str, ranks: int) -> None:
    result = run(pytester, suite, "--validator-nproc", str(ranks), model=model)
    copies = int(ranks > 1)
    result.assert_outcomes(passed=PASSED + copies, skipped=SKIPPED - copies)


OTHER_COPY = """
    def spoilt(module, args, output):
        output.logits[0, 0, 3] *= 1.01

    if os.environ.get("RANK") == "1":
        model.register_forward_hook(spoilt)
"""


def test_a_copy_of_the_logits_that_differs_on_one_rank_fails_and_names_it(
    pytester: pytest.Pytester, suite: Path
) -> None:
    result = run(pytester, suite, "--validator-nproc", "2", "-k", "every_rank or greedy", spoil=OTHER_COPY)
    assert failed(result) == {"test_every_rank_holds_the_same_logits"}
    assert "rank 1 holds other logits than rank 0 after the same tokens" in text_of(result)


def test_a_wrong_weight_is_named_by_the_parameters(pytester: pytest.Pytester, suite: Path) -> None:
    spoil = "    model.model.layers[2].mlp.down_proj.weight.data[5] *= 1.5"
    result = run(pytester, suite, "-k", "parameters or layer", spoil=spoil)
    assert failed(result) == {
        "test_parameters_are_those_of_the_reference",
        "test_every_layer_computes_what_the_references_does",
    }
    assert "model.layers.2.mlp.down_proj: parameter weight differs in" in text_of(result)


@pytest.mark.parametrize(
    ("fault", "module", "texts"),
    [
        ("head-is-embedding", "lm_head", {"test_greedy_texts_part_only_at_ties"}),
        # A dozen tokens are the same: the model is sure of them.
        pytest.param("rope-sign:layer=1", "model.layers.1.self_attn", set(), marks=pytest.mark.slow),
    ],
)
def test_a_wrong_module_fails_distributions_which_name_it_and_texts_where_they_part(
    pytester: pytest.Pytester, suite: Path, fault: str, module: str, texts: set[str]
) -> None:
    spoil = f"    parse({fault!r}).plant(model)"
    result = run(pytester, suite, "-k", "greedy or distributions or perplexity", spoil=spoil)
    assert {name.partition("[")[0] for name in failed(result)} == texts | {
        "test_distributions_are_as_near_as_noise_allows",
        "test_perplexity_is_that_of_the_reference",
    }
    assert f"The layers, on the target's inputs: {module}: " in text_of(result)


@pytest.mark.slow
def test_logits_of_another_scale_fail_the_distributions_and_no_greedy_text(
    pytester: pytest.Pytester, suite: Path
) -> None:
    spoil = """    model.lm_head.register_forward_hook(lambda module, args, output: output * 0.8)"""
    result = run(pytester, suite, "-k", "greedy or distributions or layer", spoil=spoil)
    names = {name.partition("[")[0] for name in failed(result)}
    assert names == {
        "test_every_layer_computes_what_the_references_does",
        "test_distributions_are_as_near_as_noise_allows",
    }
    assert "The layers, on the target's inputs: lm_head: " in text_of(result)


SAMPLER = """
    return model


def process_logits(logits, *, temperature, top_k, top_p):
    scores = logits.float()
    {first}
    ordered, order = scores.softmax(-1).sort(-1, descending=True)
    is_cut = (ordered.cumsum(-1) - ordered) >= top_p
    scores = scores.masked_fill(torch.zeros_like(is_cut).scatter(-1, order, is_cut), -torch.inf)
    {then}
    return scores


def unused(model):
"""


@pytest.mark.slow
def test_a_healthy_sampler_of_the_port_passes(pytester: pytest.Pytester, suite: Path) -> None:
    spoil = SAMPLER.format(first="scores = scores / temperature", then="")
    result = run(pytester, suite, "-k", "sampler or sampled", spoil=spoil)
    result.assert_outcomes(passed=2, deselected=9)


def test_top_p_before_the_temperature_fails_the_sampler_alone_and_is_named(
    pytester: pytest.Pytester, suite: Path
) -> None:
    spoil = SAMPLER.format(first="", then="scores = scores / temperature")
    result = run(pytester, suite, "-k", "sampler or greedy or layer", spoil=spoil)
    assert failed(result) == {"test_the_sampler_gives_the_distribution_that_it_is_asked_for"}
    assert "looks like top-k and top-p applied before the temperature" in text_of(result)


DECODING = """
    rotary = model.model.rotary_emb
    healthy = rotary.forward

    def forward(x, position_ids, **options):
        return healthy(x, position_ids - 1 if position_ids.shape[-1] == 1 else position_ids, **options)

    rotary.forward = forward
"""


def test_a_fault_of_decoding_alone_fails_what_is_generated_and_no_layer(
    pytester: pytest.Pytester, suite: Path
) -> None:
    result = run(pytester, suite, "-k", "distributions or layer", spoil=DECODING)
    assert failed(result) == {"test_distributions_are_as_near_as_noise_allows[generated]"}
    assert "No layer is wrong: look at what is done with the logits, and at the cache." in text_of(result)


def test_a_finding_stands_where_the_layers_cannot_be_checked(
    pytester: pytest.Pytester, suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise MismatchError("other vocabularies")

    monkeypatch.setattr(target_check, "check_target", failing)
    monkeypatch.setattr(localising, "check_target", failing)
    spoil = "    parse('head-is-embedding').plant(model)"
    result = run(pytester, suite, "-k", "greedy", spoil=spoil)
    assert failed(result) == {"test_greedy_texts_part_only_at_ties"}
    assert "are not the reference's, and noise does not explain it" in text_of(result)
    assert "The layers could not be checked on the target's inputs: other vocabularies" in text_of(result)


def test_a_text_that_was_read_as_bytes_is_told(
    pytester: pytest.Pytester, suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_bytes = TextTokens(ids=torch.arange(200), note="no tokenizer of 'x' can be loaded on this machine")
    result = run(pytester, suite, "-k", "perplexity")
    assert "was read as bytes" not in text_of(result)
    monkeypatch.setattr(alignment, "tokens_of", lambda *_, **__: as_bytes)
    result = run(pytester, suite, "-k", "perplexity")
    result.assert_outcomes(passed=1, deselected=10)
    assert "the text was read as bytes, since no tokenizer of 'x' can be loaded" in text_of(result)


def scores(folder: Path) -> tuple[str, str]:
    """Write the scores of two prompts, of which one is worse, and return the option that names them."""
    lines = [
        {"prompt": "for i in range(", "reference": 1.0, "candidate": 0.0},
        {"prompt": "def f(", "reference": 1.0, "candidate": 1.0},
    ]
    samples = folder / "scores.jsonl"
    samples.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return "--validator-samples", str(samples)


def test_a_prompt_that_scored_worse_by_chance_passes_and_is_inconclusive_without_noise(
    pytester: pytest.Pytester, suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(pytester, suite, "-k", "prompts", *scores(pytester.path)).assert_outcomes(passed=1, deselected=10)
    monkeypatch.setattr(tracing, "logit_noise", lambda *_, **__: None)
    result = run(pytester, suite, "-k", "prompts", *scores(pytester.path))
    result.assert_outcomes(failed=1, deselected=10)
    assert "inconclusive: line 1: score 0, and the reference's is 1. No token was judged" in text_of(result)


def test_prompts_none_of_which_scored_worse_are_a_comparison_that_passes(
    pytester: pytest.Pytester, suite: Path
) -> None:
    samples = pytester.path / "scores.jsonl"
    samples.write_text('{"prompt": "def f(", "reference": 1.0, "candidate": 1.0}\n', encoding="utf-8")
    result = run(pytester, suite, "-k", "prompts", "--validator-samples", str(samples))
    result.assert_outcomes(passed=1, deselected=10)
    assert "prompts 1, prompts with a worse score 0" in text_of(result)


@pytest.mark.slow
def test_a_prompt_with_a_worse_score_leads_to_the_module(pytester: pytest.Pytester, suite: Path) -> None:
    spoil = "    parse('head-is-embedding').plant(model)"
    result = run(pytester, suite, "-k", "prompts", *scores(pytester.path), spoil=spoil)
    assert failed(result) == {"test_prompts_with_a_worse_score_are_computed_right"}
    assert "line 1: score 0, and the reference's is 1." in text_of(result)
    assert "lm_head: " in text_of(result)


def test_a_baseline_is_asked_for_where_its_folder_is_named(pytester: pytest.Pytester, suite: Path) -> None:
    by_default = run(pytester, suite, "-k", "baseline")
    by_default.assert_outcomes(skipped=1)
    named = run(pytester, suite, "-k", "baseline", "--validator-baselines", "kept")
    assert failed(named) == {"test_distributions_are_those_of_the_baseline"}
    assert "there is no baseline 'port' in kept: record it with `validator baseline record port" in text_of(
        named
    )


def test_a_baseline_of_the_reference_alone_is_inconclusive_and_says_what_to_record(
    pytester: pytest.Pytester, suite: Path
) -> None:
    run(pytester, suite, "-k", "nothing")  # writes the port
    options = RunOptions(dtype="bfloat16", include=("model.norm",))
    record_run(
        "port", str(pytester.path / "port.py"), folder=pytester.path / "kept", options=options, noise=8
    )
    result = run(pytester, suite, "-k", "baseline", "--validator-baselines", "kept")
    text = text_of(result)
    assert "inconclusive: the baseline 'port' holds no run of the candidate" in text
    assert "record it too, `validator baseline record port" in text
