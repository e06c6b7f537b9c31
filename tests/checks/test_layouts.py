"""Layouts that hide faults: each is named where it is wrong, and none where it is right or not to blame."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.checks.build import check
from tests.checks.signatures.build import BF16, FP32, subject, values
from validator.align.traces import LogicalTensor, Part
from validator.checks.findings import Signature
from validator.checks.layouts import integer_layout, layout_signature, parameter_layout
from validator.checks.orders import families, order_names, pairs, read_as
from validator.checks.signatures import edge_signature, parameter_signature, signature_words
from validator.checks.signatures.addends import miscounted_addend
from validator.numerics.rounding import round_nearest

CHANNELS = 64
"""8 q heads, 4 k heads and 4 v heads of 4 channels."""

CHANNEL = ("batch", "token", "channel")
HEAD = ("batch", "head", "token", "channel")

Layout = Callable[[Tensor], Tensor]


def edge(*shape: int) -> Tensor:
    return values(*(shape or (2, 12, CHANNELS)))


def found(exact: Tensor, cand: Tensor, **options: Any) -> Mapping[str, Any] | None:
    signature = signature_of(exact, cand, **options)
    if signature is None:
        return None
    assert signature.kind == "layout"
    assert signature.residual_ulp is not None
    # Rounding alone is left: 1 / sqrt(12) ulp.
    assert signature.residual_ulp < 0.4
    return signature.parameters


def signature_of(exact: Tensor, cand: Tensor, **options: Any) -> Signature | None:
    return layout_signature(subject(exact, cand, **options))


def shards(ranks: int, size: int, dim: int, ndim: int) -> tuple[Part, ...]:
    """The equal parts of a dim that ranks hold."""
    step = size // ranks
    boxes = [
        ((0, 1),) * dim + ((r * step, (r + 1) * step),) + ((0, 1),) * (ndim - dim - 1) for r in range(ranks)
    ]
    return tuple(Part(rank=rank, box=box) for rank, box in enumerate(boxes))


def by_rank(*segments: Tensor, ranks: int = 2) -> Tensor:
    """Lay the ranks' halves of each segment of channels beside each other: `q0 k0 v0 | q1 k1 v1`."""
    return torch.cat([s.chunk(ranks, -1)[rank] for rank in range(ranks) for s in segments], -1)


