"""What a candidate generates and reads is compared with the reference, and with an earlier version."""

from pathlib import Path
from typing import Any

import pytest
import torch

from validator.baselines.recording import RunOptions, record_run
from validator.content import content_path
from validator.errors import MismatchError, UsageError
from validator.scoring import alignment
from validator.scoring.alignment import Plan, score_target
from validator.scoring.baseline import baseline_name, find_baseline, read_logits, readable_baseline
from validator.scoring.noise import logit_noise

PORT = str(content_path("examples", "tiny_dense.py"))
PLAN = Plan(prompts=2, prompt_tokens=12, steps=4, windows=2, window_tokens=24)


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("baselines"), "candidate", include=("",))


def record(folder: Path, side: str, **options: Any) -> Path:
    run = RunOptions(**{"dtype": "bfloat16", **options})
    assert record_run("tiny_dense", PORT, side, folder=folder, options=run, noise=8).exit_code == 0
    return folder / "tiny_dense"


def test_a_healthy_candidate_is_aligned_with_the_reference_and_with_its_earlier_version(
    captured: Path,
) -> None:
    scores = score_target(PORT, plan=PLAN, baseline=captured)
    assert scores.problems == ()
    assert scores.unjudged == ()
    assert [score.steps for score in scores.choices] == [8, 8]
    assert scores.generated is not None
    assert scores.generated.figures.positions == 16
    assert scores.perplexity is not None
    assert scores.perplexity.tokens == 46
    assert scores.versus_baseline is not None
    # The same code on the same machine: not only near.
    assert scores.versus_baseline.figures.kl.max == 0
    assert scores.text_at_fault() is None


def test_a_candidate_that_changed_is_told_from_its_earlier_version(captured: Path) -> None:
    scores = score_target(PORT, plan=PLAN, baseline=captured, plant="rope-sign:layer=1")
    assert any("the KL divergence from the baseline tiny_dense" in text for text in scores.problems)


def test_a_float32_run_is_as_near_a_bfloat16_baseline_as_bfloat16_allows(captured: Path) -> None:
    assert read_logits(captured).dtype is torch.bfloat16
    scores = score_target(PORT, plan=PLAN, baseline=captured, dtype="float32")
    assert scores.problems == ()
    assert scores.versus_baseline is not None
    assert scores.read is not None
    # Against the reference it is held to its own format.
    assert scores.versus_baseline.figures.kl.mean > scores.read.kl_limit


def test_a_bfloat16_run_is_as_near_a_float32_baseline_as_bfloat16_allows(tmp_path: Path) -> None:
    path = record(tmp_path, "candidate", include=("",), dtype="float32")
    assert read_logits(path).dtype is torch.float32
    scores = score_target(PORT, plan=PLAN, baseline=path)
    assert scores.problems == ()
    assert scores.versus_baseline is not None


def test_a_float32_run_that_changed_is_told_from_a_bfloat16_baseline(captured: Path) -> None:
    scores = score_target(PORT, plan=PLAN, baseline=captured, dtype="float32", plant="rope-sign:layer=1")
    assert any("the KL divergence from the baseline tiny_dense" in text for text in scores.problems)


@pytest.mark.parametrize("known", [0, 1, 2])
def test_whatever_is_not_judged_says_why_once(
    captured: Path, monkeypatch: pytest.MonkeyPatch, known: int
) -> None:
    """The noise of the texts is measured first, then that of what is read, then that of the baseline's."""
    calls = iter(range(3))

    def noise(*args: Any, **options: Any) -> Any:
        return logit_noise(*args, **options) if next(calls) < known else None

    monkeypatch.setattr(alignment, "logit_noise", noise)
    scores = score_target(PORT, plan=PLAN, baseline=captured)
    parts = (scores.generated, scores.perplexity, scores.versus_baseline)
    assert [part is not None for part in parts] == [known > 0, known > 1, False]
    (why,) = scores.unjudged
    assert why.startswith("the reference's code can't run in simulated arithmetic")


def test_windows_of_one_token_have_no_perplexity_and_say_so() -> None:
    scores = score_target(PORT, plan=Plan(prompts=1, prompt_tokens=4, steps=1, windows=2, window_tokens=1))
    assert scores.perplexity is None
    assert scores.read is not None
    assert scores.unjudged == (
        "the windows of the text that is read are of one token, so that none follows another: no perplexity",
    )


NARROW = """
import torch

from validator.content import find_model
from validator.pretrained import transformers

CHECKPOINT = find_model("tiny-dense")


def reference():
    return transformers().AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)


def candidate():
    model = reference()
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight[:128].clone())
    return model


def inputs():
    return {"input_ids": torch.arange(32).view(1, 32)}
"""


