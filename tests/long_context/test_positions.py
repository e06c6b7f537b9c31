"""Errors by position, landmarks, schedules and slopes, without a model."""

import math

import pytest
import torch

from validator.errors import MismatchError
from validator.long_context.contexts import Context, Window
from validator.long_context.growth import slope_of
from validator.long_context.landmarks import hint, landmarks, told
from validator.long_context.noise import Band
from validator.long_context.position_errors import LIMIT, position_errors
from validator.long_context.schedules import Schedule, across_the_window, whole_context

T, V = 320, 256
WINDOWED = Context(limit=8192, windows=(Window(size=128), None))


def band(*, has_chosen: bool = False) -> Band:
    logits = torch.randn(T, V, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return Band(logits=logits, sigma=torch.full((T,), 0.1, dtype=torch.float64), has_chosen=has_chosen)


def noisy(scale: torch.Tensor | float = 0.07) -> torch.Tensor:
    noise = torch.randn(T, V, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return band().logits + noise * torch.as_tensor(scale, dtype=torch.float64)


def test_noise_has_no_onset_and_does_not_grow() -> None:
    errors = position_errors(cand=noisy(), band=band())
    assert errors.onset is None
    assert not errors.outside
    assert not errors.grows
    assert 0.6 < errors.typical < 0.8


def test_a_jump_begins_at_its_first_position() -> None:
    scale = torch.full((T, 1), 0.07)
    scale[200:] = 1.0
    errors = position_errors(cand=noisy(scale), band=band())
    assert errors.onset == 200
    assert errors.outside == tuple(range(200, T))
    assert errors.beyond > 9 > 1 > errors.typical


def test_one_position_is_an_onset_unless_a_router_may_have_flipped_there() -> None:
    cand = noisy()
    cand[77] += 3.0
    assert position_errors(cand=cand, band=band()).onset == 77
    assert position_errors(cand=cand, band=band(has_chosen=True)).onset is None
    cand[77:90] += 3.0
    assert position_errors(cand=cand, band=band(has_chosen=True)).onset == 77


def test_behind_a_router_the_last_positions_are_an_onset_only_together() -> None:
    cand = noisy()
    cand[-1] += 3.0
    assert position_errors(cand=cand, band=band(has_chosen=True)).onset is None
    cand[-4:-1] += 3.0
    assert position_errors(cand=cand, band=band(has_chosen=True)).onset == T - 4


@pytest.mark.parametrize("has_chosen", [False, True], ids=["plain", "router"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_value_that_is_not_finite_is_an_onset_behind_a_router_too(value: float, has_chosen: bool) -> None:
    cand = noisy()
    cand[200, 5] = value
    assert position_errors(cand=cand, band=band(has_chosen=has_chosen)).onset == 200


LOWEST = [-math.inf, -1e9, *(torch.finfo(dtype).min for dtype in (torch.float32, torch.float16))]


@pytest.mark.parametrize("theirs", LOWEST)
@pytest.mark.parametrize("ours", LOWEST)
def test_what_both_sides_mask_counts_as_equal_whatever_they_mask_it_with(ours: float, theirs: float) -> None:
    reference, cand = band(), noisy()
    reference.logits[:, 3], cand[:, 3] = ours, theirs
    assert position_errors(cand=cand, band=reference).onset is None
    cand[200, 3] = math.inf
    assert position_errors(cand=cand, band=reference).onset == 200
    cand[:, 3] = 0.0  # it is not masked
    assert position_errors(cand=cand, band=reference).onset == 0


def test_a_slow_growth_within_the_noise_is_a_trend() -> None:
    errors = position_errors(cand=noisy(torch.linspace(0.04, 0.2, T)[:, None]), band=band())
    assert errors.onset is None
    assert errors.grows
    assert errors.growth_low < errors.growth < errors.growth_high
    assert max(errors.ratio) < LIMIT


def test_logits_of_another_shape_end_in_a_message() -> None:
    with pytest.raises(MismatchError, match=r"are \[320, 128\] and the reference's \[320, 256\]"):
        position_errors(cand=noisy()[:, :128], band=band())


@pytest.mark.parametrize("is_long", [False, True])
@pytest.mark.parametrize("limit", [16, 256, 512, 8192])
@pytest.mark.parametrize("window", [None, 12, 100, 4096])
def test_a_schedule_stays_within_the_model_s_positions(limit: int, window: int | None, is_long: bool) -> None:
    context = Context(limit=limit, windows=(window and Window(size=window),))
    schedule = whole_context(context, is_long=is_long)
    assert schedule.total == sum(schedule.sizes) <= limit
    assert schedule.decoded > 0
    assert schedule.total == limit or not is_long
    edge = across_the_window(context, schedule)
    if window is not None and window < limit:
        crossing = edge or schedule
        assert crossing.prompt < window < crossing.total <= limit or window == limit - 1


def test_a_short_schedule_decodes_across_position_256_and_has_a_prompt_longer_than_the_window() -> None:
    schedule = whole_context(WINDOWED, is_long=False)
    assert schedule.prompt < 256 < schedule.total
    assert schedule.chunks[0] > 128
    edge = across_the_window(WINDOWED, schedule)
    assert edge is not None
    assert edge.prompt < 128 < edge.total
    assert across_the_window(Context(limit=512, windows=(None,)), schedule) is None


SCHEDULE = Schedule(chunks=(64, 64, 112), decoded=48)
CONTEXT = Context(limit=512, trained=200, windows=(Window(size=20), None))


@pytest.mark.parametrize(
    ("position", "said", "likely"),
    [
        (19, "1 before the edge of the sliding window of 20", "off by one"),
        (20, "at the edge of the sliding window of 20", "off by one"),
        (201, "1 behind the trained context length of 200", "rotary embedding is scaled"),
        (
            257,
            "1 behind 2^8 = 256, up to which bfloat16 holds every integer, also near",
            "positions in bfloat16",
        ),
        (
            240,
            "at the first decode step, at 240, also near a boundary of cache blocks of 16",
            "decode steps read",
        ),
        (128, "at the start of a chunk of the prompt, at 128", "chunks before it left"),
        (161, "1 behind a boundary of cache blocks of 32, at 160", "evicted while in use"),
        (150, "where nothing is known to change", None),
    ],
)
def test_where_an_error_begins_is_told_by_the_landmark(position: int, said: str, likely: str | None) -> None:
    marks = landmarks(CONTEXT, SCHEDULE, torch.bfloat16)
    assert said in told(position, marks)
    found = hint(position, marks)
    assert found is None if likely is None else found is not None and likely in found


def test_each_edge_of_attention_chunks_is_a_landmark() -> None:
    context = Context(limit=512, windows=(Window(size=20, is_chunked=True), None))
    marks = landmarks(context, SCHEDULE, torch.bfloat16)
    assert "at the edge of the attention chunk of 20, at 140" in told(140, marks)
    assert "off by one" in str(hint(140, marks))
    assert "attention chunk" not in told(150, marks)


def test_a_slope_is_exact_where_memory_is_and_none_with_few_readings() -> None:
    fed = list(range(100, 132, 2))
    slope = slope_of(fed, [5000 + 48 * each for each in fed])
    assert slope is not None
    assert (slope.value, slope.low, slope.high) == (48, 48, 48)
    assert slope_of(fed[:5], [0] * 5) is None


def test_a_slope_of_noise_holds_zero() -> None:
    fed = list(range(64))
    sizes = [int(each) for each in torch.randint(1000, (64,), generator=torch.Generator().manual_seed(3))]
    slope = slope_of(fed, sizes)
    assert slope is not None
    assert slope.low < 0 < slope.high
