from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from validator.errors import MismatchError
from validator.swapping.hybrids import Hybrids
from validator.swapping.partition import Part, coarse_parts, finer_parts, matching_parts

WIDTH, TOKENS, VOCABULARY = 8, 5, 7


class Mixer(nn.Module):
    """Adds what came before; with `is_masked` it must be told by a mask, else it knows by itself."""

    def __init__(self, *, is_masked: bool) -> None:
        super().__init__()
        self.value = nn.Linear(WIDTH, WIDTH)
        self.is_masked = is_masked

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        value = self.value(hidden)
        if not self.is_masked:
            assert mask is None
            return value.float().cumsum(1).to(value.dtype) / TOKENS, None
        assert mask is not None
        weights = mask.to(value.dtype) / TOKENS
        return weights @ value, weights


class Block(nn.Module):
    def __init__(self, *, is_masked: bool) -> None:
        super().__init__()
        self.mixer = Mixer(is_masked=is_masked)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU())

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden = hidden + self.mixer(hidden, mask)[0]
        result: Tensor = hidden + self.mlp(hidden)
        return result


class Net(nn.Module):
    def __init__(self, *, is_masked: bool = True, blocks: int = 3, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.is_masked = is_masked
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(is_masked=is_masked) for _ in range(blocks))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden = self.embed(input_ids)
        mask = None
        if self.is_masked:
            mask = torch.ones(TOKENS, TOKENS, dtype=hidden.dtype).tril()
        for block in self.blocks:
            hidden = block(hidden, mask)
        result: Tensor = self.head(hidden)
        return result


IDS = torch.arange(2 * TOKENS).remainder(VOCABULARY).view(2, TOKENS)


def run(model: nn.Module) -> Callable[[], Any]:
    return lambda: model(input_ids=IDS)


def hybrids(ref: nn.Module, cand: nn.Module, names: dict[str, str] | None = None) -> Hybrids:
    names = {name: name for name, _ in cand.named_modules()} if names is None else names
    return Hybrids(ref=ref, cand=cand, names=names, run_ref=run(ref), run_cand=run(cand))


def output(made: Hybrids, parts: tuple[Part, ...], chosen: tuple[Part, ...]) -> Tensor:
    with torch.no_grad(), made.hybrid(parts, chosen) as (model, _):
        result: Tensor = model(input_ids=IDS)
    return result


def named(parts: tuple[Part, ...], *names: str) -> tuple[Part, ...]:
    found = tuple(part for part in parts if str(part) in names)
    assert len(found) == len(names)
    return found


def test_blocks_and_what_stands_beside_them_are_the_parts() -> None:
    ref = Net()
    made = hybrids(ref, Net(seed=1))
    parts = coarse_parts(ref, made.swappable)
    assert [str(part) for part in parts] == [
        "embed",
        "blocks.0",
        "blocks.1",
        "blocks.2",
        "head",
        "(the model's own code)",
    ]
    assert [str(part) for part in finer_parts(named(parts, "blocks.1"), made.swappable)] == [
        "blocks.1.mixer",
        "blocks.1.mlp",
        "blocks.1, its own code",
    ]
    assert matching_parts("*.mixer*", made.swappable) == tuple(
        Part(module=f"blocks.{n}.mixer") for n in range(3)
    )


def test_none_is_the_reference_and_all_is_the_candidate_bit_for_bit() -> None:
    ref, cand = Net(), Net(is_masked=False, seed=1).to(torch.bfloat16)
    made = hybrids(ref, cand)
    for parts in (
        coarse_parts(ref, made.swappable),
        finer_parts(coarse_parts(ref, made.swappable), made.swappable),
    ):
        assert torch.equal(output(made, parts, ()), ref(input_ids=IDS))
        assert torch.equal(output(made, parts, parts), cand(input_ids=IDS))


@pytest.mark.parametrize("chosen", ["blocks.1", "head", "embed"])
def test_a_hybrid_computes_what_a_model_with_these_weights_does(chosen: str) -> None:
    ref, cand = Net(), Net(seed=1)
    made = hybrids(ref, cand)
    parts = coarse_parts(ref, made.swappable)
    expected = Net()
    expected.load_state_dict(
        {
            name: (cand if name.startswith(chosen) else ref).state_dict()[name]
            for name in expected.state_dict()
        }
    )
    assert torch.equal(output(made, parts, named(parts, chosen)), expected(input_ids=IDS))


def test_inside_of_a_block_too_modules_are_either_sides() -> None:
    ref, cand = Net(), Net(seed=1)
    made = hybrids(ref, cand)
    parts = finer_parts((Part(module="blocks.1"),), made.swappable)
    expected = Net()
    expected.blocks[1].mlp.load_state_dict(cand.blocks[1].mlp.state_dict())
    chosen = named(parts, "blocks.1.mlp", "blocks.1, its own code")
    assert torch.equal(output(made, parts, chosen), expected(input_ids=IDS))


