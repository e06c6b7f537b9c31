"""Captures with noise: healthy ports are aligned, faulty ones divergent from the faulty module on."""

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import torch
from click.testing import Result
from torch import Tensor, nn
from typer.testing import CliRunner

import validator
from tests.models import KERNELS, Setup, checkpoint, inputs, load_candidate, load_reference
from tests.ranks import RankPool
from tests.small_port import write_port
from validator import cli
from validator.capturing.reader import open_capture
from validator.capturing.session import capture_run
from validator.checks.findings import Arm, Check, Verdict
from validator.checks.propagation import Propagation
from validator.comparing.records import Gap
from validator.faults import parse
from validator.numerics.recipes import EAGER
from validator.report.json_report import schema
from validator.report.pairs import ComparisonResult
from validator.runs import copied

LAYER = "model.layers.2"
FAULTS = {
    "attn-scale:layer=2,factor=1.5": (f"{LAYER}.self_attn", f"{LAYER}.self_attn.o_proj"),
    "residual-after-norm:layer=2": (LAYER, f"{LAYER}.post_attention_layernorm"),
    "act-gelu:layer=2": (f"{LAYER}.mlp.act_fn", None),
    "rope-sign:layer=2": (f"{LAYER}.self_attn", f"{LAYER}.self_attn.o_proj"),
    "mlp-swapped:layer=2": (f"{LAYER}.mlp", f"{LAYER}.mlp.act_fn"),
}
"""Where each is: the module, and the child that gets a wrong input from it."""


class Captures:
    """Captures of references with noise, made once each, and of candidates."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @functools.cache  # noqa: B019 - as long as the module's tests run
    def reference(self, setup: Setup) -> Path:
        """Capture the reference with the noise of a candidate of the setup's dtype."""
        path = self._folder / f"{setup.label}.h5"
        model, given = load_reference(setup, checkpoint(setup, self._folder)), inputs(setup)

        def run() -> None:
            model(**copied(given))

        def source(keeps: Callable[[str, int], bool], folder: Path) -> Propagation:
            return Propagation(
                model=model,
                run=run,
                recipe=EAGER,
                dtype=getattr(torch, setup.dtype),
                runs=12,
                keeps=keeps,
                folder=folder,
            )

        capture_run(run, model, path, proof=False, inputs=given, noise=source)
        return path

    def compared(
        self, setup: Setup, fault: str | None = None, *, noise_of: Setup | None = None
    ) -> ComparisonResult:
        """Compare a candidate with the reference."""
        path = self._folder / "candidate.h5"
        model, given = load_candidate(setup, checkpoint(setup, self._folder)), inputs(setup)
        if fault is not None:
            parse(fault).plant(model)
        run = functools.partial(model, **copied(given))
        capture_run(run, model, path, proof=False, inputs=given, overwrite=True)
        ref = self.reference(noise_of or replace(setup, ref_kernel="eager", cand_kernel="eager"))
        return validator.compare(ref=ref, cand=path)

    def compared_on_ranks(self, setup: Setup, pool: RankPool) -> ComparisonResult:
        """Compare a sharded candidate with the reference."""
        path = self._folder / "candidate"
        pool.run(_capture_rank, setup, checkpoint(setup, self._folder), path)
        return validator.compare(ref=self.reference(replace(setup, tp=1)), cand=path)


def _capture_rank(rank: int, world_size: int, setup: Setup, checkpoint: Path, output: Path) -> None:
    model, given = load_candidate(setup, checkpoint), inputs(setup)
    run = functools.partial(model, **copied(given))
    capture_run(run, model, output, proof=False, inputs=given, overwrite=True)


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Captures:
    return Captures(tmp_path_factory.mktemp("captures"))


SETUPS = [
    *(
        Setup(family=family, cand_kernel=kernel)
        for family in ("llama", "qwen3", "gemma2")
        for kernel in KERNELS[family]
    ),
    Setup(family="llama", dtype="float16", cand_kernel="sdpa", padding=True, seed=1),
    Setup(family="qwen3", dtype="float32", cand_kernel="sdpa", seed=2),
]


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.label)
def test_a_healthy_port_is_aligned(setup: Setup, captures: Captures) -> None:
    result = captures.compared(setup)
    assert result.comparison.why_inconclusive == ()
    assert (result.verdict, result.findings, result.exit_code) == (Verdict.ALIGNED, (), 0)
    pairs = result.comparison.pairs
    ratios = [p.judged.evidence.max_over_band or 0.0 for p in pairs if p.judged and p.judged.evidence]
    assert len(ratios) > 100, "what differs is judged"
    assert max(ratios) < 0.8, "and is well within what is allowed"