def q_k_v(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = y.split([32, 16, 16], -1)
    return q, k, v


def per_kv_group(y: Tensor) -> Tensor:
    q, k, v = q_k_v(y)
    groups = [
        (q[..., 8 * g : 8 * g + 8], k[..., 4 * g : 4 * g + 4], v[..., 4 * g : 4 * g + 4]) for g in range(4)
    ]
    return torch.cat([piece for group in groups for piece in group], -1)


def interleaved(y: Tensor) -> Tensor:
    return torch.stack(y.chunk(2, -1), -1).flatten(-2)


def rope_pairs(y: Tensor, head: int = 16) -> Tensor:
    return interleaved(y.unflatten(-1, (-1, head))).flatten(-2)


def along(dim: int, order: list[int]) -> Layout:
    """Take equal blocks of a dim in an order."""
    count = len(set(order))
    return lambda y: torch.cat([y.chunk(count, dim)[i] for i in order], dim)


def padded_shards(y: Tensor, pad: int = 8) -> Tensor:
    """Each rank's half with padding behind it, cut to the logical size."""
    junk = torch.full((*y.shape[:-1], pad), 7.0, dtype=y.dtype)
    return torch.cat([y.chunk(2, -1)[0], junk, y.chunk(2, -1)[1]], -1)[..., : y.shape[-1]]


def kv_repeated(y: Tensor) -> Tensor:
    return y[:, :2].repeat_interleave(2, 1)


LAYOUTS: dict[str, tuple[Tensor, Layout, dict[str, Any], str, str]] = {
    "fused QKV in per-rank blocks": (
        edge(),
        lambda y: by_rank(*q_k_v(y)),
        {"parts": shards(2, CHANNELS, 2, 3)},
        "Q, K and V of each of 2 ranks together",
        "all of Q, then K, then V",
    ),
    "fused QKV per kv group": (
        edge(),
        per_kv_group,
        {},
        "Q, K and V per kv group",
        "all of Q, then K, then V",
    ),
    "gate and up interleaved": (
        edge(),
        interleaved,
        {},
        "halves interleaved (gate and up in turn)",
        "halves (gate, then up)",
    ),
    "up before gate": (
        edge(),
        along(-1, [1, 0]),
        {},
        "the second half first (up, then gate)",
        "halves (gate, then up)",
    ),
    "gate and up in per-rank blocks": (
        edge(),
        lambda y: by_rank(*y.chunk(2, -1), ranks=4),
        {"parts": shards(4, CHANNELS, 2, 3)},
        "gate and up of each of 4 ranks together",
        "halves (gate, then up)",
    ),
    "gate and up taken for interleaved": (
        edge(),
        lambda y: torch.cat([y[..., 0::2], y[..., 1::2]], -1),
        {},
        "halves (gate, then up)",
        "halves interleaved (gate and up in turn)",
    ),
    "kv heads tiled where each is repeated": (
        kv_repeated(edge(2, 4, 6, 8)),
        lambda y: y[:, [0, 2, 1, 3]],
        {"dims": HEAD},
        "all 2 kv heads in turn",
        "each of 2 kv heads repeated",
    ),
    "the first kv head on every rank": (
        kv_repeated(edge(2, 4, 6, 8)),
        lambda y: y[:, [0, 0, 0, 0]],
        {"dims": HEAD},
        "a repetition",
        "in order",
    ),
    "a vocabulary whose shards are padded": (
        edge(2, 6, 48),
        padded_shards,
        {},
        "the shard of each of 2 ranks padded to a multiple of 16",
        "shards without padding between them",
    ),
    "hidden channels shuffled": (
        edge(),
        lambda y: y[..., torch.randperm(CHANNELS, generator=torch.Generator().manual_seed(1))],
        {},
        "a permutation",
        "in order",
    ),
    "scales transposed": (
        edge(16, 16),
        lambda y: y.mT,
        {"dims": ("", "")},
        "transposed",
        "as the reference's",
    ),
    "sequence shards in the wrong order": (
        edge(),
        along(1, [1, 0, 2]),
        {"parts": shards(3, 12, 1, 3)},
        "shards of ranks 1,0,2",
        "shards in the order of the ranks",
    ),
    "context parallel in zigzag": (
        edge(),
        along(1, [0, 3, 1, 2]),
        {"parts": shards(2, 12, 1, 3)},
        "tokens in zigzag over 2 ranks",
        "tokens in order",
    ),
    "contiguous taken for zigzag": (
        edge(2, 16, 8),
        along(1, [0, 2, 4, 6, 7, 5, 3, 1]),
        {"parts": shards(4, 16, 1, 3)},
        "tokens in order",
        "tokens in zigzag over 4 ranks",
    ),
    "context parallel round robin": (
        edge(),
        lambda y: torch.cat([y[:, 0::2], y[:, 1::2]], 1),
        {"parts": shards(2, 12, 1, 3)},
        "tokens dealt to 2 ranks in turn",
        "tokens in order",
    ),
    "packed sequences in zigzag, each by itself": (
        edge(24, 16),
        lambda y: torch.cat([y[i : i + 2] for i in (0, 6, 8, 14, 16, 22, 2, 4, 10, 12, 18, 20)]),
        {"dims": ("token", "channel"), "parts": shards(2, 24, 0, 2)},
        "3 sequences in zigzag each over 2 ranks",
        "3 sequences one after the other",
    ),
    "tokens before sequences": (
        edge(24, 16),
        lambda y: y.unflatten(0, (3, 8)).transpose(0, 1).flatten(0, 1),
        {"dims": ("token", "channel")},
        "the tokens of 3 sequences in turn",
        "3 sequences one after the other",
    ),
    "token shards gathered across sequences": (
        edge(2, 12, 16),
        lambda y: torch.stack(y.chunk(2, 1)).flatten(0, 2).view_as(y),
        {},
        "the shards of 2 ranks, each with its part of 2 sequences",
        "2 sequences one after the other",
    ),
    "experts dealt to ranks": (
        edge(20, 8),
        lambda y: torch.cat([y[:, 0::2], y[:, 1::2]], 1),
        {"dims": ("token", "expert"), "parts": shards(2, 8, 1, 2)},
        "experts dealt to 2 ranks in turn",
        "experts in order",
    ),
    "physical for logical experts": (
        edge(20, 8),
        lambda y: y[:, [3, 7, 0, 1, 6, 5, 2, 4]],
        {"dims": ("token", "expert")},
        "a permutation",
        "in order",
    ),
    "a redundant expert in another's place": (
        edge(20, 8),
        lambda y: y[:, [0, 1, 2, 3, 4, 5, 2, 7]],
        {"dims": ("token", "expert")},
        "a repetition",
        "in order",
    ),
    "an unordered top-k": (
        edge(20, 4).softmax(-1),
        lambda y: y.gather(1, edge(20, 4).add(1).cos().argsort(1)),
        {"dims": ("token", "")},
        "each row in an order of its own",
        "in order",
    ),
    "dispatched tokens in another order": (
        edge(20, 16),
        lambda y: y[torch.randperm(20, generator=torch.Generator().manual_seed(2))],
        {"dims": ("token", "channel")},
        "a permutation",
        "in order",
    ),
    "sequences dealt to ranks": (
        edge(8, 4, 16),
        lambda y: torch.cat([y[0::2], y[1::2]]),
        {"parts": shards(2, 8, 0, 3)},
        "sequences dealt to 2 ranks in turn",
        "sequences in order",
    ),
    "rotary pairs interleaved": (
        edge(),
        rope_pairs,
        {"head_size": 16},
        "rotary pairs interleaved in each head of 16",
        "rotary halves of each head of 16",
    ),
    "heads dealt to ranks": (
        edge(),
        lambda y: torch.cat([y.unflatten(-1, (8, 8))[..., i::2, :].flatten(-2) for i in (0, 1)], -1),
        {"head_size": 8, "parts": shards(2, 64, 2, 3)},
        "heads of 8 dealt to 2 ranks in turn",
        "heads of 8 in order",
    ),
}


@pytest.mark.parametrize(("exact", "lay", "options", "is_", "should_be"), LAYOUTS.values(), ids=list(LAYOUTS))
def test_a_wrong_layout_is_named_and_the_right_one_is_quiet(
    exact: Tensor, lay: Layout, options: dict[str, Any], is_: str, should_be: str
) -> None:
    wrong = found(exact, lay(exact), **options)
    assert wrong is not None
    assert (wrong["is"], wrong["should_be"]) == (is_, should_be)
    assert found(exact, exact, **options) is None


def test_a_residual_that_is_kept_apart_is_a_missing_addend() -> None:
    hidden, residual = values(2, 8, 16, seed=1), values(2, 8, 16, seed=2)
    apart = miscounted_addend(subject(hidden + residual, hidden), {"residual": residual})
    assert apart is not None
    assert (apart.kind, apart.parameters) == ("missing_addend", {"of": "residual"})
    assert miscounted_addend(subject(hidden + residual, hidden + residual), {"residual": residual}) is None


def test_transposed_scales_of_quantised_blocks_are_named() -> None:
    weight, scales = values(64, 64), values(4, 4, seed=1).exp()
    scaled = weight * scales.repeat_interleave(16, 0).repeat_interleave(16, 1)
    wrong = weight * scales.T.repeat_interleave(16, 0).repeat_interleave(16, 1)
    named = found(scaled, wrong, dims=("channel", ""))
    assert named is not None
    assert (named["is"], named["should_be"]) == (
        "scales of blocks of 16 transposed",
        "each block's own scale",
    )
    other = weight * scales.flip(0).repeat_interleave(16, 0).repeat_interleave(16, 1)
    assert found(scaled, other, dims=("channel", "")) is None
    assert found(scaled, scaled, dims=("channel", "")) is None


def test_positions_in_another_order_are_named() -> None:
    positions = torch.arange(16).expand(2, 16)
    options: dict[str, Any] = {
        "judged": torch.ones(2, 16, dtype=torch.bool),
        "dims": ("batch", "token"),
        "parts": shards(2, 16, 1, 2),
    }
    zigzag = torch.cat([positions[:, i : i + 4] for i in (0, 12, 4, 8)], 1)
    named = integer_layout(exact=positions, cand=zigzag, **options)
    assert named is not None
    assert named.parameters["is"] == "tokens in zigzag over 2 ranks"
    for other in (positions, torch.ones_like(positions), positions % 8, positions.clamp(max=9)):
        assert integer_layout(exact=positions, cand=other, **options) is None


def test_a_term_of_a_sum_over_ranks_is_a_missing_reduction() -> None:
    terms = {0: values(seed=1), 1: values(seed=2)}
    edge_of_one = subject(terms[0] + terms[1], terms[0], world_size=2, reductions=1, terms=lambda: terms)
    named = edge_signature(edge_of_one)
    assert named is not None
    assert named.kind == "missing_reduction"


def test_codes_of_the_other_float8_are_a_factor_of_two_and_dequantised_values_are_quiet() -> None:
    # The same codes as e4m3fnuz are half of what they are as e4m3fn, and stored with doubled scales.
    weight = values(16, 32)
    codes = weight.to(torch.float8_e4m3fn)
    halved = codes.view(torch.uint8).view(torch.float8_e4m3fnuz).to(torch.float64)
    exact = codes.to(torch.float64)
    finite = halved.isfinite()
    assert torch.equal((2 * halved)[finite], exact[finite])
    assert edge_signature(subject(exact, 2 * halved, judged=finite, dims=("", ""))) is None
    named = edge_signature(subject(exact, halved, judged=finite, dims=("", "")))
    assert named is not None
    assert (named.kind, named.parameters["factor"]) == ("factor", 0.5)


def test_the_weight_of_another_pipeline_stages_layer_is_named() -> None:
    # Local layer 0 of the second stage is layer 2.
    layers = {f"layers.{i}.weight": values(8, 8, seed=i) for i in range(4)}
    own = layers.pop("layers.0.weight")
    named = parameter_signature(reference=own, candidate=layers["layers.2.weight"], others=layers.items)
    assert named is not None
    assert (named.kind, named.parameters["name"]) == ("other_parameter", "layers.2.weight")


def test_tokens_behind_padding_are_shifted() -> None:
    y = edge()
    shifted = torch.cat([torch.zeros(2, 3, CHANNELS, dtype=torch.float64), y[:, :-3]], 1)
    named = edge_signature(subject(y, shifted, dims=CHANNEL))
    assert named is not None
    assert (named.kind, named.parameters) == ("shifted", {"tokens": 3})


def test_a_layout_line_says_what_to_declare() -> None:
    y = edge()
    wrong = found(y, per_kv_group(y))
    assert wrong is not None
    assert wrong["layout"] == "(q=8|k=4|v=4):per_kv_group"
    experts = found(edge(20, 8), edge(20, 8)[:, [1, 0, 2, 3, 4, 5, 7, 6]], dims=("token", "expert"))
    assert experts is not None
    assert (experts["order"], experts["layout"]) == ([1, 0, 2, 3, 4, 5, 7, 6], "x:1,0,2,3,4,5,7,6")


def test_an_order_of_blocks_is_listed_by_blocks() -> None:
    y = edge()
    wrong = found(y, along(-1, [2, 0, 1, 3, 4, 5, 7, 6])(y))
    assert wrong is not None
    assert (wrong["blocks"], wrong["order"]) == (8, [2, 0, 1, 3, 4, 5, 7, 6])


def test_real_tokens_alone_are_compared() -> None:
    y = edge()
    judged = torch.ones(2, 12, 1, dtype=torch.bool)
    judged[1, 8:] = False
    cand = interleaved(y)
    cand[1, 8:] = 1e4
    wrong = found(y, cand, judged=judged.expand(y.shape))
    assert wrong is not None
    assert wrong["should_be"] == "halves (gate, then up)"


def test_a_large_edge_is_sampled() -> None:
    y = edge(4, 512, 1024)
    wrong = found(y, interleaved(y))
    assert wrong is not None
    assert wrong["is"] == "halves interleaved (gate and up in turn)"


def noise_on(part: Any) -> Layout:
    def change(y: Tensor) -> Tensor:
        changed = y.clone()
        changed[part] += values(*changed[part].shape, seed=5)
        return changed

    return change


def zeroed(part: Any) -> Layout:
    def change(y: Tensor) -> Tensor:
        changed = y.clone()
        changed[part] = 0.0
        return changed

    return change


def one_element_off(y: Tensor) -> Tensor:
    changed = interleaved(y)
    changed[0, 0, 5] += 1.0
    return changed


NEAR_MISSES: dict[str, Layout] = {
    "noise of a tenth": lambda y: y * (1 + 0.1 * values(*y.shape, seed=5)),
    "other values": lambda y: values(*y.shape, seed=5),
    "a factor": lambda y: 1.02 * y,
    "the sign": lambda y: -y,
    "a constant added": lambda y: y + 0.1,
    "one bad head": noise_on(slice(8, 16)),
    "one bad head of channels": noise_on((..., slice(8, 16))),
    "one rank's half is wrong": noise_on((..., slice(32, 64))),
    "one rank's half is zero": zeroed((..., slice(32, 64))),
    "one token is zero": zeroed((slice(None), 3)),
    "all zero": torch.zeros_like,
    "values cut off": lambda y: y.clamp(-0.5, 0.5),
    "one rank's half is scaled": lambda y: torch.cat([y[..., :32], 0.5 * y[..., 32:]], -1),
    "two channels added up": lambda y: y + y.roll(1, -1),
    "a wrong layout with one element off": one_element_off,
    "a layout and a factor": lambda y: 1.02 * interleaved(y),
    "NaN": lambda y: torch.where(y > 0, torch.nan, y),
}


@pytest.mark.parametrize("fault", NEAR_MISSES.values(), ids=list(NEAR_MISSES))
@pytest.mark.parametrize("parts", [(), shards(2, CHANNELS, 2, 3)], ids=["one rank", "two ranks"])
def test_a_fault_that_is_no_layout_is_not_called_one(fault: Layout, parts: tuple[Part, ...]) -> None:
    y = edge()
    y[:, :, 40] = 0.0  # nor where a channel is zero anyway
    assert signature_of(y, fault(y), parts=parts) is None


def test_an_order_of_what_is_alike_explains_nothing() -> None:
    alike = 1.0 + 2.0**-7 * edge()  # one bfloat16 step and less
    cand = along(-1, [1, 0])(alike)
    cand[0, 0, 0] = 3.0
    assert signature_of(alike, cand) is None
    wide = subject(edge(), along(-1, [1, 0])(edge()), noise=1e4)
    assert layout_signature(wide) is None


def test_two_elements_in_each_others_place_are_no_evidence() -> None:
    assert signature_of(edge(1, 1, 6), edge(1, 1, 6)[..., [1, 0, 2, 3, 4, 5]]) is None


def test_a_limit_that_occurs_again_and_again_repeats_no_channel() -> None:
    y = edge()
    y[..., 3] = 1.0
    assert signature_of(y, torch.ones_like(y)) is None


@settings(max_examples=30, deadline=None)
@given(data=st.data(), meaning=st.sampled_from(["channel", "head", "token", "expert", "batch"]))
def test_every_known_order_is_named_for_what_it_does(data: st.DataObject, meaning: str) -> None:
    size = data.draw(st.sampled_from([8, 12, 24, 48]))
    known = list(pairs(lambda: families(meaning, size, ranks=(2, 4))))
    actual, expected = data.draw(st.sampled_from(known))
    order = read_as(actual, expected)
    y = edge(20, size)
    wrong = found(y, y[:, torch.from_numpy(order)], dims=("", meaning), parts=())
    if (order == range(size)).all():
        assert wrong is None
        return
    assert wrong is not None
    # Another name may stand for the same order; it must be the same order.
    names = order_names(order, meaning=meaning, ranks=(2, 4, 8))
    assert names == (wrong["is"], wrong["should_be"])


def test_a_parameters_order_has_its_name() -> None:
    weight = values(CHANNELS, 8)
    named = parameter_signature(
        reference=weight, candidate=per_kv_group(weight.T).T.contiguous(), others=list
    )
    assert named is not None
    assert named.kind == "permutation"
    assert (named.parameters["is"], named.parameters["should_be"]) == (
        "Q, K and V per kv group",
        "all of Q, then K, then V",
    )


@pytest.mark.parametrize(
    ("exact", "cand", "options", "words"),
    [
        (
            edge(),
            interleaved(edge()),
            {},
            "halves interleaved (gate and up in turn) along channel, in place of halves (gate, then up) "
            "(as a layout: (gate|up):interleaved)",
        ),
        (
            edge(20, 4),
            edge(20, 4)[:, [1, 3, 0, 2]],
            {"dims": ("token", "expert")},
            "a permutation of 4 blocks (1, 3, 0, 2) along expert, in place of in order",
        ),
    ],
    ids=["known", "unknown"],
)
def test_a_layout_has_words(exact: Tensor, cand: Tensor, options: dict[str, Any], words: str) -> None:
    named = signature_of(exact, cand, **options)
    assert named is not None
    assert signature_words(named) == words


def test_a_parameter_that_repeats_another_ranks_rows_or_is_transposed_is_named() -> None:
    weight = values(16, 16)
    parts = shards(2, 16, 0, 2)

    def named(candidate: Tensor) -> Mapping[str, Any] | None:
        logical = LogicalTensor(data=candidate.float(), parts=parts, dims=("channel", ""))
        signature = parameter_layout(reference=weight.float().double(), candidate=logical, world_size=2)
        return None if signature is None else signature.parameters

    repeated = named(torch.cat([weight[:8], weight[:8]]))
    assert repeated is not None
    assert (repeated["is"], repeated["order"]) == ("a repetition", [0, 0])
    turned = named(weight.T)
    assert turned is not None
    assert turned["is"] == "transposed"
    assert named(weight) is None
    assert named(weight * 1.01) is None
    assert named(torch.cat([weight[:8], torch.zeros(8, 16)])) is None


class GateUp(nn.Module):
    """A fused projection whose output is laid out in a way of its own."""

    def __init__(self, lay: Layout) -> None:
        super().__init__()
        self.gate_up = nn.Linear(16, 32, bias=False)
        self.down = nn.Linear(32, 16, bias=False)
        self.lay = lay

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.lay(self.gate_up(x)))


def test_a_run_with_a_wrong_layout_says_which_at_its_edge() -> None:
    torch.manual_seed(0)
    reference, wrong = GateUp(lambda y: y), GateUp(interleaved)
    wrong.load_state_dict(reference.state_dict())
    x = torch.randn(2, 8, 16)
    outcome = check(reference, wrong.bfloat16(), {"x": x.bfloat16()})
    (first, *_) = outcome.findings
    assert first.signature is not None
    assert first.signature.kind == "layout"
    assert "halves interleaved (gate and up in turn) along channel, in place of halves" in first.summary
    right = GateUp(lambda y: y)
    right.load_state_dict(reference.state_dict())
    assert check(reference, right.bfloat16(), {"x": x.bfloat16()}).findings == ()


@pytest.mark.parametrize("fmt", [BF16, FP32], ids=["bfloat16", "float32"])
def test_a_layout_is_found_in_every_format(fmt: Any) -> None:
    y = round_nearest(edge(), FP32)
    wrong = found(y, interleaved(y), fmt=fmt)
    assert wrong is not None
