"""Captures against captures, through the public function and the command."""

import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from unittest import mock

import jsonschema
import pytest
import torch
from click.testing import Result
from rich.console import Console
from torch import Tensor, nn
from typer.testing import CliRunner

import validator
from tests.align.build import HIDDEN, run_model, tensor_ref
from validator import cli
from validator.capturing.files import CaptureSource
from validator.capturing.manifest import Manifest, Proof, ProofStatus
from validator.capturing.reader import Capture, open_capture
from validator.capturing.records import RankCapture, TensorRef
from validator.capturing.session import capture_run
from validator.checks.findings import Verdict
from validator.comparing.comparison import NO_NOISE, compare_captures
from validator.comparing.records import Comparison, Pair
from validator.errors import CaptureError, MismatchError
from validator.numerics.metrics import measure
from validator.report.json_report import schema
from validator.report.pairs import ComparisonResult

WIDTH = 48
X = torch.randn(2, 40, WIDTH, generator=torch.Generator().manual_seed(1))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.act = nn.GELU()
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.act(self.up(x)))


def model(layers: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(layers))).eval()


def captured(path: Path, change: Callable[[nn.Module], object] = lambda made: None, x: Tensor = X) -> Path:
    made = model()
    change(made)

    def run() -> None:
        with torch.no_grad():
            made(x)

    capture_run(run, made, path, proof=False)
    return path


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captured(tmp_path_factory.mktemp("ref") / "reference.h5")


