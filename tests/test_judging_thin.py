"""Captures of samples or statistics: what compare and check judge of them, and what they say of it."""

import functools

import pytest
import torch
from torch import nn

import validator
from tests.decoding.runs import pair, prompts
from tests.decoding.test_quantised_caches import cached, fp8_by_head
from validator.capturing.noise import NoiseSource
from validator.capturing.reader import open_capture
from validator.capturing.session import capture_run
from validator.checks.findings import Arm, Check, Verdict
from validator.errors import CaptureError
from validator.judging_thin import RUNS, dtype_of, noise_source, require_full
from validator.numerics.recipes import RECIPES
from validator.report import facts

LEVELS = ("sample", "stats")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.up = nn.Linear(64, 256, bias=False)
        self.down = nn.Linear(256, 64, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 64)
        self.layers = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(64, 256, bias=False)

    def forward(self, input_ids, attention_mask=None):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def inputs():
    return {"input_ids": torch.arange(256).remainder(50).view(2, 128)}


def reference():
    torch.manual_seed(0)
    return Net().eval()


def candidate():
    return reference().to(torch.bfloat16)


def captured(model, path, level, **options):
    given = inputs()
    capture_run(lambda: model(**given), model, path, level=level, inputs=given, **options)
    return path


def noise(model) -> NoiseSource:
    return noise_source(model=model, run=lambda: model(**inputs()), recipe=None, dtype=torch.bfloat16)


