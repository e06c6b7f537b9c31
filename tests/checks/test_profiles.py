"""What is kept of judged edges: each figure next to the values that it is made of, healthy and faulty."""

import dataclasses
import json
import math
import tracemalloc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.checks.build import captured, copied, feed
from validator.align.builder import build_trace
from validator.align.traces import LogicalTensor, Part
from validator.checks.edge_values import values_of
from validator.checks.engine import policy_of, run_checks
from validator.checks.findings import Check, Outcome, Verdict
from validator.checks.judge import Band, Bench
from validator.checks.observing import Observer
from validator.checks.profiles import ULP_EDGES, Line, Profile, Unit
from validator.checks.profiling import BINS, SAMPLED, profile_of

BENCH = Bench(elements=10**6)
HIDDEN = ("batch", "token", "channel")
BF16 = torch.bfloat16


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.norm, self.down = nn.Linear(64, 96, bias=False), nn.LayerNorm(96), nn.Linear(96, 64)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.down(torch.relu(self.norm(self.up(hidden))))


class Loud(nn.Linear):
    """Channel 3 counts 10% more."""

    def forward(self, hidden: Tensor) -> Tensor:
        made = super().forward(hidden).clone()
        made[..., 3] *= 1.1
        return made


def outcome(kind: type[nn.Linear] = nn.Linear, observer: Observer | None = None) -> Outcome:
    candidate = Net().to(BF16)
    candidate.down.__class__ = kind
    given = {"hidden": torch.randn(2, 24, 64, generator=torch.Generator().manual_seed(1)).to(BF16)}
    ours = captured(Net(), copied(given, torch.float32))
    return run_checks(
        reference=Net(),
        trace=build_trace(cand=[captured(candidate, given)], ref=ours),
        run=feed(given),
        policy=policy_of(None),
        observer=observer,
    )


def profile(
    exact: Tensor,
    cand: Tensor,
    *,
    band: Band | None = None,
    dims: tuple[str, ...] = HIDDEN,
    judged: Tensor | None = None,
    parts: tuple[Part, ...] = (),
) -> Profile:
    logical = LogicalTensor(data=cand, parts=parts, dims=dims)
    return profile_of(values_of(exact=exact, cand=logical, band=band, judged=judged, bench=BENCH))


def along(made: Profile, axis: str) -> Line:
    (line,) = (line for line in made.lines if line.axis == axis)
    return line


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("kind", [nn.Linear, Loud])
def test_the_largest_error_is_that_which_was_judged(kind: type[nn.Linear]) -> None:
    rows = [j for j in outcome(kind, Observer()).judgements if j.evidence.max_over_band is not None]
    assert len(rows) == 4
    for judgement in rows:
        assert judgement.profile is not None
        assert judgement.profile.largest == judgement.evidence.max_over_band
        assert judgement.profile.window is not None
        assert judgement.profile.window.worst == judgement.evidence.worst_index
        assert {max(line.largest) for line in judgement.profile.lines} == {judgement.profile.largest}
        assert max(judgement.profile.sample.error) == judgement.profile.largest


def test_a_fault_in_one_channel_stands_out_along_the_channels_alone() -> None:
    (bad,) = (j for j in outcome(Loud, Observer()).judgements if j.verdict is Verdict.DIVERGENT)
    assert bad.profile is not None
    channels, tokens = along(bad.profile, "channel"), along(bad.profile, "token")
    assert [n for n, value in enumerate(channels.largest) if value > 1] == [3]
    assert sum(value > 1 for value in tokens.largest) > 20


def test_nothing_is_kept_unless_it_is_asked_for() -> None:
    assert [j for j in outcome().judgements if j.profile is not None] == []


def test_parameters_have_no_profile_and_all_other_edges_have_one() -> None:
    kept = {j.check: j.profile is not None for j in outcome(observer=Observer()).judgements}
    assert kept == {Check.PARAMETER: False, Check.INPUT: True, Check.WIRING: True, Check.FUNCTION: True}


def test_a_long_dim_is_shown_in_bins_that_hold_the_largest_of_their_places() -> None:
    exact = torch.ones(1, 1, 1000, dtype=torch.float64)
    cand = exact.to(BF16)
    cand[0, 0, 997] = 2.0  # 128 spacings above 1, and half a spacing is allowed
    line = along(profile(exact, cand, band=Band()), "channel")
    assert (len(line.starts), line.starts[1], line.size) == (250, 4, 1000)
    assert len(line.starts) <= BINS
    assert list(line.largest) == [0.0] * 249 + [256.0]
    assert line.rms[-1] == pytest.approx(256 / math.sqrt(4))
    assert list(line.counts) == [4] * 250


