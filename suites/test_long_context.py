"""Long contexts: chunked prefill, then decoding, with what the port's cache and memory do meanwhile.

    validator run long_context --target port.py

A short run crosses the edge of the smallest window or attention chunk, boundaries of cache blocks, and
position 256. With `--long`, in pytest `--validator-long`, it goes up to the model's last position, which
takes the reference long as well.
"""

import pytest

from validator.long_context.contexts import Window
from validator.long_context.judging import Judged, LongContext, examined
from validator.long_context.observing import LongRun
from validator.long_context.position_errors import LIMIT
from validator.testing.validation import Validation


@pytest.fixture
def port(validation: Validation) -> LongContext:
    """The port after its long runs, which are made once for all tests."""
    return validation.shared(examined, LongRun.of(validation.settings))


def test_the_error_stays_within_its_noise_at_every_position(
    validation: Validation, port: LongContext
) -> None:
    """Are the logits right at every position, from the first to the last?"""
    if port.holders.note is not None:
        validation.figure("note", port.holders.note)
    _require_within_noise(validation, port.whole)


def test_every_rank_holds_the_same_logits(validation: Validation, port: LongContext) -> None:
    """Do ranks that hold the logits hold the same ones, in every bit?"""
    holders = port.holders
    if holders.copies == 1:
        validation.not_applicable("no two ranks hold the same logits")
    validation.figure("copies", holders.copies)
    rank = holders.unequal[0][0] if holders.unequal else None
    validation.require(holders.problem is None, holders.problem or "", rank=rank)


def test_decoding_across_the_edge_of_the_window_is_right(validation: Validation, port: LongContext) -> None:
    """Are the logits right where decoding leaves the window, or the attention chunk, behind?"""
    window = _window(validation, port)
    _needs_cache(validation, port)
    crossing = port.across or port.whole
    schedule = crossing.drive.schedule
    if not schedule.prompt < window.size < schedule.total:
        validation.not_applicable(f"no decoding crosses the edge of the {window}: it is too wide")
    validation.figure(window.noun, window.size, unit="tokens")
    _require_within_noise(validation, crossing)


def test_a_prompt_longer_than_the_window_is_right(validation: Validation, port: LongContext) -> None:
    """Is a prompt right that is longer than the window or the attention chunk?"""
    window = _window(validation, port)
    schedule = port.whole.drive.schedule
    if schedule.prompt <= window.size:
        validation.not_applicable(f"no prompt is longer than the {window}: the model has too few positions")
    outside = [position for position in port.whole.errors.outside if position < schedule.prompt]
    validation.figure("prompt", schedule.prompt, unit="tokens")
    onset = port.whole.errors.onset
    is_wrong = onset is not None and onset < schedule.prompt
    validation.require(
        not is_wrong,
        f"{len(outside)} of {schedule.prompt} positions of a prompt longer than the {window} are outside of "
        f"their noise\n{port.whole.problem}",
    )


def test_the_cache_holds_what_attention_needs(validation: Validation, port: LongContext) -> None:
    """Does the cache hold what is still attended to, unchanged, and evict the rest?"""
    _needs_shown_cache(validation, port)
    assert port.occupancy is not None
    validation.figure("cache", str(port.cache))
    validation.figure("cache held", port.occupancy.size_bytes, unit="bytes")
    _require_none(validation, port.cache_problems)


def test_memory_grows_by_what_the_cache_must_hold(validation: Validation, port: LongContext) -> None:
    """Does memory grow with each token by what the cache must hold, and by nothing else?"""
    _needs_shown_cache(validation, port)
    growth = port.growth
    if growth.others is None:
        validation.not_applicable(
            "too few tokens were decoded to fit a slope: the model has too few positions"
        )
    if growth.cache is not None:
        validation.figure("cache growth", growth.cache.value, unit="bytes/token", limit=growth.predicted)
    validation.figure("other growth", growth.others.value, unit="bytes/token", limit=0)
    _require_none(validation, port.memory_problems)


def test_a_shared_prefix_gives_what_computing_it_again_gives(
    validation: Validation, port: LongContext
) -> None:
    """Do two texts that go on from one prefix's cache get what each gets by itself?"""
    _needs_cache(validation, port)
    if port.prefix_problems is None:
        validation.not_applicable("the cache can't be copied, or the model has too few positions")
    validation.figure("shared prefix", "compared")
    _require_none(validation, port.prefix_problems)


def _require_within_noise(validation: Validation, judged: Judged) -> None:
    errors = judged.errors
    validation.figure("positions", len(errors.ratio), unit="tokens")
    validation.figure("largest error", float(errors.ratio.max()), unit="times its noise", limit=LIMIT)
    validation.figure("growth of the error", errors.growth, unit="times")
    culprit = judged.culprit
    validation.require(
        judged.problem is None,
        judged.problem or "",
        module=None if culprit is None else culprit.module,
        rank=None if culprit is None else culprit.rank,
        evidence={} if culprit is None else {"check": culprit.summary},
    )


def _require_none(validation: Validation, problems: tuple[str, ...]) -> None:
    validation.require(not problems, "\n".join(problems))


def _window(validation: Validation, port: LongContext) -> Window:
    window = port.context.window
    if window is None:
        validation.not_applicable("the reference has no sliding window and no attention chunks")
    return window


def _needs_cache(validation: Validation, port: LongContext) -> None:
    if port.argument is None:
        validation.not_applicable(
            "the candidate's forward takes no cache (an argument `cache` or `past_key_values`), so that "
            "nothing can be decoded with one"
        )


def _needs_shown_cache(validation: Validation, port: LongContext) -> None:
    _needs_cache(validation, port)
    if not port.is_shown:
        validation.not_applicable(
            f"a {port.cache} doesn't show what it holds: give it a method layer_views() as "
            "validator.long_context.cache_views.CacheView has it"
        )