@pytest.fixture(scope="module")
def in_bfloat16(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cand") / "candidate.h5"
    return captured(path, lambda made: made.to(torch.bfloat16), X.bfloat16())


def in_memory(ranks: Sequence[RankCapture], name: str = "memory") -> Capture:
    return Capture(
        path=Path(name),
        manifest=Manifest(
            world_size=len(ranks),
            ranks=tuple(range(len(ranks))),
            proof=Proof(status=ProofStatus.SKIPPED, reason="made by a test"),
        ),
        ranks=tuple(range(len(ranks))),
        complete=True,
        _read=dict(enumerate(ranks)),
    )


def find(comparison: Comparison, module: str, side: str, path: str | None = None) -> Pair:
    (found,) = (
        pair
        for pair in comparison.pairs
        if (pair.module, pair.side) == (module, side) and path in (None, pair.path)
    )
    return found


def test_two_captures_of_one_run_are_aligned(reference: Path, tmp_path: Path) -> None:
    result = validator.compare(ref=reference, cand=captured(tmp_path / "again.h5"))
    assert (result.verdict, result.exit_code) == (Verdict.ALIGNED, 0)
    assert str(result).startswith("aligned: ")
    assert not any(pair.differs for pair in result.comparison.pairs)
    assert {pair.side for pair in result.comparison.pairs} == {"parameter", "input", "output"}


def test_equal_bits_are_not_read_and_have_the_figures_of_reading_them(
    reference: Path, tmp_path: Path
) -> None:
    again = captured(tmp_path / "again.h5")
    with mock.patch.object(CaptureSource, "elements", side_effect=AssertionError("was read")):
        comparison = validator.compare(ref=reference, cand=again).comparison
    calls = {call.module: call for call in open_capture(reference).rank(0).calls}
    output = calls["0.act"].outputs[""].read()
    assert find(comparison, "0.act", "output").metrics == replace(measure(ref=output, cand=output), dims=())


def test_a_run_in_another_format_is_inconclusive_since_no_noise_is_known(
    reference: Path, in_bfloat16: Path
) -> None:
    result = validator.compare(ref=reference, cand=in_bfloat16)
    assert (result.verdict, result.exit_code) == (Verdict.INCONCLUSIVE, 3)
    assert result.comparison.why_inconclusive == (NO_NOISE,)
    weight = find(result.comparison, "0.up", "parameter", "0.up.weight")
    assert (weight.reference_dtype, weight.candidate_dtype) == ("float32", "bfloat16")
    assert (weight.differs, weight.metrics.steps_format) == (False, "bfloat16"), "rounded once"
    assert 1e-4 < weight.metrics.rel_l2 < 4e-3


def test_the_figures_are_those_of_the_stored_tensors(reference: Path, in_bfloat16: Path) -> None:
    comparison = validator.compare(ref=reference, cand=in_bfloat16).comparison
    sides = []
    for path in (reference, in_bfloat16):
        calls = {call.module: call for call in open_capture(path).rank(0).calls}
        sides.append(calls["1.down"].outputs[""].read())
    pair, made = find(comparison, "1.down", "output"), measure(ref=sides[0], cand=sides[1])
    assert pair.metrics == replace(made, dims=())
    worst = {found.meaning: (found.index, found.rel_l2) for found in pair.slices}
    assert worst == {
        name: (errors.worst, errors.rel_l2[errors.worst].item())
        for name, errors in zip(("batch", "token", "channel"), made.dims, strict=True)
    }


def test_the_first_difference_in_execution_order_is_where_the_fault_is(
    reference: Path, tmp_path: Path
) -> None:
    def spoil(made: nn.Module) -> None:
        block = made.get_submodule("1")
        block.act = nn.GELU(approximate="tanh")

    result = validator.compare(ref=reference, cand=captured(tmp_path / "tanh.h5", spoil))
    first = result.comparison.first_difference
    assert first is not None
    assert (first.module, first.side) == ("1.act", "output")
    assert "1.act, output differs first" in str(result)


def test_nan_on_one_side_comes_first_and_is_named(reference: Path, tmp_path: Path) -> None:
    def spoil(made: nn.Module) -> None:
        with torch.no_grad():
            made.get_parameter("0.up.bias")[7] = math.nan

    result = validator.compare(ref=reference, cand=captured(tmp_path / "nan.h5", spoil))
    pair = find(result.comparison, "0.up", "parameter", "0.up.bias")
    assert (pair.metrics.class_mismatched, pair.metrics.worst_index) == (1, (7,))
    assert pair.metrics.max_abs == 0.0
    assert "NaN or infinity on one side alone" in str(result)


def test_a_candidate_on_two_ranks_is_put_together_and_each_rank_has_its_share() -> None:
    healthy = compare_captures(ref=in_memory(run_model()), cand=in_memory(run_model(world=2)))
    assert healthy.verdict in (Verdict.ALIGNED, Verdict.INCONCLUSIVE)
    assert find(healthy, "mlp.up", "output").metrics.rel_l2 < 1e-14
    ranks = run_model(world=2)
    ranks[1] = changed(ranks[1], "mlp.up", lambda tensor: tensor * 1.5)
    comparison = compare_captures(ref=in_memory(run_model()), cand=in_memory(ranks))
    pair = find(comparison, "mlp.up", "output")
    assert pair.shape[-1] == HIDDEN
    assert pair.ranks[0] < 1e-14
    assert pair.ranks[1] == pytest.approx(0.5)
    (channel,) = (found for found in pair.slices if found.meaning == "channel")
    assert channel.index >= HIDDEN // 2


def test_replicas_that_differ_are_compared_one_by_one() -> None:
    ranks = run_model(world=2, norm_factor={1: 1.25})
    comparison = compare_captures(ref=in_memory(run_model()), cand=in_memory(ranks))
    norms = [pair for pair in comparison.pairs if (pair.module, pair.side) == ("norm", "output")]
    assert [(pair.rank, pair.differs) for pair in norms] == [(0, False), (1, True)]
    assert norms[1].metrics.rel_l2 == 0.25


def test_two_runs_on_equally_many_ranks_are_compared_rank_by_rank() -> None:
    ranks = run_model(world=2)
    faulty = [ranks[0], changed(ranks[1], "mlp.up", lambda tensor: tensor * 1.5)]
    comparison = compare_captures(ref=in_memory(ranks), cand=in_memory(faulty))
    ups = [pair for pair in comparison.pairs if (pair.module, pair.side) == ("mlp.up", "output")]
    assert [(pair.rank, pair.differs) for pair in ups] == [(0, False), (1, True)]
    assert ups[1].metrics.rel_l2 == 0.5
    assert compare_captures(ref=in_memory(ranks), cand=in_memory(ranks)).verdict is Verdict.ALIGNED


def test_numbers_of_ranks_that_do_not_fit_are_refused_with_both() -> None:
    with pytest.raises(MismatchError, match=r"a has 2 ranks and b has 3: compare with a reference of one"):
        compare_captures(ref=in_memory(run_model(world=2), "a"), cand=in_memory(run_model(world=3), "b"))


def test_a_tensor_that_does_not_fit_makes_the_result_inconclusive_though_all_others_agree() -> None:
    faulty = changed(run_model()[0], "norm", lambda tensor: tensor[..., :-1])
    comparison = compare_captures(ref=in_memory(run_model()), cand=in_memory([faulty]))
    assert comparison.verdict is Verdict.INCONCLUSIVE
    assert "1 tensors could not be compared: norm: output" in comparison.why_inconclusive[0]
    assert "agree, but not all could be compared" in str(ComparisonResult(comparison))


def test_parameters_that_are_known_by_their_hashes_are_equal_or_differ_in_rows(tmp_path: Path) -> None:
    def stored(name: str, factor: float) -> Path:
        made = model(1)
        made.get_parameter("0.up.weight").data.mul_(factor)
        with torch.no_grad():
            capture_run(lambda: made(X), made, tmp_path / name, proof=False, parameter_limit_bytes=1024)
        return tmp_path / name

    first = stored("first.h5", 1.0)
    assert validator.compare(ref=first, cand=stored("same.h5", 1.0)).verdict is Verdict.ALIGNED
    other = validator.compare(ref=first, cand=stored("other.h5", 2.0))
    assert other.verdict is Verdict.INCONCLUSIVE
    (weight,) = (
        pair for pair in other.comparison.pairs if (pair.side, pair.path) == ("parameter", "0.up.weight")
    )
    assert weight.metrics.mismatched == weight.metrics.elements == prod(weight.shape)


def test_damage_that_a_checksum_shows_is_an_error_and_no_difference(reference: Path, tmp_path: Path) -> None:
    candidate = captured(tmp_path / "candidate.h5", lambda made: made.get_parameter("0.up.bias").data.mul_(2))
    read = CaptureSource.elements

    def flipped(source: CaptureSource, path: str, *args: object) -> object:
        data = read(source, path, *args)  # type: ignore[arg-type]
        if source.path == candidate and "0.up" in path:
            data[0] ^= 1
        return data

    with (
        mock.patch.object(CaptureSource, "elements", flipped),
        pytest.raises(CaptureError, match="does not match its checksum"),
    ):
        validator.compare(ref=reference, cand=candidate)


def test_the_frame_has_a_row_a_tensor_with_its_figures(reference: Path, in_bfloat16: Path) -> None:
    result = validator.compare(ref=reference, cand=in_bfloat16)
    frame = result.to_frame()
    assert len(frame) == len(result.comparison.pairs)
    row = frame[(frame.module == "1.down") & (frame.side == "output")].iloc[0]
    pair = find(result.comparison, "1.down", "output")
    assert (row.rel_l2, row.ulp_steps_max) == (pair.metrics.rel_l2, pair.metrics.ulp_steps_max)
    assert row.worst_slice_rel_l2 == max(found.rel_l2 for found in pair.slices)


def test_the_table_shows_the_worst_first_and_at_most_a_screen(reference: Path, in_bfloat16: Path) -> None:
    result = validator.compare(ref=reference, cand=in_bfloat16)
    lines = str(result).splitlines()
    assert len(lines) <= 24
    worst = max((p for p in result.comparison.pairs if p.differs), key=lambda pair: pair.metrics.rel_l2)
    assert lines[3].split()[0] == worst.module
    assert any(line.split()[:1] == ["more"] for line in lines)


@pytest.mark.parametrize(("width", "is_shown"), [(99, False), (100, True)])
def test_a_narrow_terminal_leaves_the_worst_slices_to_the_file(
    reference: Path, in_bfloat16: Path, width: int, is_shown: bool
) -> None:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(validator.compare(ref=reference, cand=in_bfloat16))
    assert ("worst slice" in console.export_text()) == is_shown


def test_names_are_shown_as_they_are_and_not_as_markup(reference: Path, in_bfloat16: Path) -> None:
    result = validator.compare(ref=reference, cand=in_bfloat16)
    pairs = tuple(replace(pair, module="[bold]\x1b[2J") for pair in result.comparison.pairs)
    text = str(ComparisonResult(replace(result.comparison, pairs=pairs)))
    assert "[bold]\\x1b[2J" in text
    assert "\x1b" not in text


def test_the_command_writes_every_kind_of_file_and_exits_with_the_verdict(
    reference: Path, in_bfloat16: Path, tmp_path: Path
) -> None:
    files = [tmp_path / f"result.{ending}" for ending in ("json", "csv", "md", "html")]
    options = zip(("--json", "--csv", "--markdown", "--html"), files, strict=True)
    run = command("compare", reference, in_bfloat16, *(word for option in options for word in option))
    assert run.exit_code == 3
    assert run.stdout.startswith("inconclusive: ")
    document = json.loads(files[0].read_text())
    jsonschema.validate(document, schema())
    assert len(files[1].read_text().splitlines()) == len(document["pairs"]) + 1
    assert files[2].read_text().startswith("### inconclusive: ")
    assert "<title>inconclusive: " in files[3].read_text()
    alone = command("compare", reference, reference, "--json", "-")
    assert alone.exit_code == 0
    assert json.loads(alone.stdout)["verdict"] == "aligned"


def test_the_schema_refuses_an_inconclusive_comparison_without_a_reason(
    reference: Path, in_bfloat16: Path
) -> None:
    document = validator.compare(ref=reference, cand=in_bfloat16).to_json()
    jsonschema.validate(document, schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "why_inconclusive": []}, schema())


@pytest.mark.parametrize("option", ["--json", "--csv"])
def test_the_command_never_overwrites_a_capture(reference: Path, option: str) -> None:
    before = reference.read_bytes()
    run = command("compare", reference, reference, option, reference)
    assert run.exit_code == 2
    assert "would overwrite the reference's capture" in run.stderr
    assert reference.read_bytes() == before


def test_a_capture_that_is_not_there_is_one_message_and_exit_2(reference: Path, tmp_path: Path) -> None:
    run = command("compare", reference, tmp_path / "nothing.h5")
    assert run.exit_code == 2
    assert "nothing.h5: no such capture" in run.stderr


def command(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def changed(capture: RankCapture, module: str, change: Callable[[Tensor], Tensor]) -> RankCapture:
    """Return a capture whose output of one module is another."""

    def other(ref: TensorRef) -> TensorRef:
        return tensor_ref(change(ref.read()))

    calls = tuple(
        replace(call, outputs={path: other(value) for path, value in call.outputs.items()})
        if call.module == module
        else call
        for call in capture.calls
    )
    return replace(capture, calls=calls)