def test_logits_of_a_part_of_the_tokens_are_refused(tmp_path: Path) -> None:
    cut = """
    model.register_forward_hook(lambda module, args, output: {"logits": output.logits[:, -4:]})
    return model
"""
    (tmp_path / "narrow.py").write_text(
        NARROW.replace(
            "    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight[:128].clone())\n", ""
        ).replace("    model = reference()\n    return model\n", f"    model = reference(){cut}")
    )
    with pytest.raises(
        MismatchError, match=r"logits of \[2, 4\] tokens on rank 0 where it is given \[2, 24\]"
    ):
        score_target(str(tmp_path / "narrow.py"), plan=PLAN)


@pytest.mark.parametrize("nproc", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_logits_of_a_part_of_the_vocabulary_are_refused(nproc: int, tmp_path: Path) -> None:
    (tmp_path / "narrow.py").write_text(NARROW)
    with pytest.raises(MismatchError, match=r"returns 128 logits a token on rank 0.* and the reference 256"):
        score_target(str(tmp_path / "narrow.py"), plan=PLAN, nproc=nproc)


RANKS = """
import torch
import torch.distributed as dist
from validator.content import find_model
from validator.pretrained import transformers

CHECKPOINT = find_model("tiny-dense")


def reference():
    return transformers().AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)


def candidate():
    model = reference().to(torch.bfloat16)
    rank = dist.get_rank()
    SPOIL
    return model


def process_logits(logits, *, temperature, top_k, top_p):
    return logits / temperature


def inputs():
    return {"input_ids": torch.arange(32).view(1, 32)}
"""
# The tokens of a text, ASCII, are in the first half.
PART = """part = model.lm_head.weight.chunk(2)[rank]
    model.lm_head.weight = torch.nn.Parameter(part * (1 + (1 - rank) * SCALE))"""


@pytest.mark.parametrize(
    ("scale", "is_healthy"), [("0", True), pytest.param("0.2", False, marks=pytest.mark.slow)]
)
def test_parts_of_the_vocabulary_are_put_together(scale: str, is_healthy: bool, tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(RANKS.replace("SPOIL", PART.replace("SCALE", scale)))
    scores = score_target(str(tmp_path / "ranks.py"), plan=PLAN, nproc=2)
    assert scores.holders.ranks == (0, 1)
    assert (scores.problems == ()) is is_healthy
    assert len(scores.samplers) == 1


PADDED = """part = torch.nn.functional.pad(model.lm_head.weight, (0, 0, 0, 64), value=rank)
    part = part.chunk(2)[rank].clone()
    part[80:96] *= 1 + rank * SCALE
    model.lm_head.weight = torch.nn.Parameter(part)"""


@pytest.mark.parametrize(
    ("scale", "is_healthy"), [("0", True), pytest.param("4", False, marks=pytest.mark.slow)]
)
def test_what_pads_parts_of_the_vocabulary_is_cut_and_told(
    scale: str, is_healthy: bool, tmp_path: Path
) -> None:
    (tmp_path / "ranks.py").write_text(RANKS.replace("SPOIL", PADDED.replace("SCALE", scale)))
    scores = score_target(str(tmp_path / "ranks.py"), plan=PLAN, nproc=2)
    assert (scores.holders.ranks, scores.holders.padding) == ((0, 1), 64)
    assert scores.note is not None
    assert scores.note.endswith("the last 64 logits of rank 1 pad the vocabulary and are not judged")
    assert (scores.problems == ()) is is_healthy


@pytest.mark.parametrize(
    ("spoil", "unequal"),
    [
        pytest.param("pass", (), marks=pytest.mark.slow),
        # Less than what moves a token.
        ("model.lm_head.weight.data[3] *= 1 + rank * 2**-5", ((1, 0),)),
    ],
)
def test_a_rank_whose_copy_of_the_logits_differs_is_named(
    spoil: str, unequal: tuple[tuple[int, int], ...], tmp_path: Path
) -> None:
    (tmp_path / "ranks.py").write_text(RANKS.replace("SPOIL", spoil))
    scores = score_target(str(tmp_path / "ranks.py"), plan=PLAN, nproc=2)
    assert (scores.holders.copies, scores.holders.unequal) == (2, unequal)
    named = [text for text in scores.problems if "rank 1 holds other logits than rank 0" in text]
    assert len(named) == len(unequal) == len(scores.problems)


STAGES = """
import torch
import torch.distributed as dist
from validator.content import find_model
from validator.pretrained import transformers

CHECKPOINT = find_model("tiny-dense")


def reference():
    return transformers().AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)


class Stage(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.body = model.model if dist.get_rank() == 0 else None
        self.lm_head = model.lm_head if dist.get_rank() == 1 else None

    def forward(self, input_ids):
        if self.lm_head is None:
            hidden = self.body(input_ids).last_hidden_state
            dist.send(hidden.contiguous(), 1)
            return RETURNED
        hidden = torch.empty(*input_ids.shape, 128, dtype=torch.bfloat16)
        dist.recv(hidden, 0)
        return self.lm_head(hidden) * FACTOR


def candidate():
    return Stage(reference().to(torch.bfloat16))


def inputs():
    return {"input_ids": torch.arange(32).view(1, 32)}
"""


@pytest.mark.parametrize(
    ("returned", "factor", "is_healthy"),
    [
        ("None", "1.0", True),
        pytest.param("hidden", "1.0", True, marks=pytest.mark.slow),
        pytest.param("hidden", "0.8", False, marks=pytest.mark.slow),
    ],
)
def test_of_a_pipeline_the_logits_of_the_last_stage_are_judged(
    returned: str, factor: str, is_healthy: bool, tmp_path: Path
) -> None:
    (tmp_path / "stages.py").write_text(STAGES.replace("RETURNED", returned).replace("FACTOR", factor))
    scores = score_target(str(tmp_path / "stages.py"), plan=PLAN, nproc=2)
    assert scores.holders.ranks == (1,)
    assert scores.generated is not None
    assert scores.generated.figures.positions > 0
    assert (not scores.generated.problems) is is_healthy, scores.generated.problems


def test_hidden_states_as_wide_as_the_vocabulary_are_not_judged_as_the_model(tmp_path: Path) -> None:
    wide = STAGES.replace("RETURNED", "torch.cat((hidden, hidden), dim=-1)").replace("FACTOR", "1.0")
    (tmp_path / "stages.py").write_text(wide)
    with pytest.raises(MismatchError, match="rank 0 returns 256 numbers a token and rank 1 256, other ones"):
        score_target(str(tmp_path / "stages.py"), plan=PLAN, nproc=2)


@pytest.mark.slow
def test_a_candidate_without_logits_on_any_rank_is_refused(tmp_path: Path) -> None:
    (tmp_path / "stages.py").write_text(
        STAGES.replace("RETURNED", "None").replace("return self.lm_head(hidden) * FACTOR", "return {}")
    )
    with pytest.raises(MismatchError, match="returned NoneType; to generate it must return logits"):
        score_target(str(tmp_path / "stages.py"), plan=PLAN, nproc=2)


def test_a_baseline_is_found_by_the_name_of_the_target(captured: Path, tmp_path: Path) -> None:
    assert find_baseline(captured.parent, "somewhere/tiny_dense.py") == captured
    assert find_baseline(captured.parent, "other.py") is None
    (tmp_path / "other").mkdir()
    assert find_baseline(tmp_path, "other.py") is None
    # A dot in the name of a checkpoint is a version, of which there are several.
    names = [baseline_name(f"models/{name}") for name in ("Qwen2.5-7B", "Qwen2.5-14B/", "port.py")]
    assert names == ["Qwen2.5-7B", "Qwen2.5-14B", "port"]
    assert readable_baseline(captured.parent, "tiny_dense.py") == captured


def test_a_baseline_holds_the_tokens_and_logits_of_its_first_call(captured: Path) -> None:
    stored = read_logits(captured)
    assert stored.ids.dtype is torch.int64
    assert stored.logits.shape == (*stored.ids.shape, 256)


@pytest.mark.parametrize(
    ("side", "include", "message"),
    [
        ("reference", "", "holds no run of the candidate"),
        ("candidate", "model.norm", "does not hold input_ids and logits"),
    ],
)
def test_a_baseline_without_the_candidates_own_call_says_what_to_record(
    tmp_path: Path, side: str, include: str, message: str
) -> None:
    path = record(tmp_path, side, include=(include,))
    with pytest.raises(MismatchError, match=message) as raised:
        read_logits(path)
    assert f"`validator baseline record tiny_dense {PORT}:candidate --update" in str(raised.value)
    assert readable_baseline(tmp_path, PORT) is None


@pytest.mark.parametrize("name", ["prompts", "prompt_tokens", "steps", "windows", "window_tokens"])
def test_a_plan_that_asks_nothing_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is 0"):
        Plan(**{name: 0})
