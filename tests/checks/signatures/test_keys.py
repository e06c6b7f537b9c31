"""Keys that attention read wrongly are named: fitted, and held to what an attention makes of them."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from validator.checks.findings import Signature
from validator.checks.signatures import Subject, keys_signature
from validator.checks.signatures.key_fits import Attended
from validator.numerics.formats import FORMATS
from validator.numerics.rounding import round_nearest
from validator.numerics.ulp import ulp

BATCH, HEADS, TOKENS, CHANNELS = 2, 2, 24, 16
PROMPT = 12
FORMAT = FORMATS["bfloat16"]


def noise(seed: int, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(BATCH, HEADS, TOKENS, CHANNELS, generator=generator, dtype=torch.float64)


QUERIES, KEYS, VALUES = noise(0, 1.5), noise(1, 1.5), noise(2)
PLACES = torch.arange(TOKENS)
CAUSAL = PLACES[:, None] >= PLACES
WINDOW = CAUSAL & (PLACES[:, None] - PLACES < 8)
DECODED = (PLACES >= PROMPT)[:, None]
EARLIER = torch.where(PLACES < PROMPT, 0, PLACES)[:, None] > PLACES
PAST = noise(3, 1.5), noise(4)


def scores(keys: Tensor) -> Tensor:
    return QUERIES @ keys.mT / CHANNELS**0.5


def output(keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    return torch.softmax(scores(keys).where(seen, -torch.inf), -1) @ values


def attended(seen: Tensor, earlier: Tensor | None = EARLIER) -> Attended:
    size = scores(KEYS).where(seen, -torch.inf).logsumexp(-1, keepdim=True)
    return Attended(
        weights=torch.exp(scores(KEYS) - size),
        seen=seen.expand(BATCH, HEADS, TOKENS, TOKENS),
        keys=KEYS,
        values=VALUES,
        earlier=earlier,
        weights_of=lambda keys: torch.exp(scores(keys) - size),
        past=lambda: PAST,
        scale=lambda: CHANNELS**-0.5,
    )


def of_edge(x: Tensor) -> Tensor:
    return x.transpose(1, 2).reshape(BATCH, TOKENS, HEADS * CHANNELS)


def signature(made: Tensor, seen: Tensor) -> Signature | None:
    """Return the signature of a candidate that is `made` in its decode steps, and right in its prefill."""
    return of_all(torch.where(DECODED, made, output(KEYS, VALUES, seen)), seen)


def of_all(made: Tensor, seen: Tensor, earlier: Tensor | None = EARLIER) -> Signature | None:
    """Return the signature of a candidate that is `made`, in a run of several steps or of one."""
    exact = of_edge(output(KEYS, VALUES, seen))
    cand = round_nearest(of_edge(made), FORMAT)
    subject = Subject(
        exact=exact,
        cand=cand,
        allowed=0.6 * ulp(exact, FORMAT),
        fmt=FORMAT,
        judged=torch.ones_like(exact, dtype=torch.bool),
        dims=("batch", "token", "channel"),
    )
    return keys_signature(subject, attended(seen, earlier))


def replaced(x: Tensor, by: Tensor, start: int, stop: int, sequences: slice = slice(None)) -> Tensor:
    changed = x.clone()
    changed[sequences, :, start:stop] = by[sequences, :, start:stop]
    return changed


def of_block(change: Callable[[Tensor, int], Tensor], start: int, stop: int) -> tuple[Tensor, Tensor]:
    return replaced(KEYS, change(KEYS, 0), start, stop), replaced(VALUES, change(VALUES, 1), start, stop)


def pooled(x: Tensor) -> Tensor:
    """Return what every sequence finds at the front: four tokens of the first one, and of the second."""
    return torch.cat((x[:1, :, :4], x[1:, :, :4], x[:1, :, 8:]), 2).expand(x.shape)


SWAPPED = KEYS.flip(0), VALUES.flip(0)

CASES: dict[str, tuple[Tensor, Tensor, str, Mapping[str, Any]]] = {
    "an evicted block": (
        output(KEYS, VALUES, CAUSAL & ((PLACES < 4) | (PLACES >= 8))),
        CAUSAL,
        "keys_left_out",
        {"start": 4, "stop": 8},
    ),
    "a window that rolls early": (
        output(KEYS, VALUES, CAUSAL & (PLACES[:, None] - PLACES < 7)),
        WINDOW,
        "keys_left_out",
        {"start": 5, "stop": 17, "distance": [7, 7]},
    ),
    "a window that is never rolled": (
        output(KEYS, VALUES, CAUSAL),
        WINDOW,
        "keys_not_hidden",
        {"start": 0, "stop": 16, "distance": [8, 23]},
    ),
    "padding that is attended to": (
        output(KEYS, VALUES, CAUSAL),
        CAUSAL & (PLACES >= 3),
        "keys_not_hidden",
        {"start": 0, "stop": 3},
    ),
    "a block of another sequence": (
        output(
            replaced(KEYS, SWAPPED[0], 4, 8, slice(1)), replaced(VALUES, SWAPPED[1], 4, 8, slice(1)), CAUSAL
        ),
        CAUSAL,
        "keys_of_another",
        {"start": 4, "stop": 8, "of_sequence": 1, "sequences": [0]},
    ),
    "a stale block": (
        output(replaced(KEYS, PAST[0], 0, 4), replaced(VALUES, PAST[1], 0, 4), CAUSAL),
        CAUSAL,
        "keys_of_another",
        {"start": 0, "stop": 4, "of_earlier_call": True},
    ),
    "a block of another place": (
        output(*of_block(lambda x, _: x.roll(4, 2), 8, 12), CAUSAL),
        CAUSAL,
        "keys_of_another",
        {"start": 8, "stop": 12, "tokens": 4},
    ),
    "the front of a pool": (
        output(replaced(KEYS, pooled(KEYS), 0, 8), replaced(VALUES, pooled(VALUES), 0, 8), CAUSAL),
        CAUSAL,
        "keys_of_another",
        {"start": 0, "stop": 8, "of_pool": 4},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_which_keys_were_read_wrongly_is_told_with_their_tokens(name: str) -> None:
    made, seen, kind, parameters = CASES[name]
    found = signature(made, seen)
    assert found is not None
    assert (found.kind, found.parameters) == (kind, parameters)
    assert found.residual_ulp is not None
    # Rounding alone leaves 0.29; the values are larger here and smaller there than the oracle's.
    assert found.residual_ulp < 1


def rescaled(of_keys: float, of_values: float, region: Tensor) -> Tensor:
    """Return what attention makes where keys and values of `[S, T]` some tokens are scaled."""
    mixed = torch.where(region, scores(KEYS * of_keys), scores(KEYS)).where(CAUSAL, -torch.inf)
    p = torch.softmax(mixed, -1)
    return p.where(region, 0.0) @ (VALUES * of_values) + p.where(~region, 0.0) @ VALUES


@pytest.mark.parametrize(
    ("of_keys", "of_values"),
    [(1.25, 1.0), (0.1, 1.0), (1.0, 1.1), (0.5, 0.5), (1.05, 0.9)],
    ids=["keys", "keys far off", "values", "both alike", "both"],
)
def test_factors_of_a_cache_are_those_that_it_was_read_with(of_keys: float, of_values: float) -> None:
    found = signature(rescaled(of_keys, of_values, EARLIER), CAUSAL)
    assert found is not None
    assert found.kind == "cache_scale"
    wanted = {"factor_of_keys": of_keys, "factor_of_values": of_values}
    factors = {name: x for name, x in found.parameters.items() if name.startswith("factor")}
    assert factors == {name: pytest.approx(x, rel=0.01) for name, x in wanted.items() if x != 1}


@pytest.mark.parametrize(("of_keys", "of_values"), [(1.25, 1.0), (1.0, 1.2)], ids=["keys", "values"])
def test_a_block_with_a_scale_of_its_own_is_named(of_keys: float, of_values: float) -> None:
    block = EARLIER & (PLACES >= 4) & (PLACES < 8)
    found = signature(rescaled(of_keys, of_values, block), CAUSAL)
    assert found is not None
    assert found.kind == "cache_scale"
    assert (found.parameters["start"], found.parameters["stop"]) == (4, 8)


FACTORS = (1.02, 1.05, 1.1, 1.414, 1.5, 0.5, 4.0, 0.25)
STEPS = pytest.mark.parametrize("earlier", [None, EARLIER], ids=["a single step", "several steps"])


@STEPS
@pytest.mark.parametrize("factor", FACTORS)
def test_another_scale_of_all_scores_is_that_of_the_attention_and_of_no_cache(
    factor: float, earlier: Tensor | None
) -> None:
    found = of_all(output(KEYS * factor, VALUES, CAUSAL), CAUSAL, earlier)
    assert found is not None
    assert found.kind == "attention_scale"
    assert found.parameters == {"factor": pytest.approx(factor, rel=0.005), "value": CHANNELS**-0.5}


@pytest.mark.parametrize("factor", FACTORS)
def test_another_scale_of_the_keys_of_earlier_steps_is_that_of_a_cache(factor: float) -> None:
    found = signature(rescaled(factor, 1.0, EARLIER), CAUSAL)
    assert found is not None
    assert found.kind == "cache_scale"
    assert found.parameters["factor_of_keys"] == pytest.approx(factor, rel=0.005)


def test_a_block_of_a_single_step_has_a_scale_of_its_own_where_that_of_all_does_not_fit() -> None:
    block = CAUSAL & (PLACES >= 4) & (PLACES < 8)
    found = of_all(rescaled(1.25, 1.0, block), CAUSAL, None)
    assert found is not None
    assert (found.kind, found.parameters["start"], found.parameters["stop"]) == ("keys_scaled", 4, 8)


def test_keys_of_one_sequence_at_another_scale_are_no_scale_of_the_attention() -> None:
    made = output(
        torch.where(torch.arange(BATCH)[:, None, None, None] == 1, 1.25, 1.0) * KEYS, VALUES, CAUSAL
    )
    found = of_all(made, CAUSAL, None)
    assert found is not None
    assert (found.kind, found.parameters["sequences"]) == ("keys_scaled", [1])


def test_values_of_a_single_step_by_one_factor_are_left_to_the_search_for_a_factor_of_the_edge() -> None:
    assert of_all(1.1 * output(KEYS, VALUES, CAUSAL), CAUSAL, None) is None


@pytest.mark.parametrize(
    "made",
    [
        output(KEYS, VALUES, CAUSAL),
        output(KEYS, VALUES, CAUSAL) + 0.3 * noise(7),
        output(noise(5, 1.5), VALUES, CAUSAL),
        output(KEYS, VALUES, CAUSAL).flip(-1),
    ],
    ids=["healthy", "noise", "other keys", "channels in another order"],
)
def test_what_no_key_explains_is_not_blamed_on_one(made: Tensor) -> None:
    assert signature(made, CAUSAL) is None


def test_an_edge_that_holds_more_than_what_attention_made_is_left_alone() -> None:
    exact = of_edge(output(KEYS, VALUES, CAUSAL)) + 1
    subject = Subject(
        exact=exact,
        cand=exact * 1.5,
        allowed=0.6 * ulp(exact, FORMAT),
        fmt=FORMAT,
        judged=torch.ones_like(exact, dtype=torch.bool),
    )
    assert keys_signature(subject, attended(CAUSAL)) is None