def test_a_healthy_sharded_port_is_aligned(captures: Captures, rank_pool: Callable[[int], RankPool]) -> None:
    result = captures.compared_on_ranks(Setup(family="llama", tp=2), rank_pool(2))
    assert (result.verdict, result.comparison.why_inconclusive) == (Verdict.ALIGNED, ())


@pytest.mark.parametrize(
    ("family", "fault"),
    [
        pytest.param(
            family,
            fault,
            id=f"{family}-{fault.partition(':')[0]}",
            marks=() if family == "llama" else pytest.mark.slow,
        )
        for family in ("llama", "qwen3", "gemma2")
        for fault in FAULTS
        # Gemma 2 has norms around its branches, and GELU by itself.
        if family != "gemma2" or not fault.startswith(("residual", "act"))
    ],
)
def test_a_fault_is_first_seen_at_its_own_module(family: str, fault: str, captures: Captures) -> None:
    result = captures.compared(Setup(family=family), fault)
    first = result.first_divergence
    assert first is not None
    assert (first.check, first.arm, first.verdict) == (Check.PAIR, Arm.MAX, Verdict.DIVERGENT)
    module, child = FAULTS[fault]
    # An attention whose probabilities are an output of its own may show there first.
    assert first.module == module
    assert first.into in (child, None)
    assert result.exit_code == 1
    assert str(result).startswith(f"divergent: first seen at {first.module}")
    jsonschema.validate(result.to_json(), schema())


def test_a_wrong_weight_is_found_at_the_parameter(captures: Captures) -> None:
    first = captures.compared(Setup(family="llama"), "weight-row:layer=2,row=40,factor=1.02").first_divergence
    assert first is not None
    assert (first.module, first.path, first.arm) == (f"{LAYER}.mlp.up_proj", "weight", Arm.EXACT)


def test_a_candidate_of_fewer_bits_than_the_noise_is_not_judged(captures: Captures) -> None:
    setup = Setup(family="qwen3", dtype="float32", seed=2)
    result = captures.compared(replace(setup, dtype="bfloat16"), noise_of=setup)
    assert (result.verdict, result.findings) == (Verdict.INCONCLUSIVE, ())
    assert any(str(Gap.COARSER) in why for why in result.comparison.why_inconclusive)


def test_a_candidate_of_more_bits_than_the_noise_is_judged(captures: Captures) -> None:
    setup = Setup(family="llama")
    assert captures.compared(replace(setup, dtype="float16"), noise_of=setup).verdict is Verdict.ALIGNED


def test_the_capture_says_how_its_noise_was_measured(captures: Captures) -> None:
    capture = open_capture(captures.reference(Setup(family="llama")))
    noise = capture.manifest.noise
    assert noise is not None
    assert (noise.runs, noise.recipe, noise.dtype, noise.choice) == (12, "eager", "bfloat16", None)
    calls = {call.module: call for call in capture.rank(0).calls}
    logits, tokens = calls[""].outputs["logits"], calls[""].inputs["input_ids"]
    assert (logits.meta.dtype, logits.noise.meta.dtype) == ("float32", "bfloat16")
    assert logits.noise.read().shape == logits.meta.shape
    assert not tokens.noise.read().any()
    assert calls["lm_head"].outputs[""].noise.read().equal(logits.noise.read())


def test_the_text_says_what_the_noise_is_and_that_a_check_sees_more(captures: Captures) -> None:
    text = " ".join(str(captures.compared(Setup(family="llama"), "act-gelu:layer=2")).split())
    assert "of 12 stochastic runs in bfloat16, recipe eager" in text
    assert "a smaller fault passes unseen" in text
    assert "validator check TARGET --capture CANDIDATE judges each operator" in text


