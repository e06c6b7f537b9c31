"""The suite `determinism` passes on healthy ports, and fails on each fault with its module or its cause."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.determinism.ports import write_port
from validator.content import content_path, find_model
from validator.determinism.study import Study

pytest_plugins = ["pytester"]

PORT = """
import os

import torch
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig

from validator.content import find_model

CHECKPOINT = find_model("{model}")


def reference():
    return AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)


def candidate(dtype=torch.bfloat16):
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    sharding = DistributedConfig(tp_plan="auto", tp_size=ranks) if ranks > 1 else None
    return AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=dtype, distributed_config=sharding)


def inputs():
    return {{"input_ids": torch.tensor([list(b"def mean"), list(b"(values)")])}}
"""


@pytest.fixture(scope="module", autouse=True)
def loaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Load what the suite needs: pytest in pytest forgets its imports, and torch registers nothing twice."""
    for model in ("tiny-dense", "tiny-moe"):
        AutoModelForCausalLM.from_pretrained(find_model(model))(
            input_ids=torch.zeros(1, 2, dtype=torch.int64)
        )
    Study(write_port(tmp_path_factory.mktemp("loaded"))).batching()


def run(pytester: pytest.Pytester, port: str, *options: str) -> pytest.RunResult:
    suite = content_path("suites", "test_determinism.py")
    return pytester.runpytest_inprocess(
        str(suite), "--validator-target", port, "-p", "no:cacheprovider", "-p", "no:xdist", *options
    )


def text_of(result: pytest.RunResult) -> str:
    """Return all that was printed, in one line."""
    return " ".join(" ".join(result.outlines).split())


@pytest.mark.parametrize(
    ("model", "counts"),
    [
        ("tiny-dense", "1,2"),
        ("tiny-moe", "1"),
        pytest.param("tiny-moe", "1,2", marks=pytest.mark.slow),
        pytest.param("tiny-dense", "1,4", marks=pytest.mark.slow),
        pytest.param("tiny-moe", "1,4", marks=pytest.mark.slow),
    ],
)
def test_a_healthy_port_passes_on_every_number_of_cards(
    pytester: pytest.Pytester, model: str, counts: str
) -> None:
    port = pytester.path / "port.py"
    port.write_text(PORT.format(model=model), encoding="utf-8")
    result = run(pytester, str(port), "--validator-card-counts", counts)
    several = counts != "1"
    result.assert_outcomes(passed=4 + several, skipped=1 - several)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tiny-dense", "tiny-moe"])
def test_a_healthy_port_that_is_sharded_passes(pytester: pytest.Pytester, model: str) -> None:
    port = pytester.path / "port.py"
    port.write_text(PORT.format(model=model), encoding="utf-8")
    result = run(pytester, str(port), "--validator-nproc", "2", "--validator-card-counts", "1,2")
    result.assert_outcomes(passed=5)


@pytest.mark.parametrize(
    ("fault", "test", "module", "cause"),
    [
        ("any-order", "same_run", "layers.1.down", "aten.add"),
        ("unwritten", "memory", "layers.0.attention.o", "aten.empty_like"),
        ("neighbour", "batch", "layers.1.attention.v", "rounding does not explain it"),
        pytest.param(
            "restarted-positions", "chunks", "places", "in chunks of 6, 2, 4", marks=pytest.mark.slow
        ),
        pytest.param(
            "coarse-later-ranks", "cards", "layers.1.down", "rounding does not", marks=pytest.mark.slow
        ),
    ],
)
def test_a_faulty_port_fails_with_the_module_and_the_cause(
    pytester: pytest.Pytester, fault: str, test: str, module: str, cause: str
) -> None:
    result = run(pytester, write_port(Path(pytester.path), fault), "-k", test)
    outcomes = result.parseoutcomes()
    assert (outcomes.get("failed"), outcomes.get("passed")) == (1, None)
    assert module in text_of(result)
    assert cause in text_of(result)
    assert "Traceback" not in text_of(result)


def test_a_port_whose_inputs_make_no_other_batch_is_skipped_with_the_reason(
    pytester: pytest.Pytester,
) -> None:
    result = run(pytester, write_port(Path(pytester.path), "own-run"), "-k", "chunks", "-rs")
    result.assert_outcomes(skipped=1, deselected=4)
    assert "run() of its own" in text_of(result)


def test_levels_that_a_port_of_one_shape_has_no_run_for_are_skipped_and_the_others_judged(
    pytester: pytest.Pytester,
) -> None:
    port = write_port(Path(pytester.path), "fixed-shape")
    result = run(pytester, port, "--validator-card-counts", "1", "-rs")
    result.assert_outcomes(passed=2, skipped=3)
    assert "compiled for [1, 12], not for [3, 12]" in text_of(result)
    assert "compiled for [1, 12], not for [1, 6]" in text_of(result)


def test_cards_that_a_port_is_not_built_on_are_told_beside_those_that_were_judged(
    pytester: pytest.Pytester,
) -> None:
    port = write_port(Path(pytester.path), "one-card")
    result = run(pytester, port, "--validator-card-counts", "1,2", "-k", "same_run or cards", "-rs")
    result.assert_outcomes(passed=1, skipped=1, deselected=3)
    assert "not applicable no candidate on 2 cards: " in text_of(result)


@pytest.mark.slow
def test_a_port_that_shards_nothing_is_no_evidence_of_card_counts(pytester: pytest.Pytester) -> None:
    result = run(pytester, write_port(Path(pytester.path), "unsharded"), "-k", "cards", "-rs")
    result.assert_outcomes(skipped=1, deselected=4)
    assert "each of 2 ranks runs the whole model by itself" in text_of(result)