def test_ranks_are_told_apart_by_the_parts_that_they_hold() -> None:
    exact = torch.ones(1, 2, 8, dtype=torch.float64)
    cand = exact.to(BF16)
    cand[..., 4:] = 1.0078125  # one spacing above: twice what is allowed
    halves = tuple(Part(rank=rank, box=((0, 1), (0, 2), (4 * rank, 4 * rank + 4))) for rank in (0, 1))
    line = along(profile(exact, cand, band=Band(), parts=halves), "rank")
    figures = (line.starts, line.largest, line.rms, line.counts)
    assert [list(figure) for figure in figures] == [[0, 1], [0.0, 2.0], [0.0, 2.0], [8, 8]]


def test_ranks_that_hold_copies_are_not_told_apart() -> None:
    exact = torch.ones(1, 2, 8, dtype=torch.float64)
    copies = tuple(Part(rank=rank, box=((0, 1), (0, 2), (0, 8))) for rank in (0, 1))
    lines = profile(exact, exact.to(BF16), band=Band(), parts=copies).lines
    assert [line.axis for line in lines] == ["token", "channel"]


def test_a_value_of_another_class_is_an_error_without_limit() -> None:
    exact = normal(1, 4, 8)
    cand = exact.to(BF16)
    cand[0, 2, 5] = math.nan
    line = along(profile(exact, cand, band=Band(bound=1.0)), "token")
    assert [math.isinf(value) for value in line.largest] == [False, False, True, False]


def test_what_is_not_judged_has_no_error() -> None:
    exact = normal(1, 4, 8)
    judged = torch.ones(1, 4, 1, dtype=torch.bool)
    judged[0, 3] = False
    made = profile(exact, torch.zeros(1, 4, 8, dtype=BF16), band=Band(), judged=judged)
    assert [math.isnan(value) for value in along(made, "token").largest] == [False, False, False, True]
    assert list(along(made, "token").counts) == [8, 8, 8, 0]
    assert list(along(made, "channel").counts) == [3] * 8
    assert sum(made.ulp_counts) == 3 * 8
    assert len(made.sample.error) == 3 * 8


def test_an_edge_without_judged_elements_has_an_empty_profile() -> None:
    exact = normal(1, 4, 8)
    made = profile(exact, exact.to(BF16), band=Band(), judged=torch.zeros(1, 4, 8, dtype=torch.bool))
    assert (made.largest, made.window, len(made.sample.error), sum(made.ulp_counts)) == (0.0, None, 0, 0)


@pytest.mark.parametrize(
    ("steps", "place"),
    [(0, ULP_EDGES.index(0.0) + 1), (1, ULP_EDGES.index(1.0) + 2), (-1, ULP_EDGES.index(-1.0))],
)
def test_the_histogram_counts_signed_errors_in_ulp(steps: int, place: int) -> None:
    exact = torch.full((4, 8), 1.5, dtype=torch.float64)
    counts = profile(
        exact, (exact + steps * 2.0**-7).to(BF16), band=Band(), dims=("token", "channel")
    ).ulp_counts
    assert counts[place] == sum(counts) == 32


def test_the_histogram_of_negated_errors_is_the_mirror_image() -> None:
    spacing = 2.0**-7
    errors = spacing * torch.tensor([0.0, 0.05, 0.125, 0.5, 0.5, 1.0, 3.0, 1500.0], dtype=torch.float64)
    cand = torch.full((8,), 1.5, dtype=BF16)
    above, below = (
        profile(cand.double() + errors * sign, cand, band=Band(), dims=("channel",)).ulp_counts
        for sign in (1, -1)
    )
    assert above != below
    assert above == below[::-1]


def test_values_of_another_class_are_in_no_bin_of_the_histogram() -> None:
    exact = torch.full((4,), 1.5, dtype=torch.float64)
    exact[1] = 1e39  # more than bfloat16 holds: it is to be an infinity
    cand = exact.to(BF16)
    cand[1] = 3e38
    made = profile(exact, cand, band=Band(), dims=("channel",))
    assert math.isinf(made.largest)
    assert sum(made.ulp_counts) == 3


def test_exact_edges_are_measured_in_ulp_and_integers_by_their_difference() -> None:
    exact = torch.full((4,), 1.5, dtype=torch.float64)
    moved = profile(exact, (exact + 2.0**-6).to(BF16), dims=("channel",))
    assert (moved.unit, moved.largest) == (Unit.ULP, 2.0)
    counted = profile(torch.tensor([1, 2, 3]), torch.tensor([1, 2, 7]), dims=("token",))
    assert (counted.unit, counted.largest, len(counted.ulp_counts)) == (Unit.DIFFERENCE, 4.0, 0)


def test_the_worst_elements_are_in_the_sample_of_a_large_edge() -> None:
    exact = normal(8, 64, 64)
    cand = exact.to(BF16)
    cand[3, 7, 9] += 1
    sample = profile(exact, cand, band=Band()).sample
    assert len(sample.error) <= SAMPLED
    assert sample.candidate[sample.error.index(max(sample.error))] == float(cand[3, 7, 9])