def test_the_frame_has_the_verdict_of_each_tensor(captures: Captures) -> None:
    frame = captures.compared(Setup(family="llama"), "act-gelu:layer=2").to_frame()
    row = frame[(frame.module == f"{LAYER}.mlp.act_fn") & (frame.side == "output")].iloc[0]
    assert (row.verdict, row.arm) == ("divergent", "MAX")
    assert row.max_over_band > 1
    assert (frame[frame.module == "model.layers.1.mlp"].verdict == "aligned").all()


class Router(nn.Module):
    """Chooses two of 32 values of each token."""

    def forward(self, x: Tensor) -> Tensor:
        """Return their indices."""
        return x.topk(2).indices


class Mixture(nn.Module):
    """A model whose second half depends on a choice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before, self.router, self.after = nn.Linear(32, 32), Router(), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        """Return `[2, 16, 32]`."""
        x = self.before(x)
        chosen = self.router(x)
        return self.after(x) * (1 + chosen.sum(-1, keepdim=True))


@pytest.mark.parametrize(
    ("spoilt", "verdict"),
    [(None, Verdict.ALIGNED), ("before", Verdict.DIVERGENT), ("after", Verdict.INCONCLUSIVE)],
)
def test_behind_a_choice_nothing_is_called_divergent(
    spoilt: str | None, verdict: Verdict, tmp_path: Path
) -> None:
    x = torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(1)).bfloat16().float()
    reference, candidate = Mixture(), Mixture().bfloat16()
    if spoilt is not None:
        candidate.get_submodule(spoilt).register_forward_hook(lambda module, args, output: output * 1.5)

    def source(keeps: Callable[[str, int], bool], folder: Path) -> Propagation:
        return Propagation(
            model=reference,
            run=lambda: reference(x),
            recipe=EAGER,
            dtype=torch.bfloat16,
            runs=8,
            keeps=keeps,
            folder=folder,
        )

    capture_run(lambda: reference(x), reference, tmp_path / "ref.h5", proof=False, noise=source)
    capture_run(lambda: candidate(x.bfloat16()), candidate, tmp_path / "cand.h5", proof=False)
    result = validator.compare(ref=tmp_path / "ref.h5", cand=tmp_path / "cand.h5")
    assert result.verdict is verdict
    first = result.first_divergence
    assert (None if first is None else first.module) == (spoilt if verdict is Verdict.DIVERGENT else None)
    if spoilt == "after":
        assert any("a choice comes before" in why for why in result.comparison.why_inconclusive)


def test_the_commands_capture_noise_and_judge_by_it(tmp_path: Path) -> None:
    port, ref, cand = write_port(tmp_path), tmp_path / "ref.h5", tmp_path / "cand.h5"
    options = ["--noise", "8", "--dtype", "bfloat16", "--recipe", "eager"]
    assert run("capture", f"{port}:reference", "-o", ref, *options).exit_code == 0
    assert run("capture", port, "-o", cand).exit_code == 0
    healthy = run("compare", ref, cand)
    assert (healthy.exit_code, healthy.stdout.partition(":")[0]) == (0, "aligned")
    noise = open_capture(ref).manifest.noise
    assert noise is not None
    assert (noise.runs, noise.recipe, noise.dtype) == (8, "eager", "bfloat16")


@pytest.mark.parametrize(
    ("side", "options", "message"),
    [
        ("candidate", ["--noise", "8"], "--noise 8 belongs to the reference"),
        ("reference", ["--noise", "3"], "--noise 3 is too few stochastic runs to judge by: give 8 or more"),
        ("reference", ["--noise", "8", "--dtype", "bf16"], "--dtype 'bf16' is no floating format of torch"),
        ("reference", ["--dtype", "bfloat16"], "With --noise it says which candidate's noise to measure"),
        ("candidate", ["--plant", "attn-scal"], "no fault is called 'attn-scal'"),
    ],
)
def test_what_can_not_be_captured_so_is_one_message(
    side: str, options: list[str], message: str, tmp_path: Path
) -> None:
    made = run("capture", f"{write_port(tmp_path)}:{side}", "-o", tmp_path / "x.h5", *options)
    assert made.exit_code == 2
    assert message in made.stderr
    assert made.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["port.py"]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