def test_a_module_gets_the_masks_that_its_own_side_gives_it() -> None:
    ref, cand = Net(is_masked=True), Net(is_masked=False)
    made = hybrids(ref, cand)
    parts = finer_parts(coarse_parts(ref, made.swappable), made.swappable)
    exact = ref(input_ids=IDS)
    for part in parts:
        torch.testing.assert_close(output(made, parts, (part,)), exact)
        others = tuple(other for other in parts if other != part)
        torch.testing.assert_close(output(made, parts, others), exact)


def test_dtypes_are_cast_where_sides_meet() -> None:
    ref, cand = Net(), Net().to(torch.bfloat16)
    made = hybrids(ref, cand)
    parts = coarse_parts(ref, made.swappable)
    seen: list[torch.dtype] = []
    cand.blocks[1].register_forward_pre_hook(lambda _, args: seen.append(args[0].dtype))
    result = output(made, parts, named(parts, "blocks.1"))
    assert (seen, result.dtype) == ([torch.bfloat16], torch.float32)
    assert 0 < float((result - ref(input_ids=IDS)).detach().abs().max()) < 0.05


def test_both_models_are_as_they_were_even_after_an_error() -> None:
    ref, cand = Net(), Net(seed=1)
    made = hybrids(ref, cand)
    parts = coarse_parts(ref, made.swappable)
    before = [module.__dict__.keys() - {"training"} for model in (ref, cand) for module in model.modules()]
    with pytest.raises(ZeroDivisionError), made.hybrid(parts, parts[1:3]):
        raise ZeroDivisionError
    after = [module.__dict__.keys() - {"training"} for model in (ref, cand) for module in model.modules()]
    assert before == after


def test_a_replaced_forward_is_found_again() -> None:
    ref, cand = Net(), Net(seed=1)
    own = ref.blocks[1].forward
    ref.blocks[1].forward = lambda *args: own(*args) * 2
    replaced = ref.blocks[1].forward
    made = hybrids(ref, cand)
    parts = coarse_parts(ref, made.swappable)
    output(made, parts, named(parts, "blocks.1"))
    assert ref.blocks[1].forward is replaced


def test_other_names_and_argument_names_are_seen_through() -> None:
    class Other(Block):
        def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> tuple[Tensor]:  # type: ignore[override]
            return (super().forward(x.view(2, TOKENS, WIDTH), attn_mask).flatten(0, 1),)

    class Port(Net):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.layers = nn.ModuleList(Other(is_masked=True) for _ in range(3))
            del self.blocks

        def forward(self, input_ids: Tensor) -> Tensor:
            hidden = self.embed(input_ids).flatten(0, 1)
            for layer in self.layers:
                (hidden,) = layer(hidden, torch.ones(TOKENS, TOKENS).tril())
            result: Tensor = self.head(hidden.view(2, TOKENS, WIDTH))
            return result

    ref, cand = Net(), Port()
    names = {name: name.replace("layers", "blocks") for name, _ in cand.named_modules()}
    made = hybrids(ref, cand, names)
    parts = coarse_parts(ref, made.swappable)
    expected = Net()
    expected.blocks[1].load_state_dict(cand.layers[1].state_dict())
    assert torch.equal(output(made, parts, named(parts, "blocks.1")), expected(input_ids=IDS))
    assert torch.equal(output(made, parts, parts), cand(input_ids=IDS))


def test_a_residual_that_one_side_keeps_apart_is_not_dropped() -> None:
    class Fused(Block):
        def forward(self, hidden: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            total = hidden + residual
            mask = torch.ones(TOKENS, TOKENS).tril()
            return super().forward(total, mask) - total, total

    class Port(Net):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Fused(is_masked=True) for _ in range(3))

        def forward(self, input_ids: Tensor) -> Tensor:
            hidden, residual = self.embed(input_ids), torch.zeros(2, TOKENS, WIDTH)
            for block in self.blocks:
                hidden, residual = block(hidden, residual)
            result: Tensor = self.head(hidden + residual)
            return result

    made = hybrids(Net(), Port())
    assert made.unswappable["blocks.1"] == (
        "it is called with hidden on one side and hidden, residual on the other"
    )
    assert "blocks.1.mixer" in made.swappable


def test_modules_that_are_called_another_number_of_times_stay_where_they_are() -> None:
    class Port(Net):
        def forward(self, input_ids: Tensor) -> Tensor:
            return torch.cat([super(Port, self).forward(ids[None]) for ids in input_ids])

    made = hybrids(Net(), Port())
    assert made.unswappable["head"] == "the reference calls it once and the candidate 2 times"


def test_models_that_share_an_object_are_refused() -> None:
    ref, cand = Net(), Net(seed=1)
    cand.blocks[2] = ref.blocks[2]
    with pytest.raises(MismatchError, match=r"share an object, 'blocks\.2'"):
        hybrids(ref, cand)


def test_a_module_that_stands_in_two_places_stays_where_it_is() -> None:
    ref, cand = Net(), Net(seed=1)
    ref.blocks[2].mlp = ref.blocks[1].mlp
    assert hybrids(ref, cand).unswappable["blocks.1.mlp"] == "it stands in several places"