@pytest.mark.parametrize("channels", [4, 64], ids=["small edge", "large edge"])
def test_the_worst_elements_are_the_last_of_a_sample_and_no_element_is_in_it_twice(channels: int) -> None:
    exact = 1 + normal(1, 64, channels).abs()
    made = profile(exact, torch.zeros(1, 64, channels, dtype=BF16), band=Band())
    assert list(made.sample.error[-16:]) == sorted(made.sample.error)[-16:]
    assert made.sample.error[-1] == made.largest
    assert len(set(made.sample.oracle)) == len(made.sample.oracle) > 200


@pytest.mark.parametrize("tokens", [300, 10_000], ids=["small edge", "large edge"])
def test_the_last_part_of_a_sample_is_of_all_places(tokens: int) -> None:
    exact = torch.arange(1, tokens + 1, dtype=torch.float64)
    made = profile(exact, exact.to(torch.float32), band=Band(), dims=("token",))
    part = made.sample.oracle[-64:-16]
    assert min(part) < tokens / 4
    assert max(part) > tokens * 3 / 4
    assert list(part) != sorted(part)


def test_the_window_holds_the_values_around_the_worst_element() -> None:
    exact = normal(2, 9, 12)
    cand = exact.to(BF16)
    cand[1, 8, 2] += 1
    window = profile(exact, cand, band=Band()).window
    assert window is not None
    assert (window.start, window.worst) == ((1, 6, 0), (1, 8, 2))
    assert [list(row) for row in window.oracle] == exact[1, 6:, :7].tolist()
    assert [list(row) for row in window.candidate] == cand[1, 6:, :7].double().tolist()


def test_nothing_that_is_not_judged_is_held_to_a_limit_in_the_window() -> None:
    exact = normal(1, 3, 3)
    judged = torch.ones(1, 3, 1, dtype=torch.bool)
    judged[0, 1] = False
    window = profile(exact, torch.zeros(1, 3, 3, dtype=BF16), band=Band(), judged=judged).window
    assert window is not None
    assert [set(map(math.isinf, row)) for row in window.allowed] == [{False}, {True}, {False}]


@pytest.mark.parametrize("shape", [(), (0, 4), (1,)], ids=["scalar", "empty", "single"])
def test_edges_of_any_shape_have_a_profile(shape: tuple[int, ...]) -> None:
    made = profile(
        torch.ones(shape, dtype=torch.float64), torch.ones(shape, dtype=BF16), dims=("",) * len(shape)
    )
    assert (made.largest, sum(made.ulp_counts)) == (0.0, math.prod(shape))


def in_json(made: Profile) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(made), default=list))
    return fields


def test_a_profile_is_the_same_after_it_was_json() -> None:
    made = profile(normal(2, 9, 12), torch.zeros(2, 9, 12, dtype=BF16), band=Band())
    assert Profile.from_json(in_json(made)) == made
    assert Profile.from_json(in_json(made) | {"rms": made.rms + 1}) != made


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"axis": "<a href=x>"}, "'<a href=x>' is no axis; those are batch, channel, dim 1,"),
        ({"axis": "dim <b>", "dim": "<b>"}, "format code 'd'"),
        ({"axis": "rank"}, "'rank' is no axis"),
        ({"axis": "channel"}, "several lines along channel"),
        ({"rms": [0.5]}, "columns of"),
        ({"size": 3}, "9 bins for 3 places along token"),
    ],
)
def test_a_line_that_no_edge_has_is_refused(changed: dict[str, Any], message: str) -> None:
    fields = in_json(profile(normal(2, 9, 12), torch.zeros(2, 9, 12, dtype=BF16), band=Band()))
    fields["lines"][1].update(changed)
    with pytest.raises(ValueError, match=message):
        Profile.from_json(fields)


def test_dims_of_one_meaning_are_told_apart() -> None:
    exact = normal(2, 9, 12)
    lines = profile(exact, exact.to(BF16), band=Band(), dims=("token", "channel", "channel")).lines
    assert [line.axis for line in lines] == ["token", "dim 1", "dim 2"]


def test_the_profile_of_a_large_edge_is_small() -> None:
    """Numbers take 8 bytes each: two lines of 256 bins, a sample of 400 elements, and a window."""
    exact = normal(1, 512, 2048)
    cand = exact.to(BF16)
    profile(exact, cand, band=Band())
    tracemalloc.start()
    try:
        made = profile(exact, cand, band=Band())
        size_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    numbers = sum(len(line.starts) * 4 for line in made.lines) + 3 * (SAMPLED + 45)
    assert 8 * numbers < size_bytes < 8 * numbers + 8192
