"""Parameters and buffers: bit by bit, and what kind of difference they show."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from tests.checks.build import ALL, edge
from validator.align.traces import Edge, LogicalTensor, Part, Trace, View
from validator.capturing.digest import row_hashes
from validator.checks import stored_rows
from validator.checks.findings import Arm, Check, Finding, Judgement, Unchecked, Verdict
from validator.checks.parameters import COMPUTED_ULP, check_parameters
from validator.errors import CaptureError, LayoutError


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 12)
        self.gate = nn.Linear(8, 12)
        for parameter in self.parameters():
            nn.init.normal_(parameter, generator=generator)
        self.register_buffer("steps", torch.arange(4))
        self.register_buffer("scale", torch.linspace(0.1, 0.9, 8))
        self.register_buffer("inv_freq", 1e4 ** -(torch.arange(0, 8, 2) / 8), persistent=False)


def traced(candidate: nn.Module, world_size: int = 1) -> Trace:
    tensors = dict(candidate.named_parameters()) | dict(candidate.named_buffers())
    return Trace(
        calls={},
        parameters={name: edge(tensor.detach(), path=name) for name, tensor in tensors.items()},
        candidate_parameters={name: f"engine.{name}" for name in tensors},
        views=(ALL,),
        world_size=world_size,
    )


def checked(candidate: nn.Module) -> tuple[list[Judgement], list[Finding], list[Unchecked]]:
    return check_parameters(reference=Model(), trace=traced(candidate), view=ALL)


def changed(name: str, value: Tensor, dtype: torch.dtype = torch.bfloat16) -> list[Finding]:
    """Check a candidate one of whose tensors is another."""
    candidate = Model().to(dtype)
    owner = candidate.get_submodule(name.rpartition(".")[0])
    getattr(owner, name.rpartition(".")[2]).data = value.to(dtype) if value.is_floating_point() else value
    candidate.inv_freq = candidate.inv_freq if name == "inv_freq" else Model().inv_freq
    return checked(candidate)[1]


def weight() -> Tensor:
    return Model().up.weight.detach().clone()


def test_an_equal_candidate_is_aligned_in_every_parameter_and_buffer() -> None:
    judgements, findings, unchecked = checked(Model())
    assert findings == []
    assert unchecked == []
    assert [(j.module, j.path) for j in judgements] == [
        ("", "steps"),
        ("", "scale"),
        ("", "inv_freq"),
        ("norm", "weight"),
        ("norm", "bias"),
        ("up", "weight"),
        ("up", "bias"),
        ("gate", "weight"),
        ("gate", "bias"),
    ]
    assert {j.verdict for j in judgements} == {Verdict.ALIGNED}
    assert {j.check for j in judgements} == {Check.PARAMETER}
    assert all(j.order < 0 for j in judgements)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_a_healthy_cast_shows_nothing(dtype: torch.dtype) -> None:
    candidate = Model().to(dtype)
    assert checked(candidate)[1] == []


def test_a_cast_that_truncates_shows() -> None:
    truncated = (weight().view(torch.int32) & -(1 << 16)).view(torch.float32)
    (finding,) = changed("up.weight", truncated)
    assert (finding.module, finding.path, finding.arm) == ("up", "weight", Arm.EXACT)
    assert finding.signature is None


def test_one_wrong_element_is_found_with_its_place_and_both_values() -> None:
    wrong = weight()
    wrong[3, 5] = 2.0
    (finding,) = changed("up.weight", wrong)
    assert finding.verdict is Verdict.DIVERGENT
    assert finding.candidate_module == "engine.up"
    assert finding.evidence.worst_index == (3, 5)
    assert finding.evidence.candidate == 2.0
    assert finding.evidence.reference == weight()[3, 5].bfloat16().item()
    assert (finding.evidence.outside, finding.evidence.elements) == (1, 96)
    assert finding.signature is None  # one ratio is no evidence of a factor
    assert finding.summary == "up: parameter weight differs in 1 of 96 elements"


def permuted(dim: int, order: list[int]) -> Tensor:
    return weight().index_select(dim, torch.tensor(order))


@pytest.mark.parametrize(
    ("value", "kind", "parameters"),
    [
        (
            permuted(0, [6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5]),
            "permutation",
            {"dim": 0, "blocks": 2, "block_size": 6},
        ),
        (permuted(0, [0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11]), "permutation", {"dim": 0}),
        (permuted(1, [4, 5, 6, 7, 0, 1, 2, 3]), "permutation", {"dim": 1, "blocks": 2, "block_size": 4}),
        (weight() * 1.5, "factor", {"factor": 1.5, "elements": 96}),
        (Model().gate.weight.detach(), "other_parameter", {"name": "gate.weight"}),
    ],
    ids=["row blocks", "interleaved rows", "column blocks", "factor", "another parameter"],
)
def test_the_kind_of_difference_is_named(value: Tensor, kind: str, parameters: dict[str, object]) -> None:
    (finding,) = changed("up.weight", value)
    assert finding.signature is not None
    assert finding.signature.kind == kind
    assert {name: finding.signature.parameters[name] for name in parameters} == pytest.approx(parameters)


def test_a_factor_on_some_rows_counts_them() -> None:
    wrong = weight()
    wrong[4:6] *= 0.5
    (finding,) = changed("up.weight", wrong)
    assert finding.signature is not None
    assert finding.signature.kind == "factor"
    assert finding.signature.parameters["factor"] == pytest.approx(0.5, rel=0.01)
    assert finding.signature.parameters["elements"] == 16


@pytest.mark.parametrize("kind", ["a wrong row", "noise"])
def test_an_arbitrary_difference_has_no_name(kind: str) -> None:
    wrong = weight()
    generator = torch.Generator().manual_seed(9)
    if kind == "a wrong row":
        wrong[2] = torch.randn(8, generator=generator)
    else:
        wrong += 0.1 * torch.randn(12, 8, generator=generator)
    (finding,) = changed("up.weight", wrong)
    assert finding.signature is None


def test_a_wrong_rank_one_parameter_of_two_of_one_shape_is_told_from_the_other() -> None:
    findings = changed("up.bias", Model().gate.bias.detach())
    assert [f.signature.parameters["name"] for f in findings if f.signature] == ["gate.bias"]


def within(steps: float) -> Tensor:
    """Return inverse frequencies that are so many float32 ulp off."""
    exact = Model().inv_freq
    return exact + steps * torch.exp2(torch.floor(torch.log2(exact)) - 23)


@pytest.mark.parametrize(("steps", "count"), [(0, 0), (COMPUTED_ULP - 1, 0), (COMPUTED_ULP + 1, 1)])
def test_a_buffer_that_each_side_computes_may_differ_by_a_few_ulp(steps: float, count: int) -> None:
    findings = changed("inv_freq", within(steps), torch.float32)
    assert len(findings) == count


@pytest.mark.parametrize(("dtype", "factor"), [(torch.bfloat16, 1.02), (torch.float16, 1.003)], ids=str)
def test_a_computed_buffer_of_a_narrow_format_may_differ_by_its_rounding_alone(
    dtype: torch.dtype, factor: float
) -> None:
    assert changed("inv_freq", within(COMPUTED_ULP - 1), dtype) == []
    assert [f.path for f in changed("inv_freq", Model().inv_freq * factor, dtype)] == ["inv_freq"]


def test_a_stored_buffer_may_not() -> None:
    scale = Model().scale
    scale[0] += 2.0**-26
    assert [f.path for f in changed("scale", scale, torch.float32)] == ["scale"]


def test_a_narrower_copy_of_a_buffer_is_left_to_the_function_check() -> None:
    candidate = Model()
    candidate.inv_freq = candidate.inv_freq.bfloat16()
    assert checked(candidate)[1] == []


def test_integers_are_compared_as_they_are() -> None:
    (finding,) = changed("steps", torch.tensor([0, 1, 2, 4]))
    assert (finding.path, finding.signature) == ("steps", None)
    assert (finding.evidence.reference, finding.evidence.candidate) == (3.0, 4.0)


def test_a_parameter_of_another_shape_is_unchecked_with_both_shapes() -> None:
    candidate = Model()
    candidate.up.bias = nn.Parameter(torch.zeros(6))
    _, findings, unchecked = checked(candidate)
    assert findings == []
    assert unchecked == [Unchecked(module="up", why="bias is [6], the reference's [12]")]


def test_a_parameter_that_can_not_be_put_together_is_unchecked() -> None:
    trace = traced(Model())
    missing = {name: e for name, e in trace.parameters.items() if name != "up.bias"}
    _, _, unchecked = check_parameters(reference=Model(), trace=replace(trace, parameters=missing), view=ALL)
    assert unchecked == [Unchecked(module="up", why="the candidate's bias could not be put together")]


def lacking(
    *names: str, reference: nn.Module | None = None, **fields: object
) -> tuple[list[Finding], list[str]]:
    """Check a candidate without these parameters; return findings, and why others are unchecked."""
    reference = reference or Model()
    trace = traced(reference)
    present = {name: e for name, e in trace.parameters.items() if name not in names}
    trace = replace(trace, parameters=present, unmatched_parameters=(names, ()), **fields)  # type: ignore[arg-type]
    _, findings, unchecked = check_parameters(reference=reference, trace=trace, view=ALL)
    return findings, [f"{u.module}: {u.why}" for u in unchecked]


def test_a_parameter_that_the_candidate_lacks_is_found() -> None:
    (finding,), unchecked = lacking("up.bias", missing_parameters=("up.bias",))
    assert (finding.module, finding.path, finding.check) == ("up", "bias", Check.PARAMETER)
    assert (finding.verdict, finding.arm) == (Verdict.DIVERGENT, Arm.EXACT)
    assert finding.summary == "up: parameter bias: the candidate has no such parameter"
    assert unchecked == []


def test_a_parameter_without_partner_is_unchecked_where_its_module_did_not_run() -> None:
    why = "bias is not compared: the candidate has none under this name, and the module did not run"
    assert lacking("up.bias") == ([], [f"up: {why}"])
    assert lacking("up.bias", unmatched_reference=("up",)) == ([], [])


def test_a_buffer_that_each_side_computes_may_be_on_one_side_alone() -> None:
    assert lacking("inv_freq", missing_parameters=("inv_freq",)) == ([], [])


def test_the_other_name_of_a_tied_parameter_may_be_missing() -> None:
    reference = nn.Module()
    reference.embed, reference.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
    reference.head.weight = reference.embed.weight
    assert lacking("head.weight", reference=reference, missing_parameters=("head.weight",)) == ([], [])


def hashed(value: Tensor, *, world_size: int = 1, dtype: str = "bfloat16") -> Trace:
    """Return a trace whose `up.weight` has no values, but the hashes of its rows, split over the ranks."""

    def refuse(view: View) -> LogicalTensor:
        raise CaptureError("its values are not stored")

    share = len(value) // world_size
    parts = tuple(
        Part(rank=rank, box=((share * rank, share * (rank + 1)), (0, value.shape[1])))
        for rank in range(world_size)
    )
    hashes, _ = row_hashes(value.to(getattr(torch, dtype)))
    trace = traced(Model(), world_size=world_size)
    large = Edge(
        path="up.weight",
        dtype=dtype,
        shape=tuple(value.shape),
        read=refuse,
        parts=parts,
        row_hashes=lambda view: hashes,
    )
    return replace(trace, parameters={**trace.parameters, "up.weight": large})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("block", [1, 1 << 22])
def test_equal_row_hashes_are_aligned(dtype: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_rows, "BLOCK", block)
    value = weight()
    value[0, 0] = -0.0
    reference = Model()
    reference.up.weight.data[0, 0] = -0.0
    trace = hashed(value, dtype=dtype)
    judgements, findings, unchecked = check_parameters(reference=reference, trace=trace, view=ALL)
    assert (findings, unchecked) == ([], [])
    assert {j.verdict for j in judgements if (j.module, j.path) == ("up", "weight")} == {Verdict.ALIGNED}


def test_a_row_of_another_hash_is_found_with_its_rank() -> None:
    wrong = weight()
    wrong[7, 2] *= 2
    view = View(ranks=(0, 1))
    _, (finding,), _ = check_parameters(reference=Model(), trace=hashed(wrong, world_size=2), view=view)
    assert finding.rank == 1
    assert finding.summary == (
        "up: parameter weight on rank 1 differs in 1 of 12 rows (7); their values are not stored, only their "
        "hashes"
    )
    other = View(ranks=(0,))
    assert check_parameters(reference=Model(), trace=hashed(wrong, world_size=2), view=other)[1] == []


def test_row_hashes_that_can_not_be_had_leave_a_parameter_unchecked() -> None:
    trace = hashed(weight())
    edge = replace(trace.parameters["up.weight"], row_hashes=None)
    trace = replace(trace, parameters={**trace.parameters, "up.weight": edge})
    _, findings, unchecked = check_parameters(reference=Model(), trace=trace, view=ALL)
    assert findings == []
    assert unchecked == [Unchecked(module="up", why="weight is not compared: its values are not stored")]


def test_a_parameter_that_can_not_be_read_is_unchecked_with_the_reason() -> None:
    def refuse(view: View) -> LogicalTensor:
        raise LayoutError("rank 1 holds nothing of it")

    trace = traced(Model())
    broken = Edge(path="up.bias", dtype="float32", shape=(12,), read=refuse)
    trace = replace(trace, parameters={**trace.parameters, "up.bias": broken})
    judgements, _, unchecked = check_parameters(reference=Model(), trace=trace, view=ALL)
    assert unchecked == [Unchecked(module="up", why="bias is not compared: rank 1 holds nothing of it")]
    assert len(judgements) == 8


def test_a_fault_in_one_ranks_shard_names_the_rank() -> None:
    wrong = weight()
    wrong[7, 0] += 1
    parts = tuple(Part(rank=rank, box=((6 * rank, 6 * rank + 6), (0, 8))) for rank in (0, 1))
    logical = LogicalTensor(data=wrong, parts=parts, dims=("", ""))
    trace = traced(Model(), world_size=2)
    shards = Edge(path="up.weight", dtype="float32", shape=(12, 8), read=lambda view: logical)
    trace = replace(trace, parameters={**trace.parameters, "up.weight": shards})
    both = View(ranks=(0, 1))
    _, (finding,), _ = check_parameters(reference=Model(), trace=trace, view=both)
    assert finding.rank == 1
    assert "on rank 1" in finding.summary


def test_a_shared_parameter_is_judged_under_each_of_its_names() -> None:
    reference = nn.Module()
    reference.embed, reference.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
    reference.head.weight = reference.embed.weight
    candidate = copy.deepcopy(reference)
    candidate.head.weight = nn.Parameter(reference.embed.weight.detach() * 2)
    _, findings, _ = check_parameters(reference=reference, trace=traced(candidate), view=ALL)
    assert [f.module for f in findings] == ["head"]


def test_a_buffer_that_the_code_writes_is_compared_with_nothing() -> None:
    candidate = Model()
    candidate.steps.data = candidate.steps + 1
    assert [finding.path for finding in checked(candidate)[1]] == ["steps"]
    judgements, findings, unchecked = check_parameters(
        reference=Model(), trace=traced(candidate), view=ALL, written={"steps"}
    )
    assert (findings, unchecked) == ([], [])
    assert "steps" not in {judgement.path for judgement in judgements}