@functools.cache
def reference_capture(folder, level):
    model = reference()
    return captured(model, folder / f"reference-{level}.h5", level, noise=noise(model), proof=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("references")


def scaled_rows(module, args, output):
    changed = output.clone()
    changed[:, 60:70] *= 1.3
    return changed


def with_nan(module, args, output):
    changed = output.clone()
    changed[1, 7, 3] = torch.nan  # one in 16384: most samples don't hold it
    return changed


def doubled(module, args, output):
    return output * 2


@pytest.mark.parametrize("ref_level", ["full", "sample"])
def test_a_sample_of_a_healthy_run_is_aligned_and_the_note_says_what_it_is_worth(tmp_path, folder, ref_level):
    path = captured(candidate(), tmp_path / "candidate.h5", "sample")
    result = validator.compare(ref=reference_capture(folder, ref_level), cand=path)
    assert result.verdict is Verdict.ALIGNED, str(result)
    assert any(note.startswith("sampled: ") for note in result.comparison.notes)
    ups = [p for p in result.comparison.pairs if p.module == "layers.1.up" and p.side == "output"]
    assert [(p.shape, p.metrics.elements) for p in ups] == [((2, 128, 256), 65536 // 16)]


def test_hashes_of_another_format_prove_nothing_of_parameters(tmp_path, folder):
    thin = captured(reference(), tmp_path / "thin.h5", "sample", parameter_limit_bytes=0)
    path = captured(candidate(), tmp_path / "candidate.h5", "sample", parameter_limit_bytes=0)
    against = {"full": reference_capture(folder, "full"), "hashes": thin, "itself": path}
    results = {name: validator.compare(ref=ref, cand=path) for name, ref in against.items()}
    assert results["full"].verdict is Verdict.ALIGNED
    assert results["itself"].verdict is Verdict.ALIGNED
    assert "Capture the reference with --level full" in results["hashes"].comparison.why_inconclusive[0]


@pytest.mark.parametrize("ref_level", ["full", "sample"])
def test_a_fault_on_a_few_tokens_shows_in_a_sample_with_its_place(tmp_path, folder, ref_level):
    model = candidate()
    model.layers[1].up.register_forward_hook(scaled_rows)
    path = captured(model, tmp_path / "candidate.h5", "sample")
    first = validator.compare(ref=reference_capture(folder, ref_level), cand=path).first_divergence
    assert first is not None
    assert first.module == "layers.1.up"
    assert 60 <= first.evidence.worst_index[1] < 70
    assert first.evidence.shape == (2, 128, 256)


@pytest.mark.parametrize("level", LEVELS)
def test_a_nan_that_no_sample_holds_is_found_by_the_statistics(tmp_path, level):
    model = candidate()
    model.layers[0].up.register_forward_hook(with_nan)
    path = captured(model, tmp_path / "candidate.h5", level)
    result = validator.check(reference=reference(), candidate=path, inputs=inputs())
    first = result.first_divergence
    assert (first.module, first.check, first.arm) == ("layers.0.up", Check.PAIR, Arm.CLASS)
    assert "1 NaN" in first.summary


def padded_inputs():
    mask = torch.ones(2, 128, dtype=torch.int64)
    mask[1, :40] = 0
    return {**inputs(), "attention_mask": mask}


def with_nan_at(*places):
    def hook(module, args, output):
        changed = output.clone()
        for sequence, tokens in places:
            changed[sequence, tokens] = torch.nan
        return changed

    return hook


def checked_padded(path, level, hook):
    model, given = candidate(), padded_inputs()
    model.head.register_forward_hook(hook)
    capture_run(lambda: model(**given), model, path, level=level, inputs=given)
    return validator.check(reference=reference(), candidate=path, inputs=given)


@pytest.mark.parametrize(
    ("level", "tokens"), [("sample", slice(50, 51)), ("sample", slice(40, 128)), ("stats", slice(40, 128))]
)
def test_nan_in_real_tokens_of_a_padded_batch_are_found(tmp_path, level, tokens):
    result = checked_padded(tmp_path / "candidate.h5", level, with_nan_at((1, tokens)))
    first = result.first_divergence
    assert (first.module, first.arm) == ("head", Arm.CLASS)
    assert "NaN" in first.summary


def test_nan_of_which_no_sample_says_whether_they_are_in_padding_leave_it_open(tmp_path):
    def hook(module, args, output):
        changed = output.clone()
        changed[1, 60, 1] = torch.nan  # not among the elements that are kept
        return changed

    result = checked_padded(tmp_path / "candidate.h5", "sample", hook)
    assert result.verdict is Verdict.INCONCLUSIVE, str(result)
    assert any("in padding or in real tokens" in why for why in result.outcome.why_inconclusive)


def test_a_padded_batch_without_nan_is_aligned(tmp_path):
    result = checked_padded(tmp_path / "candidate.h5", "sample", lambda module, args, output: output)
    assert result.verdict is Verdict.ALIGNED, str(result)


def test_check_of_a_sample_judges_every_module_and_is_aligned(tmp_path):
    path = captured(candidate(), tmp_path / "candidate.h5", "sample")
    result = validator.check(reference=reference(), candidate=path)
    assert result.verdict is Verdict.ALIGNED
    judged = {j.module for j in result.outcome.judgements if j.check is Check.PAIR}
    assert {"", "embed", "head", "layers.0.up", "layers.1.norm"} <= judged
    assert {j.check for j in result.outcome.judgements} == {Check.PARAMETER, Check.PAIR}
    assert result.outcome.distribution is None
    assert any(note.startswith("sampled: ") for note in result.outcome.notes)


def test_check_of_statistics_is_never_aligned_and_says_why(tmp_path):
    path = captured(candidate(), tmp_path / "candidate.h5", "stats")
    result = validator.check(reference=reference(), candidate=path)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert not result.findings
    assert any("only statistics" in why and "prove nothing" in why for why in result.outcome.why_inconclusive)


@pytest.mark.parametrize("level", LEVELS)
def test_a_module_that_is_off_by_far_is_named_at_either_level(tmp_path, level):
    model = candidate()
    model.layers[1].down.register_forward_hook(doubled)
    path = captured(model, tmp_path / "candidate.h5", level)
    result = validator.check(reference=reference(), candidate=path)
    assert result.verdict is Verdict.DIVERGENT
    assert result.first_divergence.module == "layers.1.down"


@pytest.mark.parametrize("level", LEVELS)
def test_one_wrong_bit_of_a_large_weight_is_found_by_its_row(tmp_path, level):
    model = candidate()
    weight = model.head.weight.data
    model.head.weight.data = torch.nn.Parameter(torch.cat([weight] * 8))  # of 64 KiB and more
    ref = reference()
    ref.head.weight.data = torch.cat([ref.head.weight.data] * 8)
    with torch.no_grad():
        model.head.weight[1234, 5] *= 1.0078125
    path = captured(model, tmp_path / "candidate.h5", level)
    first = validator.check(reference=ref, candidate=path).first_divergence
    assert (first.module, first.check) == ("head", Check.PARAMETER)
    assert "1 of 2048 rows (1234)" in first.summary


def test_a_sample_of_a_port_with_a_declared_cache_is_aligned_and_a_wrong_scale_is_found(tmp_path):
    recipe = RECIPES["fp8-cache-by-token-head"]
    verdicts = {}
    for factor in (1.0, 2.0):
        ref, model = pair("llama", kernel="sdpa")
        coded = functools.partial(fp8_by_head, read_by=factor)
        cached(model, coded, coded, reads="everything")
        given = prompts(tokens=32) | {"use_cache": False}
        path = tmp_path / f"{factor}.h5"
        capture_run(functools.partial(model, **given), model, path, level="sample", inputs=given, proof=False)
        verdicts[factor] = validator.check(reference=ref, candidate=path, recipe=recipe)
    assert verdicts[1.0].first_divergence is None
    found = verdicts[2.0].first_divergence
    assert (found.module, found.into) == ("model.layers.0.self_attn", "model.layers.0.self_attn.o_proj")


def test_what_needs_whole_tensors_says_how_to_get_them(tmp_path):
    path = captured(candidate(), tmp_path / "candidate.h5", "sample", proof=False)
    with pytest.raises(CaptureError, match=r"level sample, and bisect runs modules.*--level full"):
        require_full(open_capture(path), "bisect")


@pytest.mark.parametrize("given", [None, inputs()], ids=["recorded inputs", "inputs"])
def test_steps_that_continue_one_another_say_that_they_take_whole_tensors(tmp_path, given):
    model, tokens, path = candidate(), inputs()["input_ids"], tmp_path / "candidate.h5"
    with validator.capture(model, path, level="sample"):
        for start, stop in ((0, 120), (120, 128)):
            model(input_ids=tokens[:, start:stop], attention_mask=torch.ones(2, stop, dtype=torch.int64))
    with pytest.raises(CaptureError, match=r"level sample, and its calls continue one another.*--level full"):
        validator.check(reference=reference(), candidate=path, inputs=given)


def test_the_dtype_is_that_of_most_outputs(tmp_path):
    path = captured(candidate(), tmp_path / "candidate.h5", "stats", proof=False)
    assert dtype_of(open_capture(path)) is torch.bfloat16
    assert RUNS >= 8


def _sharded(rank, world_size, path, level, uses_dtensor, is_faulty):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.set_num_threads(1)
    model = candidate()
    if is_faulty:
        model.layers[1].up.register_forward_hook(doubled)
    mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("tp",))
    for layer in model.layers:
        plan = {"up": ColwiseParallel(use_local_output=not uses_dtensor), "down": RowwiseParallel()}
        parallelize_module(layer, mesh, plan)
    captured(model, path, level)


@pytest.mark.parametrize("uses_dtensor", [True, False], ids=["dtensor", "plain"])
def test_ranks_keep_the_elements_that_one_rank_would(tmp_path, rank_pool, uses_dtensor):
    rank_pool(2).run(_sharded, tmp_path / "healthy", "sample", uses_dtensor, False)
    rank_pool(2).run(_sharded, tmp_path / "faulty", "sample", uses_dtensor, True)
    whole = captured(candidate(), tmp_path / "whole.h5", "sample", proof=False)
    one = next(c for c in open_capture(whole).rank(0).calls if c.module == "layers.0.up").outputs[""].read()
    for rank in range(2):
        calls = open_capture(tmp_path / "healthy").rank(rank).calls
        part = next(c for c in calls if c.module == "layers.0.up").outputs[""].read()
        own = one[..., 128 * rank : 128 * (rank + 1)]
        both = ~(part.isnan() | own.isnan())
        assert torch.equal(~own.isnan() & ~part.isnan(), ~own.isnan())  # a rank's sample is no coarser
        assert torch.equal(part[both], own[both])
    healthy = validator.check(reference=reference(), candidate=tmp_path / "healthy")
    assert healthy.verdict is Verdict.ALIGNED, str(healthy)
    faulty = validator.check(reference=reference(), candidate=tmp_path / "faulty")
    assert faulty.first_divergence.module == "layers.1.up"
    sampled = validator.compare(ref=whole, cand=tmp_path / "healthy")
    assert not sampled.comparison.findings


def test_what_is_judged_of_samples_is_in_execution_order_and_a_finding_is_one_of_its_rows(
    tmp_path, rank_pool
):
    rank_pool(2).run(_sharded, tmp_path / "candidate", "sample", False, True)
    result = validator.check(reference=reference(), candidate=tmp_path / "candidate")
    rows = [(j.module, j.check, j.path) for j in result.outcome.judgements]
    layer = [
        ("layers.0", Check.PAIR, "inputs/x"),
        ("layers.0.up", Check.PAIR, "inputs/input"),
        ("layers.0.up", Check.PAIR, ""),
        ("layers.0.down", Check.PAIR, "inputs/input"),
        ("layers.0.down", Check.PAIR, ""),
        ("layers.0.down", Check.REPLICA, ""),
        ("layers.0", Check.PAIR, ""),
        ("layers.0", Check.REPLICA, ""),
        ("layers.1", Check.PAIR, "inputs/x"),
    ]
    assert [row for row in rows if row in layer] == layer
    row = facts.first_judgement(result.outcome)
    assert rows[row] == ("layers.1.up", Check.PAIR, "")
